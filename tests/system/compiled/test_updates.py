"""Tests that compiled updates of variables are bitwise equal to NumPy, and are used once they are compiled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.concurrency.stopping import Stoppable, doing
from aioflow.kernels.variables.optimizer_rules import RULES, UpdateRule
from aioflow.kernels.variables.optimizer_updates import in_passes
from aioflow_numpy.compiled import updates as module
from aioflow_numpy.compiled.updates import CompiledUpdate, written
from aioflow_numpy.compiled.wanted import BACKGROUND, numbers
from aioflow_numpy.crew import Crew
from aioflow_numpy.threads import for_each
from tests.support.processes import SECONDS
from tests.system.compiled.chains import Array, compiler, same
from tests.system.compiled.crews import helpers, noting

pytestmark = compiler

# (rule, number of variables, scalars, options)
CASES: list[tuple[str, int, str, dict[str, bool]]] = [
    ("GradientDescent", 1, "alpha", {}),
    ("ProximalGradientDescent", 1, "alpha l1 l2", {}),
    ("Momentum", 2, "lr momentum", {"use_nesterov": False}),
    ("Momentum", 2, "lr momentum", {"use_nesterov": True}),
    ("Adagrad", 2, "lr", {"update_slots": True}),
    ("Adagrad", 2, "lr", {"update_slots": False}),
    ("AdagradV2", 2, "lr epsilon", {"update_slots": True}),
    ("ProximalAdagrad", 2, "lr l1 l2", {}),
    ("AdagradDA", 3, "lr l1 l2 global_step", {}),
    ("Adadelta", 3, "lr rho epsilon", {}),
    ("Adam", 3, "beta1_power beta2_power lr beta1 beta2 epsilon", {"use_nesterov": False}),
    ("Adam", 3, "beta1_power beta2_power lr beta1 beta2 epsilon", {"use_nesterov": True}),
    ("AdamWithAmsgrad", 4, "beta1_power beta2_power lr beta1 beta2 epsilon", {}),
    ("AdaMax", 3, "beta1_power lr beta1 beta2 epsilon", {}),
    ("RMSProp", 3, "lr rho momentum epsilon", {}),
    ("CenteredRMSProp", 4, "lr rho momentum epsilon", {}),
]
SIZE = 40_001  # large enough for every rule, and not a multiple of the length of a vector


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    module._compiled.cache_clear()
    yield
    module._compiled.cache_clear()


def _scalars(rule: UpdateRule, names: str, options: Mapping[str, bool], dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    h = {name: dtype(rng.uniform(0.1, 0.9)) for name in names.split()} | dict(options)
    return h if rule.prepare is None else rule.prepare(np, h)


def _ready(rule: UpdateRule, count: int, h: Mapping[str, Any], dtype: Any = np.float32) -> CompiledUpdate:
    made = CompiledUpdate(rule, count, h, np.dtype(dtype))
    made.prepare()
    assert made._code is not None
    return made


def _momentum(size: int = SIZE) -> tuple[CompiledUpdate, dict[str, Any], Array, list[Array]]:
    """Return a compiled update, its scalars, a gradient and values."""
    rule, rng = RULES["Momentum"], np.random.default_rng(1)
    h = _scalars(rule, "lr momentum", {"use_nesterov": False}, np.float32)
    gradient, *values = (rng.standard_normal(size, np.float32) for _ in range(3))
    return _ready(rule, 2, h), h, gradient, values


def test_every_rule_that_does_not_inspect_values_has_a_case() -> None:
    assert {name for name, *_ in CASES} == {name for name, rule in RULES.items() if not rule.looks}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("name", "count", "names", "options"), CASES, ids=str)
def test_update_is_bitwise_equal_to_numpy(
    name: str, count: int, names: str, options: dict[str, bool], in_place: bool, dtype: Any
) -> None:
    rule, rng = RULES[name], np.random.default_rng(1)
    h = _scalars(rule, names, options, dtype)
    update = _ready(rule, count, h, dtype)
    for make in (numbers, lambda rng, dtype, shape: rng.standard_normal(shape, dtype) ** 2):
        gradient, *values = (make(rng, np.dtype(dtype), (SIZE,)) for _ in range(count + 1))
        kept = [value.copy() for value in values]
        wanted, found = ([value.copy() for value in values] for _ in range(2))
        with np.errstate(all="ignore"):
            in_passes(np, rule, h, gradient, values, wanted)
        assert update.run(h, gradient, found if in_place else values, found)
        assert all(map(same, wanted, found))
        assert all(map(same, kept, values))


def test_training_is_bitwise_equal_before_and_after_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(steps: int) -> list[Array]:
        with af.Graph().as_default():
            weights = af.Variable(np.linspace(-1, 1, 64 * 400, dtype=np.float32).reshape(64, 400))
            train = af.train.AdamOptimizer(0.01).minimize(af.reduce_sum(af.square(weights * weights - 0.3)))
            with af.Session() as session:
                session.run_sync(af.global_variables_initializer())
                found = []
                for _ in range(steps):
                    session.run_sync(train)
                    BACKGROUND.wait(SECONDS)
                    found.append(session.run_sync(weights))
                return found

    wanted = trained(6)
    module._compiled.cache_clear()
    called: list[int] = []
    call = CompiledUpdate._call

    def counted(self: CompiledUpdate, code: Any, h: Any, size: int, arrays: Any) -> None:
        called.append(size)
        call(self, code, h, size, arrays)

    monkeypatch.setattr(CompiledUpdate, "_call", counted)
    monkeypatch.setattr(module, "_WORTH", 1)
    found = trained(6)
    assert called.count(64 * 400) >= 4
    assert all(map(same, wanted, found))


async def test_fetched_value_is_not_changed_by_later_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTH", 1)
    with af.Graph().as_default():
        weights = af.Variable(np.ones(SIZE, np.float32))
        train = af.train.MomentumOptimizer(1.0, 0.0).minimize(af.reduce_sum(weights))
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            await session.run(train)
            await asyncio.to_thread(BACKGROUND.wait, SECONDS)
            held = await session.run(weights)
            assert np.all(held == 0.0)
            await session.run(train)
            assert np.all(held == 0.0)
            assert np.all(await session.run(weights) == -1.0)


def test_parts_are_shared_with_awake_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that every element is updated exactly once, by either thread."""
    update, h, gradient, values = _momentum(1_000_003)
    wanted = [value.copy() for value in values]
    in_passes(np, RULES["Momentum"], h, gradient, wanted, wanted)
    crew = Crew()
    crew.prepare()
    monkeypatch.setattr(module, "CREW", crew)
    monkeypatch.setattr(module, "thread_count", lambda: 5)
    loop, shared = noting(crew.loop)
    monkeypatch.setattr(crew, "loop", loop)
    with helpers(crew, 1):
        end = time.monotonic() + SECONDS
        while not shared or not shared[-1]:
            assert time.monotonic() < end, "nobody waits awake"
            found = [value.copy() for value in values]
            assert update.run(h, gradient, found, found)
            assert all(map(same, wanted, found))


