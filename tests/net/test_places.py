"""Slots of a listener: tasks of the cluster have their own, and idle clients are evicted for others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

import aioflow as af
from aioflow.errors import UnavailableError
from aioflow.net.channel import Channel, Reply, packed
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.credentials import Credentials
from aioflow.net.messages import RUN, STATE, Run
from aioflow.net.server import Server, target_address
from aioflow.net.transports import connect, listen
from tests.net.clusters import given_up_at_once, inproc
from tests.net.test_hostile_clients import part, register

ADDRESSES = ["tcp://127.0.0.1:0", "inproc://places"]
SECONDS = 60.0
OPTIONS = CommOptions(heartbeat=5.0)
TASK = replace(OPTIONS, is_task=True)


@asynccontextmanager
async def server(tcp: bool, connections: int, peers: int = 4) -> AsyncIterator[Server]:
    cluster = {"ps": ["127.0.0.1:0"]} if tcp else {"ps": inproc(1)}
    options = replace(OPTIONS, connections=connections, peers=peers)
    async with asyncio.timeout(SECONDS), Server(cluster, "ps", 0, options=options) as it:
        yield it


async def channel(stack: AsyncExitStack, target: str, options: CommOptions = OPTIONS) -> Channel:
    """Return a channel that has made one call."""
    opened = await stack.enter_async_context(Channel(await connect(target_address(target), 5.0, options)))
    await opened.call(STATE, timeout=SECONDS)
    return opened


@pytest.mark.parametrize("tcp", [False, True])
async def test_idle_clients_keep_no_task_and_no_client_out(tcp: bool) -> None:
    """Open three hundred idle connections against a limit of twenty."""
    async with server(tcp, 20) as it, AsyncExitStack() as stack:
        idle = []
        for _ in range(300):
            idle.append(await stack.enter_async_context(Channel(await connect(target_address(it.target)))))
            await asyncio.sleep(0)
        task = await channel(stack, it.target, TASK)
        client = await channel(stack, it.target)
        more = [await channel(stack, it.target) for _ in range(18)]
        for one in (task, client, *more):
            await one.call(STATE, timeout=SECONDS)
        error = await idle[0].wait_ended()
        assert "idle the longest" in str(error)
        assert "at most 20" in str(error)
        assert not error.may_have_been_applied
        assert sum(one.error is None for one in idle) <= 1


@pytest.mark.parametrize("tcp", [False, True])
async def test_longest_idle_client_is_evicted_and_owners_last(tcp: bool) -> None:
    async with server(tcp, 3) as it, AsyncExitStack() as stack:
        owner, first, second = [await channel(stack, it.target) for _ in range(3)]
        await register(owner, part())
        await first.call(STATE, timeout=SECONDS)
        await second.call(STATE, timeout=SECONDS)
        await first.call(STATE, timeout=SECONDS)
        third = await channel(stack, it.target)
        await second.wait_ended()
        fourth = await channel(stack, it.target)
        await first.wait_ended()
        for one in (third, fourth):
            await register(one, part())
        await channel(stack, it.target)
        await owner.wait_ended()
        assert third.error is fourth.error is None


@pytest.mark.parametrize("address", ADDRESSES)
async def test_tasks_have_slots_of_their_own(address: str) -> None:
    async def wait(comm: Comm) -> None:
        while await comm.receive() is not None:
            pass

    async with asyncio.timeout(SECONDS), listen(address, wait, CommOptions(connections=1, peers=2)) as listener:
        comms = [await connect(listener.address, 5, TASK) for _ in range(2)]
        comms.append(await connect(listener.address, 5, OPTIONS))
        for options, whose in ((TASK, "tasks"), (OPTIONS, "clients")):
            with pytest.raises(UnavailableError, match=f"too many connections of {whose}"):
                await (await connect(listener.address, 5, options)).receive()
        for comm in comms:
            assert not comm.closed
            await comm.close()


@pytest.mark.parametrize("knows_all", [False, True])
async def test_client_with_the_client_secret_takes_no_task_slot(knows_all: bool) -> None:
    secret = Credentials(b"0123456789abcdef0123456789abcdef")
    mine = secret if knows_all else secret.client()
    found: list[bool] = []

    async def handler(comm: Comm) -> None:
        found.append(comm.peer_is_task)
        await comm.receive()

    async with (
        asyncio.timeout(SECONDS),
        listen(ADDRESSES[0], handler, replace(OPTIONS, credentials=secret)) as listener,
    ):
        await (await connect(listener.address, 5, replace(TASK, credentials=mine))).close()
    assert found == [knows_all]


@asynccontextmanager
async def two_tasks(connections: int) -> AsyncIterator[tuple[Server, Server]]:
    """Run two servers; sessions on the second reach the first, which accepts `connections` clients."""
    spec = {"ps": inproc(1), "worker": inproc(1)}
    options = replace(OPTIONS, connections=connections)
    async with (
        asyncio.timeout(SECONDS),
        Server(spec, "ps", 0, options=options) as ps,
        Server(spec, "worker", 0) as worker,
    ):
        yield ps, worker


async def test_evicted_session_reconnects() -> None:
    """Reconnect automatically, with all resources still there."""
    with af.device("/job:ps"):
        v = af.Variable(1.0)
        more = v.assign_add(1.0)
    async with two_tasks(1) as (ps, worker), af.Session(worker.target) as one, af.Session(worker.target) as other:
        await one.run(v.initializer)
        for value in range(2, 20, 2):
            assert await one.run(more) == value
            assert await other.run(more) == value + 1
        assert ps.status().activity.connections <= 2


async def test_session_with_a_running_step_is_not_evicted() -> None:
    with af.device("/job:ps"):
        queue = af.FIFOQueue(1, [af.float32], shapes=[[]])
        taken, put = queue.dequeue(), queue.enqueue(7.0)
    async with (
        two_tasks(1) as (ps, worker),
        af.Session(worker.target) as one,
        af.Session(worker.target) as other,
        asyncio.TaskGroup() as tg,
    ):
        waiting = tg.create_task(one.run(taken))
        while not ps.status().activity.running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with given_up_at_once(), pytest.raises(UnavailableError, match="none of which is idle") as raised:
            await other.run(put)
        assert not raised.value.may_have_been_applied
        await one.run(put)
        assert await waiting == 7.0
        await one.run(put)
        assert await other.run(taken) == 7.0


@pytest.mark.parametrize("tcp", [False, True])
async def test_eviction_reports_parts_that_ended_without_an_answer(tcp: bool) -> None:
    """Report them: otherwise the error would claim that a part without an answer had not begun."""
    async with server(tcp, 1) as it, AsyncExitStack() as stack:
        first = await channel(stack, it.target)
        handle = await register(first, part())
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        asked = Run(handle, trace=False, beat=0, patience=SECONDS, seconds=None, answered=False)
        assert first.calls.begin(77, packed(RUN, asked.document()), [], answer)
        await first.call(STATE, timeout=SECONDS)  # answered after all earlier requests were handled
        assert not answer.done()
        await channel(stack, it.target)
        assert "idle the longest" in str(await first.wait_ended())
        assert answer.result() == Reply()
        first.calls.forget(77)


async def test_hundreds_of_simultaneous_connections_are_admitted() -> None:
    """Connect at once like the tasks of a large cluster at its start: no unauthenticated connection evicts another."""
    met = 0

    async def handler(comm: Comm) -> None:
        nonlocal met
        met += 1
        await comm.receive()

    options = CommOptions(connections=1000)
    async with asyncio.timeout(SECONDS), listen("tcp://127.0.0.1:0", handler, options) as listener:
        comms = await asyncio.gather(*(connect(listener.address, SECONDS) for _ in range(300)))
        assert not any(comm.closed for comm in comms)
        await asyncio.gather(*(comm.close() for comm in comms))
    assert met == 300
