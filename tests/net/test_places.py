"""Places at a listener: tasks of the cluster have their own, and of clients those that are idle give way to others."""

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
    """One that has asked for something."""
    opened = await stack.enter_async_context(Channel(await connect(target_address(target), 5.0, options)))
    await opened.call(STATE, timeout=SECONDS)
    return opened


@pytest.mark.parametrize("tcp", [False, True])
async def test_idle_clients_keep_no_task_and_no_client_out(tcp: bool) -> None:
    """Three hundred of them, where there are places for twenty."""
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
        assert "idle for longest" in str(error)
        assert "at most 20" in str(error)
        assert not error.may_have_been_applied
        assert sum(one.error is None for one in idle) <= 1


@pytest.mark.parametrize("tcp", [False, True])
async def test_who_has_something_there_gives_way_last_and_the_longest_idle_first(tcp: bool) -> None:
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
async def test_tasks_have_so_many_places_of_their_own(address: str) -> None:
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
async def test_who_has_only_the_secret_of_clients_takes_no_place_of_a_task(knows_all: bool) -> None:
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
    """Two servers; sessions on the second reach the first by a connection, and it has so many for them."""
    spec = {"ps": inproc(1), "worker": inproc(1)}
    options = replace(OPTIONS, connections=connections)
    async with (
        asyncio.timeout(SECONDS),
        Server(spec, "ps", 0, options=options) as ps,
        Server(spec, "worker", 0) as worker,
    ):
        yield ps, worker


async def test_a_session_that_gave_way_goes_on() -> None:
    """It connects again by itself, and what it has made is there."""
    with af.device("/job:ps"):
        v = af.Variable(1.0)
        more = v.assign_add(1.0)
    async with two_tasks(1) as (ps, worker), af.Session(worker.target) as one, af.Session(worker.target) as other:
        await one.run(v.initializer)
        for value in range(2, 20, 2):
            assert await one.run(more) == value
            assert await other.run(more) == value + 1
        assert ps.status().activity.connections <= 2


async def test_a_session_with_a_step_does_not_give_way_and_another_one_is_told_why() -> None:
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
        with given_up_at_once(), pytest.raises(UnavailableError, match="none of them is idle") as raised:
            await other.run(put)
        assert not raised.value.may_have_been_applied
        await one.run(put)
        assert await waiting == 7.0
        await one.run(put)
        assert await other.run(taken) == 7.0


@pytest.mark.parametrize("tcp", [False, True])
async def test_who_gives_way_is_told_what_has_ended_without_an_answer(tcp: bool) -> None:
    """Otherwise the error would say of a part that was not to answer that it has not begun."""
    async with server(tcp, 1) as it, AsyncExitStack() as stack:
        first = await channel(stack, it.target)
        handle = await register(first, part())
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        asked = Run(handle, trace=False, beat=0, patience=SECONDS, seconds=None, answered=False)
        assert first.calls.begin(77, packed(RUN, asked.document()), [], answer)
        await first.call(STATE, timeout=SECONDS)  # all that was asked before has been done
        assert not answer.done()
        await channel(stack, it.target)
        assert "idle for longest" in str(await first.wait_ended())
        assert answer.result() == Reply()
        first.calls.forget(77)


async def test_hundreds_that_come_at_once_are_all_let_in() -> None:
    """As the tasks of a large cluster do when it starts: none gives way to another, though none has proved itself."""
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
