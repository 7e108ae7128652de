"""Gradients of the random programs against TensorFlow's and finite differences, and second gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import aioflow as af
from tests.parity.program_generator import generate
from tests.parity.programs import FLOATS, Built, Program, check, difference, gradients_of, run_primitive, run_session
from tests.parity.test_programs import SEEDS

#: Seeds of programs without a gradient in TensorFlow: of a switch_case inside a loop (an internal error), and of a
#: gather inside a loop without iterations (its sparse gradient has no rows then). The other tests below check these.
REFUSED = {19, 52, 54, 88, 114}


def _smooth(seed: int) -> bool:
    """Return whether the gradients are slopes: not in float32, and not if a variable's assignment stops them."""
    return not any(f == "float32" or f.startswith("variable assigned") for f in generate(seed).features)


SMOOTH = [seed for seed in SEEDS if _smooth(seed)]


@pytest.fixture(autouse=True, scope="module")
def first_control_flow(tf: Any) -> Iterator[None]:
    tf.disable_control_flow_v2()
    yield
    tf.enable_control_flow_v2()


@pytest.mark.parametrize("seed", [s for s in SEEDS if s not in REFUSED])
def test_gradients_match_tensorflow(tf: Any, seed: int) -> None:
    check(tf, generate(seed), [run_primitive, run_session], gradients_of)


@pytest.mark.parametrize("seed", sorted(REFUSED - set(SMOOTH)))
def test_native_and_primitive_loops_have_equal_gradients(seed: int) -> None:
    program = generate(seed)
    assert not difference(program, run_primitive(program, gradients_of), run_session, gradients_of)


@pytest.mark.parametrize("seed", sorted({*SMOOTH[::2], *(REFUSED & set(SMOOTH))}))
def test_gradients_match_finite_differences(seed: int) -> None:
    _check_slope(generate(seed), lambda module, built: [built.outputs[-1]], lambda built: built.outputs[-1])


@pytest.mark.parametrize("seed", SMOOTH[::2])
def test_second_gradients_match_finite_differences(seed: int) -> None:
    """Compare with differences, since TensorFlow has no second gradients through loops."""
    _check_slope(generate(seed), lambda module, built: [_slope(built)], _slope)


def _slope(built: Built) -> Any:
    """Return a scalar made of the gradients, each element with its own weight."""
    pairs = zip(built.gradients(af), built.sources(), strict=True)
    return af.add_n([af.reduce_sum(g * _weights(source)) for g, source in pairs if g is not None])


def _weights(source: Any) -> Any:
    shape = source.shape.as_list()
    return (np.cos(np.arange(np.prod(shape, dtype=int))) + 1.5).reshape(shape).astype(source.dtype.name)


def _check_slope(program: Program, value: Callable[[Any, Built], list[Any]], scalar: Callable[[Built], Any]) -> None:
    """Compare the gradient of a scalar by all sources with its differences in random directions."""

    def derivatives(module: Any, built: Built) -> list[Any]:
        found = af.gradients(scalar(built), built.sources())
        return [None if g is None else af.convert_to_tensor(g) for g in found]

    names = [*FLOATS, *program.initial]
    slopes = dict(zip(names, run_session(program, derivatives), strict=False))
    rng = np.random.default_rng(program.seed)
    for _ in range(3):
        way = {
            n: rng.standard_normal(np.shape(v)) for n, v in {**program.feeds, **program.initial}.items() if n in names
        }
        way["x3"] = np.zeros(3)  # no program here depends on it
        expected = (_moved(program, way, 1e-5, value) - _moved(program, way, -1e-5, value)) / 2e-5
        actual = sum(np.sum(slopes[n] * way[n]) for n in names if slopes[n] is not None)
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7, err_msg=program.source)


def _moved(program: Program, way: dict[str, Any], step: float, value: Callable[[Any, Built], list[Any]]) -> float:
    """Return the scalar with all inputs and variables moved by `step` along `way`."""

    def move(values: dict[str, Any]) -> dict[str, Any]:
        return {n: np.asarray(v + step * way[n], v.dtype) if n in way else v for n, v in values.items()}

    moved = replace(program, feeds=move(program.feeds), initial=move(program.initial))
    return float(run_session(moved, value)[0])
