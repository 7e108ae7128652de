"""Tests that compiled runs of small elementwise nodes are bitwise equal to NumPy, and are used once compiled."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.ops.apply import make
from aioflow_numpy.compiled import small
from aioflow_numpy.compiled.small import _SmallRun
from aioflow_numpy.compiled.wanted import BACKGROUND, numbers
from tests.support.processes import SECONDS
from tests.system.compiled.chains import compiler, same
from tests.system.compiled.test_chains import exact_ops

pytestmark = compiler

AS_WRITTEN = af.SessionConfig(optimizations=False)
REFERENCE = af.SessionConfig(executor="reference")
NUMBERS = (dtypes.float32, dtypes.float64, dtypes.int8, dtypes.int32, dtypes.int64, dtypes.uint8)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Compile runs of any length after their first step; yield the lengths of the runs that machine code computed."""
    found: list[int] = []
    call = _SmallRun.__call__

    def noted(self: _SmallRun, *inputs: Any) -> Any:
        made = call(self, *inputs)
        if made is not None:
            found.append(len(self._members))
        return made

    monkeypatch.setattr(_SmallRun, "__call__", noted)
    monkeypatch.setattr(small, "_WORTH", 0)
    monkeypatch.setattr(small, "_FEWEST", -small._MOST_COPIES)
    with af.Graph().as_default():
        yield found


async def run(fetches: Any, feeds: Any, config: Any = AS_WRITTEN) -> Any:
    """Return the results of a step after the code has been compiled."""
    async with af.Session(config=config) as session:
        await session.run(fetches, feeds)
        await asyncio.to_thread(BACKGROUND.wait, SECONDS)
        return await session.run(fetches, feeds)


async def check(fetches: list[Any], feeds: Any) -> None:
    """Compare the results with those of NumPy, called node by node."""
    found = await run(fetches, feeds)
    async with af.Session(config=REFERENCE) as session:
        wanted = await session.run(fetches, feeds)
    for each, other in zip(found, wanted, strict=True):
        assert type(each) is type(other)
        assert same(np.asarray(each), np.asarray(other))


@pytest.mark.parametrize("dtype", [*NUMBERS, dtypes.bool_], ids=str)
@pytest.mark.parametrize("dims", [(), (259,)], ids=str)
async def test_every_op_of_one_dtype_is_bitwise_equal_to_numpy(
    dtype: DType, dims: tuple[int, ...], calls: list[int]
) -> None:
    rng = np.random.default_rng(3)
    operands = [af.placeholder(dtype, dims) for _ in range(3)]
    fetches = [
        make(op, *operands[: len(inputs)])
        for op, inputs, output in exact_ops(dtype)
        if {*inputs, output} == {dtype} and op != "BiasAdd"  # requires another shape
    ]
    await check(fetches, {each: numbers(rng, dtype.np_dtype, dims) for each in operands})
    assert calls == [len(fetches)]


@pytest.mark.parametrize("dtype", [each for each in NUMBERS if each is not dtypes.uint8], ids=str)
@pytest.mark.parametrize("dims", [(), (7,), (3, 5)], ids=str)
async def test_random_graphs_are_bitwise_equal_to_numpy(dtype: DType, dims: tuple[int, ...], calls: list[int]) -> None:
    """Operands are near and far values, scalars and constants; the last and some other values are fetched."""
    chance, rng = random.Random(str((dtype, dims))), np.random.default_rng(0)
    x, scalar = af.placeholder(dtype, dims), af.placeholder(dtype, [])
    values = [x, af.add(x, scalar)]
    for _ in range(150):
        op = chance.choice(["AddV2", "Sub", "Mul", "Maximum", "Minimum", "Square", "Abs", "Sign"])
        one, other = chance.choice(values[-4:]), chance.choice([*values[-30:], scalar, af.constant(3, dtype)])
        values.append(make(op, one) if op in ("Square", "Abs", "Sign") else make(op, one, other))
    fetches = [values[-1], *chance.sample(values[1:], 5), values[-1]]
    await check(fetches, {x: numbers(rng, dtype.np_dtype, dims), scalar: dtype.np_dtype.type(2)})
    assert sum(calls) > 30


def many(x: Any, count: int = 40) -> Any:
    """Return `x` plus `count`."""
    for _ in range(count):
        x = x + 1
    return x


