"""Bounds on messages about owners of resources: devices of this cluster, sizes, and no blocking of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError, OpError, PermissionDeniedError, ResourceExhaustedError
from aioflow.net.channel import Channel, Reply, ServiceRequest
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.limits import Limits
from aioflow.net.messages import CLAIM, HOLDS, SETTLE
from aioflow.net.resource_directory import Holdings, Resource, ResourceDirectory, pack_texts, unpack_texts
from aioflow.net.server import Server
from aioflow.net.transports import connect, listen
from aioflow.runtime.worker import Worker
from tests.net.clusters import inproc

TASK = "/job:ps/replica:0/task:0"
DEVICE = f"{TASK}/device:CPU:0"


@asynccontextmanager
async def hostile_client(limits: Limits, is_task: bool = True) -> AsyncIterator[tuple[Server, Channel]]:
    """Yield a server with these limits, and a channel to it whose own end has default limits."""
    async with Server({"ps": inproc(1)}, "ps", 0, options=CommOptions(limits=limits, heartbeat=5.0)) as server:
        options = CommOptions(heartbeat=5.0, is_task=is_task)
        comm = await connect(server.target.removeprefix("aioflow://"), 5.0, options)
        async with Channel(comm) as channel:
            yield server, channel


async def resolved(channel: Channel, *rows: list[str]) -> list[str]:
    reply = await channel.call(SETTLE, {}, [pack_texts(rows)], timeout=60)
    return [device for (device,) in unpack_texts(reply.tensors, 1, len(rows))]


async def refusal(channel: Channel, *rows: list[str]) -> OpError:
    with pytest.raises(OpError) as raised:
        await resolved(channel, *rows)
    return raised.value


@pytest.mark.parametrize(
    "device",
    [
        *("/job:nobody/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0", "/cpu:0", ""),
        *(TASK, f"{TASK}/device:CPU:*", "/job:ps/task:0/device:CPU:0", f"{TASK}/device:CPU:{'9' * 5000}"),
    ],
)
async def test_resource_must_be_on_a_device_of_the_cluster(device: str) -> None:
    async with hostile_client(Limits()) as (_, channel):
        error = await refusal(channel, ["", "v", "", device])
        assert isinstance(error, InvalidArgumentError | ResourceExhaustedError)
        assert error.expected
        assert error.actual
        assert await resolved(channel, ["", "v", "", DEVICE]) == [DEVICE], "nothing was decided"


@pytest.mark.parametrize("column", range(4))
async def test_length_of_names_is_bounded(column: int) -> None:
    async with hostile_client(Limits(name_bytes=100)) as (_, channel):
        row = ["", "v", "", DEVICE]
        row[column] = "n" * 101
        error = await refusal(channel, ["", "u", "", DEVICE], row)
        assert isinstance(error, ResourceExhaustedError)
        assert ("100" in str(error.expected), error.actual) == (True, "101")
        for kind, asked in ((HOLDS, ["", "n" * 101]), (CLAIM, row)):
            with pytest.raises(ResourceExhaustedError, match="too long"):
                await channel.call(kind, {}, [pack_texts([asked])], timeout=60)


async def test_messages_and_directory_are_bounded() -> None:
    async with hostile_client(Limits(rows=4, resources=6, resource_bytes=1000, places=3)) as (_, channel):
        rows = [["", name, "", DEVICE] for name in "abcdefgh"]
        assert isinstance(await refusal(channel, *rows[:5]), ResourceExhaustedError)
        for kind, asked in ((HOLDS, [["", name] for name in "abcde"]), (CLAIM, rows[:5])):
            with pytest.raises(ResourceExhaustedError, match="one message"):
                await channel.call(kind, {}, [pack_texts(asked)], timeout=60)
        assert await resolved(channel, *rows[:4]) == [DEVICE] * 4
        assert isinstance(await refusal(channel, *rows[4:7]), ResourceExhaustedError)
        assert await resolved(channel, *rows[:4]) == [DEVICE] * 4, "what is known costs nothing more"
        assert await resolved(channel, *rows[4:6]) == [DEVICE] * 2
        assert isinstance(await refusal(channel, rows[6]), ResourceExhaustedError)
    async with hostile_client(Limits(resource_bytes=1000)) as (_, channel):
        await resolved(channel, ["", "a" * 700, "", DEVICE])
        error = await refusal(channel, ["", "b" * 300, "", DEVICE])
        assert isinstance(error, ResourceExhaustedError)
        assert "1000 bytes" in str(error.expected)
    async with hostile_client(Limits(places=3)) as (_, channel):
        places = [["", "v", f"/device:CPU:{i}", f"{TASK}/device:CPU:{i}"] for i in range(4)]
        assert isinstance(await refusal(channel, *places), ResourceExhaustedError)
        assert len(await resolved(channel, *places[:3])) == 3
        assert isinstance(await refusal(channel, places[3]), ResourceExhaustedError)


async def test_concurrent_lookups_share_the_limit() -> None:
    """Resolve names concurrently: each call asks the other tasks before its names are stored."""
    go_on = asyncio.Event()

    @asynccontextmanager
    async def reach(task: str) -> AsyncIterator[Any]:
        await go_on.wait()
        if task:
            raise InvalidArgumentError("it says nothing")
        yield None

    table = ResourceDirectory(Holdings(Worker(task=TASK)), lambda: ["silent"], reach, Limits(resources=3))
    async with asyncio.TaskGroup() as tg:
        first = tg.create_task(outcome(table, "ab"))
        second = tg.create_task(outcome(table, "cd"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        go_on.set()
    assert {type(first.result()), type(second.result())} == {InvalidArgumentError, ResourceExhaustedError}
    assert table._room.taken == (0, 0), "what was not kept takes no room"


async def outcome(table: ResourceDirectory, names: str) -> OpError | None:
    try:
        await table.resolve([Resource("", name, "") for name in names], [DEVICE] * len(names))
    except OpError as error:
        return error
    return None


async def test_task_may_claim_only_its_own_devices() -> None:
    async def holds(request: ServiceRequest) -> Reply:
        return Reply({}, [pack_texts([["", "v", "", "/job:elsewhere/replica:0/task:0/device:CPU:0"]])])

    async def serve(comm: Comm) -> None:
        async with Channel(comm, {HOLDS: holds}) as channel:
            await channel.wait_ended()

    (address,) = inproc(1)

    @asynccontextmanager
    async def reach(task: str) -> AsyncIterator[Channel]:
        async with Channel(await connect(address, 5.0)) as channel:
            yield channel

    async with listen(address, serve):
        table = ResourceDirectory(Holdings(Worker(task=TASK)), lambda: ["/job:ps/replica:0/task:1"], reach)
        with pytest.raises(InvalidArgumentError, match="cannot be there"):
            await table.resolve([Resource("", "v", "")], [DEVICE])


async def test_large_message_does_not_block_the_event_loop() -> None:
    """Count iterations of the event loop, which does not depend on the speed of the machine."""
    limits = Limits()
    rows = np.empty((limits.rows, 4), object)
    rows[:, 0] = rows[:, 2] = b""
    rows[:, 1] = [b"v%d" % i for i in range(limits.rows)]
    rows[:, 3] = DEVICE.encode()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with hostile_client(limits) as (_, channel), asyncio.TaskGroup() as tg:
        counter = tg.create_task(count())
        for kind, columns in ((SETTLE, 4), (HOLDS, 2)):
            turns = 0
            await channel.call(kind, {}, [rows[:, :columns]], timeout=60)
            assert turns > limits.rows / 1024
        counter.cancel()


@pytest.mark.parametrize(("kind", "columns"), [(HOLDS, 2), (CLAIM, 4)])
async def test_clients_may_not_use_requests_between_tasks(kind: str, columns: int) -> None:
    async with hostile_client(Limits(), is_task=False) as (server, channel):
        with pytest.raises(PermissionDeniedError, match="for tasks of the cluster"):
            await channel.call(kind, {}, [pack_texts([["", "v", "", DEVICE][:columns]])], timeout=60)
        assert not server.homes.holdings.look_up([("", "v")])
        assert await resolved(channel, ["", "v", "", DEVICE]) == [DEVICE]
