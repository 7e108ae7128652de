"""Bounds on what a client may register with a worker, and on the names that the worker keeps of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Node, OutputSpec, Part
from aioflow.errors import OpError, ResourceExhaustedError
from aioflow.net import worker_service
from aioflow.net.channel import Channel
from aioflow.net.comm import CommOptions
from aioflow.net.limits import Limits, Quota
from aioflow.net.messages import DEREGISTER, REGISTER, config_document
from aioflow.net.plan_codec import encode_part
from aioflow.net.server import Server
from aioflow.net.transports import connect
from tests.net.clusters import inproc

TASK = "/job:ps/replica:0/task:0"


@asynccontextmanager
async def hostile_client(**limits: int) -> AsyncIterator[tuple[Server, Channel]]:
    options = CommOptions(limits=Limits(**limits), heartbeat=5.0)
    async with Server({"ps": inproc(1)}, "ps", 0, options=options) as server, asyncio.timeout(60):
        comm = await connect(server.target.removeprefix("aioflow://"), 5.0, CommOptions(heartbeat=5.0))
        async with Channel(comm) as channel:
            yield server, channel


def part(size: int = 1) -> Part:
    """Return a part with one constant of `size` bytes."""
    value = np.zeros(size, np.uint8)
    node = Node("c", "Const", (), (), {"value": value, "dtype": af.uint8}, (OutputSpec(af.uint8, (size,)),))
    return Part(TASK, {f"{TASK}/device:CPU:0": ClientGraph({"c": node}, 0, 0, ("c",))})


async def register(channel: Channel, what: Part, peers: dict[str, int] | None = None) -> int:
    document, tensors = encode_part(what)
    header = {"part": document, "config": config_document(af.SessionConfig()), "peers": peers or {}}
    reply = await channel.call(REGISTER, header, tensors, timeout=60)
    handle: int = reply.header["handle"]
    return handle


async def refusal(channel: Channel, what: Part) -> OpError:
    with pytest.raises(OpError) as raised:
        await register(channel, what)
    return raised.value


async def test_number_of_parts_per_client_is_bounded() -> None:
    async with hostile_client(parts=3) as (server, channel):
        handles = [await register(channel, part()) for _ in range(3)]
        error = await refusal(channel, part())
        assert isinstance(error, ResourceExhaustedError)
        assert "at most 3" in str(error.expected)
        assert (await server.worker.state()).registered == 3
        await channel.call(DEREGISTER, {"handle": handles[0]}, timeout=60)
        await channel.call(DEREGISTER, {"handle": handles[0]}, timeout=60)
        await register(channel, part())
        assert isinstance(await refusal(channel, part()), ResourceExhaustedError), "one was forgotten, though twice"


async def test_bytes_of_parts_per_client_are_bounded() -> None:
    async with hostile_client(part_bytes=1 << 20) as (server, channel):
        for _ in range(2):
            handle = await register(channel, part(600_000))
            assert isinstance(await refusal(channel, part(600_000)), ResourceExhaustedError)
            await channel.call(DEREGISTER, {"handle": handle}, timeout=60)
        for _ in range(2000):
            try:
                await register(channel, part())
            except ResourceExhaustedError:
                break
        assert 10 < (await server.worker.state()).registered < 300, "a node counts for more than its bytes"


async def test_concurrent_registrations_share_the_limit() -> None:
    async with hostile_client(parts=3) as (server, channel):
        done = await asyncio.gather(*(register(channel, part()) for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(outcome, int) for outcome in done) == 3
        assert (await server.worker.state()).registered == 3


async def test_refused_part_uses_no_quota() -> None:
    async with hostile_client(parts=1) as (_, channel):
        wrong = Part(TASK, {"/job:nobody/replica:0/task:0/device:CPU:0": part().subgraphs[f"{TASK}/device:CPU:0"]})
        for _ in range(3):
            assert not isinstance(await refusal(channel, wrong), ResourceExhaustedError)
        await register(channel, part())


async def test_incarnations_of_unknown_tasks_are_not_kept() -> None:
    async with hostile_client() as (_, channel):
        for number in range(5):
            await register(channel, part(), {f"/job:{'x' * 1000}_{number}_{i}": 1 for i in range(40)} | {TASK: 7})
        clients = [found for found in gc.get_objects() if type(found) is worker_service._Client]
        assert [client._peers for client in clients if not client.ended.is_set()] == [{TASK: 7}]


def test_quota_counts_items_and_bytes() -> None:
    quota = Quota("things", 2, 100)
    quota.take(1, 60)
    with pytest.raises(ResourceExhaustedError, match="things") as raised:
        quota.take(1, 41)
    assert (str(raised.value.expected), str(raised.value.actual)) == ("at most 2, of 100 bytes", "2, of 101 bytes")
    with pytest.raises(ResourceExhaustedError):
        quota.take(2, 0)
    with pytest.raises(ValueError, match="fails"), quota.reserved(1, 40):
        raise ValueError("what is in the block fails")
    assert quota.taken == (1, 60)
    quota.give(1, 60)
    assert quota.taken == (0, 0)
