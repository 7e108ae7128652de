"""`distributed.all_reduce_across`: programs with graphs and sessions of their own reduce together in each step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.distributed import all_reduce_across
from aioflow.net.server import Server
from tests.net.clusters import cluster


class Program:
    """One program: a graph with a tensor to feed, and a session at its own task."""

    def __init__(self, rank: int, count: int, op: str = "sum", shape: Sequence[int] | None = None) -> None:
        self.devices = [f"/job:worker/task:{task}" for task in range(count)]
        self.graph = af.Graph()
        with self.graph.as_default(), af.device(self.devices[rank]):
            self.step = af.placeholder(af.int64, [])
            self.value = af.placeholder(af.float64, shape)
            self.count = af.placeholder(af.int32, [])
            mine = {"value": self.value, "count": self.count}
            self.result = all_reduce_across(mine, self.devices, rank, self.step, op)
        self.session: af.Session

    async def enter(self, stack: AsyncExitStack, server: Server) -> None:
        self.session = await stack.enter_async_context(af.Session(server.target, graph=self.graph))

    async def run(self, step: int, value: Any, timeout: float = 60.0) -> Any:
        feeds = {self.step: step, self.value: value, self.count: 1}
        return await self.session.run(self.result, feeds, timeout=timeout)


async def start(stack: AsyncExitStack, programs: Sequence[Program]) -> None:
    servers = await stack.enter_async_context(cluster(*["worker"] * len(programs)))
    for program, server in zip(programs, servers, strict=True):
        await program.enter(stack, server)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("known", [True, False])
async def test_every_program_has_numpys_sum(count: int, known: bool) -> None:
    programs = [Program(rank, count, shape=[5, 2] if known else None) for rank in range(count)]
    async with AsyncExitStack() as stack:
        await start(stack, programs)
        for step in range(4):
            values = [np.random.default_rng([step, rank]).integers(0, 99, (5, 2)) * 1.0 for rank in range(count)]
            results = await asyncio.gather(*(p.run(step, v) for p, v in zip(programs, values, strict=True)))
            for result in results:
                np.testing.assert_array_equal(result["value"], np.sum(values, 0))
                assert result["count"] == count


@pytest.mark.parametrize(("op", "expected"), [("mean", 2.0), ("max", 4.0), ("min", 0.0), ("prod", 0.0)])
async def test_all_reduce_across_applies_each_reduction(op: str, expected: float) -> None:
    devices = [f"/job:worker/task:{task}" for task in range(3)]
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(cluster(*["worker"] * 3))
        runs = []
        for rank, server in enumerate(servers):
            with af.Graph().as_default() as graph:
                result = all_reduce_across(af.constant([2.0 * rank]), devices, rank, 0, op)
            session = await stack.enter_async_context(af.Session(server.target, graph=graph))
            runs.append(session.run(result, timeout=60.0))
        assert [value.tolist() for value in await asyncio.gather(*runs)] == [[expected]] * 3


async def test_a_program_that_is_ahead_waits_for_the_others() -> None:
    programs = [Program(rank, 2) for rank in range(2)]
    async with AsyncExitStack() as stack:
        await start(stack, programs)
        first, _ = await asyncio.gather(programs[0].run(0, [1.0]), programs[1].run(0, [2.0]))
        assert first["value"] == [3.0]
        async with asyncio.TaskGroup() as group:
            ahead = group.create_task(programs[0].run(1, [10.0]))
            async with asyncio.timeout(60):
                while not (await programs[0].session.stuck_report()):  # noqa: ASYNC110  # no event signals the wait
                    await asyncio.sleep(0)
            assert not ahead.done()
            assert (await programs[1].run(1, [20.0]))["value"] == [30.0]
        assert ahead.result()["value"] == [30.0]


async def test_a_step_that_failed_is_repeated_under_its_number() -> None:
    """One program times out before the others arrive. The values that it has sent are replaced by its next try."""
    programs = [Program(rank, 3) for rank in range(3)]
    async with AsyncExitStack() as stack:
        await start(stack, programs)
        for step in range(3):
            with pytest.raises(af.errors.DeadlineExceededError):
                await programs[step].run(step, [1.0], timeout=0.05)
            results = await asyncio.gather(*(p.run(step, [1.0]) for p in programs))
            assert [r["value"].tolist() for r in results] == [[3.0]] * 3
            again = await programs[step].run(step, [1.0])  # the others have finished this step already
            assert again["value"].tolist() == [3.0]


async def test_all_programs_may_return_to_an_earlier_step() -> None:
    programs = [Program(rank, 3) for rank in range(3)]
    async with AsyncExitStack() as stack:
        await start(stack, programs)
        for life in (1.0, 10.0):
            for step in range(3, 6):
                results = await asyncio.gather(*(p.run(step, [life * step]) for p in programs))
                assert [r["value"].tolist() for r in results] == [[3 * life * step]] * 3


async def test_different_sizes_are_an_error() -> None:
    programs = [Program(rank, 2) for rank in range(2)]
    async with AsyncExitStack() as stack:
        await start(stack, programs)
        runs = (p.run(0, np.ones(size), timeout=20.0) for p, size in zip(programs, (2, 4), strict=True))
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert any(isinstance(r, af.errors.InvalidArgumentError) for r in results)


@pytest.mark.parametrize(
    ("rank", "devices", "op", "message"),
    [
        (2, ["a", "b"], "sum", "rank"),
        (-1, ["a", "b"], "sum", "rank"),
        (0, [], "sum", "rank"),
        (0, ["a"], "none", "unknown"),
    ],
)
def test_invalid_arguments_are_rejected(rank: int, devices: list[str], op: str, message: str) -> None:
    with pytest.raises(af.errors.InvalidArgumentError, match=message):
        all_reduce_across(af.constant(1.0), devices, rank, 0, op)