async def test_results_own_their_memory(calls: list[int]) -> None:
    x = af.placeholder(af.float32, [4])
    first = many(x)
    second = many(first)
    async with af.Session(config=AS_WRITTEN) as session:
        await session.run([first, second], {x: np.zeros(4)})
        await asyncio.to_thread(BACKGROUND.wait, SECONDS)
        found = await session.run([first, second], {x: np.zeros(4)})
        assert all(each.base is None for each in found)
        found[1][:] = 0
        again = await session.run([first, second], {x: np.ones(4)})
        np.testing.assert_array_equal(found, [[40] * 4, [0] * 4])
        np.testing.assert_array_equal(again, [[41] * 4, [81] * 4])
    assert calls == [80, 80]


async def test_concurrent_steps_do_not_share_values(calls: list[int]) -> None:
    x = af.placeholder(af.float32, [512])
    made = many(x, 200)
    async with af.Session(config=af.SessionConfig(optimizations=False, inline_budget=0)) as session:
        await session.run(made, {x: np.zeros(512)})
        await asyncio.to_thread(BACKGROUND.wait, SECONDS)
        found = await asyncio.gather(*(session.run(made, {x: np.full(512, i)}) for i in range(30)))
    np.testing.assert_array_equal(found, np.repeat(np.arange(200, 230), 512).reshape(30, 512))
    assert calls == [200] * 30


@pytest.mark.parametrize("taken", [True, False])
async def test_nodes_of_branches_are_computed_one_by_one(taken: bool, calls: list[int]) -> None:
    x, p = af.placeholder(af.float32, [4]), af.placeholder(af.bool, [])
    made = many(af.cond(p, lambda: many(many(x), 50), lambda: many(x, 60)), 70)
    found = await run(made, {x: np.zeros(4), p: taken})
    np.testing.assert_array_equal(found, [160 if taken else 130] * 4)
    assert calls == [70]


async def test_loop_between_runs(calls: list[int]) -> None:
    x = af.placeholder(af.float32, [4])
    _, looped = af.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, many(v)), [af.constant(0), many(x, 50)])
    np.testing.assert_array_equal(await run(many(looped, 60), {x: np.zeros(4)}), [230] * 4)
    assert calls == [50, 60]


async def test_traced_step_shows_every_node(calls: list[int]) -> None:
    x = af.placeholder(af.float32, [4])
    made, found = many(x), af.RunMetadata()
    options = af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)
    async with af.Session(config=AS_WRITTEN) as session:
        await session.run(made, {x: np.zeros(4)})
        await asyncio.to_thread(BACKGROUND.wait, SECONDS)
        await session.run(made, {x: np.zeros(4)}, options=options, run_metadata=found)
    assert sum(each.op == "AddV2" for device in found.step_stats for each in device.nodes) == 40
    assert calls == []


async def test_value_of_another_shape_than_the_static_one_is_computed_by_numpy(calls: list[int]) -> None:
    x = af.placeholder(af.float32)
    value = af.identity(x)
    value.set_shape([4])
    made = many(value)
    async with af.Session(config=AS_WRITTEN) as session:
        await session.run(made, {x: np.zeros(4)})
        await asyncio.to_thread(BACKGROUND.wait, SECONDS)
        np.testing.assert_array_equal(await session.run(made, {x: np.zeros(4)}), [40] * 4)
        assert calls == [40]
        np.testing.assert_array_equal(await session.run(made, {x: np.zeros(1)}), [40])
        np.testing.assert_array_equal(await session.run(made, {x: np.zeros((2, 4))}), np.full((2, 4), 40))
    assert calls == [40]


async def test_code_with_other_results_is_not_used(
    calls: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(small, "_CASE", small._CASE.replace("= {}", "= ({}) * (T)1.0000001"))
    small._program.cache_clear()
    x = af.placeholder(af.float64, [4])
    with caplog.at_level(logging.WARNING, "aioflow.compiled"):
        np.testing.assert_array_equal(await run(many(x), {x: np.zeros(4)}), [40] * 4)
    small._program.cache_clear()
    assert "results of '{0} + {1}' differ from NumPy's" in caplog.text
    assert calls == []


async def test_few_nodes_are_computed_one_by_one(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of inputs and outputs would take longer than the nodes."""
    monkeypatch.setattr(small, "_FEWEST", 38)
    x = af.placeholder(af.float32, [4])
    await run(many(x, 39), {x: np.zeros(4)})
    assert calls == []
    await run(many(x, 40), {x: np.zeros(4)})
    assert calls == [40]