@pytest.mark.parametrize("threads", [2, 3, 200])
def test_large_updates_are_divided_among_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    update, h, gradient, values = _momentum(1_000_003)
    wanted = [value.copy() for value in values]
    in_passes(np, RULES["Momentum"], h, gradient, wanted, wanted)
    monkeypatch.setattr(module, "CREW", Crew())
    monkeypatch.setattr(module, "thread_count", lambda: threads)
    parts: list[int] = []

    def counted(work: Any, items: Any) -> None:
        parts.append(len(items))
        for_each(work, items)

    monkeypatch.setattr(module, "for_each", counted)
    stopped = Stoppable()
    stopped.stop()  # too late: an update that has begun to write continues
    assert doing(stopped, update.run, h, gradient, values, values)
    assert all(map(same, wanted, values))
    assert parts == [min(threads, 5 * 4 * 1_000_003 // module._PART)]


def test_small_updates_are_left_to_numpy() -> None:
    update, h, gradient, values = _momentum(100)
    assert not update.run(h, gradient, values, values)


@pytest.mark.parametrize("which", ["gaps", "bytes", "dtype", "fixed"])
def test_unsuitable_arrays_are_left_to_numpy(which: str) -> None:
    update, h, gradient, values = _momentum()
    news = [value.copy() for value in values]
    if which == "gaps":
        gradient = np.repeat(gradient, 2)[::2]
    elif which == "bytes":
        room = np.empty(gradient.nbytes + 1, np.uint8)
        odd = room[1:].view(np.float32)
        odd[...] = gradient
        gradient = odd
    elif which == "dtype":
        values[1] = values[1].astype(np.float64)
    else:
        news[0].flags.writeable = False
    kept = [new.copy() for new in news]
    assert not update.run(h, gradient, values, news)
    assert all(map(same, kept, news))


def test_compilation_starts_after_numpy_has_worked_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(BACKGROUND, "begin", asked.append)
    rule = RULES["Momentum"]
    _, h, gradient, values = _momentum()
    update = CompiledUpdate(rule, 2, h, np.dtype(np.float32))
    monkeypatch.setattr(module, "_WORTH", 3 * 4 * (gradient.nbytes + module._CALL))
    for count in (0, 0, 1, 1):
        assert not update.run(h, gradient, values, values)
        assert len(asked) == count
    asked[0]()
    assert update.run(h, gradient, values, values)


@pytest.mark.parametrize(
    "change", [("t0 + g", "t0 - g"), ("o1[i] =", "o1[first] ="), ("h1 = at[5][1]", "h1 = at[5][0]")]
)
def test_code_with_different_results_is_not_used(
    change: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rule = RULES["Momentum"]
    h = _scalars(rule, "lr momentum", {"use_nesterov": False}, np.float32)
    right = written(rule, 2, h, np.dtype(np.float32))
    assert change[0] in right.text
    wrong = type(right)(right.text.replace(*change), right.scalars, right.passes)
    monkeypatch.setattr(module, "written", lambda *args: wrong)
    update = CompiledUpdate(rule, 2, h, np.dtype(np.float32))
    with caplog.at_level(logging.WARNING, "aioflow.compiled"):
        update.prepare()
    assert update._code is None
    assert "its results differ from NumPy's" in caplog.text
