"""Conformance suite for workers (`aioflow.testing.check_worker`), run on every kind of worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import Part
from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError, UnavailableError
from aioflow.net.channel import Channel
from aioflow.net.remote_worker import RemoteWorker
from aioflow.net.server import client_options, target_address
from aioflow.net.transports import connect
from aioflow.runtime.step import Step
from aioflow.testing.check_worker import (
    JOINT_CHECKS,
    SINGLE_CHECKS,
    Check,
    Factory,
    beside,
    check_worker,
    in_process,
    served,
)
from tests.net.clusters import cluster
from tests.runtime.split import split_plan

FACTORIES = {"local": in_process(), "beside": beside(), "inproc": served("inproc"), "tcp": served("tcp")}
CASES = [(name, check) for name in FACTORIES for check in SINGLE_CHECKS] + [
    (name, check) for name in FACTORIES if name != "local" for check in JOINT_CHECKS
]


@pytest.mark.parametrize(("name", "check"), CASES, ids=lambda value: getattr(value, "__name__", value))
async def test_worker_passes_conformance_check(name: str, check: Check) -> None:
    factory: Factory = FACTORIES[name]
    async with asyncio.timeout(120), factory() as workers:
        await check(workers)


@pytest.mark.parametrize(
    "value", [np.zeros(2), np.zeros(3, np.float32), np.zeros((2, 1), np.float32), np.array([b"a", b"b"], object)]
)
async def test_run_rejects_feeds_of_another_dtype_or_shape(value: Any) -> None:
    # Kernels rely on the dtypes and shapes of the plan, so feeds from a connection must be checked against them.
    with af.Graph().as_default():
        x = af.placeholder("float32", [2])
        (part,) = split_plan([x + 1.0], [x], 0, 1).parts.values()
    async with asyncio.timeout(120), served("inproc")() as workers:
        worker = workers[0]
        (device, *_) = (await worker.state()).devices
        (graph,) = part.subgraphs.values()
        handle = await worker.register(Part(part.task, {device: graph}), 1, SessionConfig())
        with pytest.raises(InvalidArgumentError, match="feed 0"):
            await worker.run(handle, [value], Step(id=1))
        results: list[Any] = await worker.run(handle, [np.ones(2, np.float32)], Step(id=2))
        assert results[0].tolist() == [2, 2]


async def test_check_worker_passes_for_in_process_workers() -> None:
    await check_worker(in_process())


async def failure(run: Awaitable[Any]) -> Any:
    with pytest.raises(UnavailableError) as caught:
        await run
    return caught.value


async def test_hello_of_a_reconnected_client_stops_its_earlier_steps() -> None:
    # After a network failure the client cannot announce the end of its old connection, which still seems to be open.
    with af.Graph().as_default():
        queue = af.FIFOQueue(1, [af.float32], shapes=[[]])
        (part,) = split_plan([queue.dequeue()], [], 0, 1).parts.values()
    (graph,) = part.subgraphs.values()
    async with asyncio.timeout(120), cluster("ps") as (server,), asyncio.TaskGroup() as group:
        (device,) = server.worker.devices
        address, ours = target_address(server.target), client_options()
        async with (
            Channel(await connect(address, options=client_options())) as of_another,
            Channel(await connect(address, options=ours)) as before,
            Channel(await connect(address, options=ours)) as after,
        ):
            for number, channel in enumerate((of_another, before), 1):
                worker = RemoteWorker(channel)
                await worker.hello()
                handle = await worker.register(Part(server.task, {device: graph}), 0, SessionConfig())
                group.create_task(failure(worker.run(handle, [], Step(id=number))))
                while (await worker.state()).running < number:
                    pass
            await RemoteWorker(after).hello()
            assert (await server.worker.state()).running == 1, "that of the other client goes on"
