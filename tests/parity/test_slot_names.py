"""Names of the variables of optimizers and averages under scopes: the names in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aioflow

Program = Callable[[Any], Any]


def _weights(m: Any) -> tuple[Any, Any]:
    w = m.get_variable("w", [2], initializer=m.ones_initializer())
    return w, m.reduce_sum(w * w)


def _in_a_scope(m: Any) -> None:
    _, loss = _weights(m)
    with m.variable_scope("train"):
        m.train.AdamOptimizer().minimize(loss)


def _in_the_scope_of_the_model(m: Any) -> None:
    with m.variable_scope("model"):
        _, loss = _weights(m)
        m.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with m.variable_scope("train"):
            m.train.AdagradOptimizer(0.1).minimize(loss)


def _where_variables_are_only_found(m: Any) -> None:
    with m.variable_scope("model"):
        _, loss = _weights(m)
    with m.variable_scope("model", reuse=True):
        m.train.AdagradOptimizer(0.1).minimize(loss)


def _in_a_name_scope(m: Any) -> None:
    _, loss = _weights(m)
    with m.name_scope("train"):
        m.train.RMSPropOptimizer(0.1).minimize(loss)
    with m.name_scope("train"), m.variable_scope("vs"):
        m.train.RMSPropOptimizer(0.1, centered=True).minimize(loss)


def _two_of_one_name(m: Any) -> None:
    _, loss = _weights(m)
    for name in ("A", "A", "B"):
        m.train.MomentumOptimizer(0.1, 0.9, name=name).minimize(loss)
    with m.variable_scope("vs"):
        for name in ("A", "A"):
            m.train.AdamOptimizer(name=name).minimize(loss)


def _where_variables_are_shared(m: Any) -> None:
    _, loss = _weights(m)
    with m.variable_scope("vs", reuse=m.AUTO_REUSE):
        optimizer = m.train.AdadeltaOptimizer(0.1)
        optimizer.minimize(loss)
        optimizer.minimize(loss)
        m.train.FtrlOptimizer(0.1).minimize(loss)


def _with_defaults_of_the_scope(m: Any) -> None:
    _, loss = _weights(m)
    with m.variable_scope("vs", initializer=m.zeros_initializer(), dtype=m.float64):
        m.train.AdagradOptimizer(0.1).minimize(loss)


def _averages(m: Any) -> list[str]:
    w, loss = _weights(m)
    average = m.train.ExponentialMovingAverage(0.9)
    names = [average.average_name(w)]
    with m.name_scope("names"):
        names.append(average.average_name(w))
    with m.variable_scope("vs"):
        names.append(average.average_name(w))
        with m.name_scope("names"):
            names.append(average.average_name(w))
        average.apply([w])
        names.append(average.average_name(w))
        m.train.ExponentialMovingAverage(0.9).apply([w])
        m.train.ExponentialMovingAverage(0.9, zero_debias=True).apply([w, loss])
    return [*names, *sorted(average.variables_to_restore())]


def _averages_in_the_scope_of_the_model(m: Any) -> list[str]:
    with m.variable_scope("vs"):
        w, _ = _weights(m)
        average = m.train.ExponentialMovingAverage(0.9, name="Mean")
        names = [average.average_name(w), *sorted(average.variables_to_restore())]
        average.apply([w])
        return [*names, average.average_name(w), *sorted(average.variables_to_restore())]


def _global_step(m: Any) -> None:
    _, loss = _weights(m)
    with m.variable_scope("a"), m.variable_scope("b"):
        step = m.train.create_global_step()
        m.train.AdamOptimizer().minimize(loss, global_step=step)


PROGRAMS: list[Program] = [
    _in_a_scope,
    _in_the_scope_of_the_model,
    _where_variables_are_only_found,
    _in_a_name_scope,
    _two_of_one_name,
    _where_variables_are_shared,
    _with_defaults_of_the_scope,
    _averages,
    _averages_in_the_scope_of_the_model,
    _global_step,
]


def _names(m: Any, program: Program) -> Any:
    with m.Graph().as_default():
        try:
            made = program(m)
        except ValueError:
            return "refused"
        return made, [(v.name, v.dtype.base_dtype.name, v.shape.as_list()) for v in m.global_variables()]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_slot_variables_have_tensorflows_names(tf: Any, program: Program) -> None:
    assert _names(aioflow, program) == _names(tf, program)
