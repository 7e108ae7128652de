"""Tests of variables in delegated parts: unchanged values are constants of the model until a step changes them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import BY_ONNXRUNTIME, floats
from tests.interop.onnx_out.running import same
from tests.support.waiting import eventually

ROWS = floats(4, 64)
RUNS = 20  # runs; more than a variable must stay unchanged after its first change


class Net:
    """Two layers, one of which has variables, and an update of them."""

    def __init__(self, rate: float = 0.01) -> None:
        self.x = af.placeholder("float32", [None, 64])
        self.weights, self.bias = af.Variable(floats(64, 32)), af.Variable(floats(32))
        self.y = af.tanh(af.matmul(self.x, self.weights) + self.bias) * 2.0
        self.init = af.global_variables_initializer()
        self.add = self.weights.assign_add(af.fill([64, 32], rate))

    async def run(self, session: af.Session) -> Any:
        return await session.run(self.y, {self.x: ROWS})

    async def prepared(self, session: af.Session) -> Any:
        """Return the result after all preparations that a run starts have finished."""
        await self.run(session)
        await session.prepared()
        return await self.run(session)


def models_of(part: Delegated) -> set[str]:
    """Return the names of the ready models: "fixed" with the variables' values, "general" with inputs for them."""
    return {name for name, model in (("general", part.part), ("fixed", part.fixed)) if model is not None}


async def same_as_ours(net: Net, session: af.Session, found: Any) -> None:
    """Compare a result with that of our kernels, for the current values of the variables."""
    weights, bias = await session.run([net.weights, net.bias])
    same(np.tanh(ROWS @ weights + bias) * np.float32(2), found, 1e-5)


async def test_variables_are_constants_until_one_changes(parts: list[Delegated]) -> None:
    net = Net()
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await session.run(net.init)
        found = await net.prepared(session)
        (part,) = (each for each in parts if each.fixed is not None)
        assert models_of(part) == {"fixed"}
        await same_as_ours(net, session, found)
        await session.run(net.add)
        await same_as_ours(net, session, await net.run(session))
        assert "fixed" not in models_of(part)
        await same_as_ours(net, session, await net.prepared(session))
        assert models_of(part) == {"general"}
        for _ in range(RUNS):
            await net.run(session)
        await same_as_ours(net, session, await net.prepared(session))
        assert models_of(part) == {"general", "fixed"}, "they have been still for a while again"


async def test_every_run_sees_the_current_values(parts: list[Delegated], monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers in-place changes and new arrays, also if the values change while a model is made of them."""
    monkeypatch.setattr("aioflow_onnxruntime.kernels._STILLEST", 3)
    net, chance, fixed = Net(), np.random.default_rng(1), 0
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await session.run(net.init)
        for number in range(300):
            if chance.random() < (0.5 if number < 60 else 0.03):
                await session.run(net.add)
            if chance.random() < 0.1:
                await session.prepared()
            await same_as_ours(net, session, await net.run(session))
            fixed += any(each.fixed for each in parts)
        assert any(each.part for each in parts)
        assert 20 < fixed < 280


async def test_concurrent_runs_see_consistent_values(parts: list[Delegated]) -> None:
    net = Net(rate=1.0)
    with af.control_dependencies([net.weights.assign(af.fill([64, 32], 0.0)), net.bias.assign(af.fill([32], 0.0))]):
        zero = af.no_op()
    count = af.reduce_mean(af.matmul(net.x, net.weights) + net.bias)
    ones = np.ones((1, 64), np.float32)
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await session.run([net.init])
        await session.run(zero)

        async def update() -> None:
            for _ in range(100):
                await session.run(net.add)

        async def read() -> list[float]:
            return [float(await session.run(count, {net.x: ones})) for _ in range(200)]

        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read()) for _ in range(3)]
            group.create_task(update())
        for reader in readers:
            found = reader.result()
            assert found == sorted(found), "a later run has not seen an earlier value"
            assert set(found) <= {64.0 * number for number in range(101)}
        assert float(await session.run(count, {net.x: ones})) == 6400.0


async def test_step_that_changes_variables_reads_them_as_inputs(parts: list[Delegated]) -> None:
    x = af.placeholder("float32", [None, 64])
    weights = af.Variable(floats(64, 8))
    loss = af.reduce_mean(af.square(af.tanh(af.matmul(x, weights))))
    step = af.train.GradientDescentOptimizer(0.1).minimize(loss)
    async with af.Session(config=BY_ONNXRUNTIME) as session, af.Session() as ours:
        for each in (session, ours):
            await each.run(weights.initializer)
        for _ in range(3):
            for each in (session, ours):
                await each.run(step, {x: ROWS})
            await session.prepared()
        assert any(each.part for each in parts)
        assert not any(each.fixed for each in parts)
        same(await ours.run(weights), await session.run(weights), 1e-5)


async def test_model_shares_the_variables_memory_until_the_session_ends(parts: list[Delegated]) -> None:
    net = Net()

    async def work() -> weakref.ref[Any]:
        async with af.Session(config=BY_ONNXRUNTIME) as session:
            await session.run(net.init)
            await session.run(net.add)  # from now on the array is not that of the graph's constant
            await net.prepared(session)
            (fixed,) = (each.fixed for each in parts if each.fixed is not None)
            (weights,) = (value for value in fixed.values.values() if value.shape == (64, 32))
            assert any(np.shares_memory(array, weights) for array in fixed.part.held.values())
            return weakref.ref(weights)

    weights = await work()
    parts.clear()

    async def is_gone() -> bool:
        gc.collect()
        return weights() is None

    await eventually(is_gone)  # a kernel's thread may hold it for a moment after the run


async def test_new_value_read_by_any_part_drops_models_with_the_old_one(parts: list[Delegated]) -> None:
    """A part with an old value may never run again, so another part's read must release its model."""
    net = Net()
    others = [af.tanh(af.matmul(net.x, net.weights) * float(n)) * 2.0 for n in range(1, 4)]
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await session.run(net.init)
        for other in others:
            await session.run(other, {net.x: ROWS})
            await session.prepared()
        assert len([part for part in parts if part.fixed]) == 3
        await session.run(net.add)
        await net.run(session)
        await session.prepared()
        assert len([part for part in parts if part.fixed]) == 1, "that of the part that has run"


async def test_variables_that_would_fold_into_large_constants_are_inputs(parts: list[Delegated]) -> None:
    """The optimizer of onnxruntime folds nodes that depend on constants only, however large the result is."""
    column, row = af.Variable(floats(3000, 1)), af.Variable(floats(1, 3000))
    x = af.placeholder("float32", [])
    y = af.reduce_max(column * row, [0, 1]) * x
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await session.run([column.initializer, row.initializer])
        for _ in range(3):
            await session.run(y, {x: 2.0})
            await session.prepared()
        assert any(each.part for each in parts)
        assert not any(each.fixed for each in parts)


async def test_model_that_rejects_the_values_reads_them_as_inputs(
    parts: list[Delegated], monkeypatch: pytest.MonkeyPatch
) -> None:
    from aioflow_onnxruntime import sessions

    made = sessions.made

    def picky(graph: Any, *how: Any) -> Any:
        if sum(node.op == "Const" and node.outputs[0].dims == (64, 32) for node in graph.nodes.values()):
            raise ValueError("no")
        return made(graph, *how)

    monkeypatch.setattr(sessions, "made", picky)
    net = Net()
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await session.run(net.init)
        await net.prepared(session)
        await same_as_ours(net, session, await net.prepared(session))
        assert [each.part is not None for each in parts if each.graph.feeds == 3] == [True]
        assert not any(each.fixed for each in parts)
