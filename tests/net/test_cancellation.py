"""Cancellation and closing of sessions, servers, listeners and connections at each turn of the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Collection
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import AbortedError, OpError
from aioflow.net.comm import Comm
from aioflow.net.remote_step import RemoteStep, Standing, outcomes
from aioflow.net.server import Server
from aioflow.net.status_page import serve_status
from aioflow.net.task_worker import WorkerSession
from aioflow.net.transports import connect, listen
from aioflow.sync.background import Background
from tests.net.clusters import cluster, inproc
from tests.support.cancelling import cancel_at_each_turn, turns_until_ended
from tests.support.loops import on_each_loop

LIMIT = 60.0
TURNS = 200
on_each_transport = pytest.mark.parametrize("tcp", [False, True], ids=["inproc", "tcp"])


def step_of_three_tasks() -> tuple[af.Graph, af.Tensor]:
    """Return a graph of a step on two servers, with a Python function at the client in between."""
    graph = af.Graph()
    with graph.as_default():
        with af.device("/job:a"):
            x = af.constant(1.0) + 1.0
        (x,) = af.py_func(lambda value: value, [x], [af.float32])
        with af.device("/job:b"):
            return graph, x * 2.0


def address(tcp: bool) -> str:
    return "tcp://127.0.0.1:0" if tcp else inproc(1)[0]


async def until_ended(comm: Comm) -> None:
    with suppress(OpError):
        await comm.receive()


async def until_registered(server: Server, count: int) -> None:
    async with asyncio.timeout(LIMIT):
        while (await server.worker.state()).registered != count:  # noqa: ASYNC110
            await asyncio.sleep(0)


# ── sessions ──


@on_each_loop
@on_each_transport
async def test_session_leaves_nothing_when_cancelled_at_each_turn(tcp: bool) -> None:
    graph, y = step_of_three_tasks()

    async with cluster("a", "b", tcp=tcp) as servers:

        async def use() -> None:
            async with af.Session(servers[0].target, graph=graph) as session:
                assert await session.run(y) == 4.0

        async def nothing_is_registered() -> None:
            for server in servers:
                await until_registered(server, 0)

        await cancel_at_each_turn(use, nothing_is_registered, turns=TURNS, until_ended=True)


@on_each_loop
@on_each_transport
async def test_run_leaves_no_registered_part_when_cancelled_at_each_turn(tcp: bool) -> None:
    graph, y = step_of_three_tasks()

    async with cluster("a", "b", tcp=tcp) as servers, af.Session(servers[0].target, graph=graph) as session:
        await session.run(y)  # opens the connections, which stay

        async def run() -> None:
            await session._cache.drop()
            assert await session.run(y) == 4.0

        async def only_steps_of_the_cache_are_registered() -> None:
            for server in servers:
                await until_registered(server, len(session._cache.steps))
            assert await session.run(y) == 4.0

        await cancel_at_each_turn(run, only_steps_of_the_cache_are_registered, turns=TURNS, until_ended=True)


@on_each_loop
@on_each_transport
async def test_run_raises_plain_error_when_session_closes_at_each_turn(tcp: bool) -> None:
    """Raise no ExceptionGroup and no CancelledError of asyncio: nothing has cancelled the caller."""
    graph, y = step_of_three_tasks()

    async with cluster("a", "b", tcp=tcp) as servers:
        for turns in turns_until_ended(TURNS):
            session = af.Session(servers[0].target, graph=graph)
            run = asyncio.get_running_loop().create_task(session.run(y))
            for _ in range(turns):
                await asyncio.sleep(0)
            has_ended = run.done()
            async with asyncio.timeout(LIMIT):
                await session.close()
                await asyncio.wait([run])
            assert not run.cancelled(), turns
            error = run.exception()
            assert error is None or isinstance(error, OpError), turns
            for server in servers:
                await until_registered(server, 0)
            if has_ended:
                break


@on_each_loop
@pytest.mark.parametrize("device", ["/job:client", "/job:a"])
async def test_session_close_leaves_nothing_when_cancelled_while_a_kernel_runs(device: str) -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(value: Any) -> Any:
        begun.set()
        go.wait(LIMIT)
        return value

    graph = af.Graph()
    with graph.as_default():
        with af.device("/job:a"):
            x = af.constant(1.0) + 1.0
        (y,) = af.py_func(hold, [x], [af.float32])

    async with cluster("a") as (server,):
        tasks = asyncio.all_tasks()
        session = af.Session(server.target, graph=graph)
        run = asyncio.get_running_loop().create_task(session.run(y))
        async with asyncio.timeout(LIMIT):
            while not begun.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)
            close = asyncio.get_running_loop().create_task(session.close())
            for _ in range(10):
                await asyncio.sleep(0)
                close.cancel()
            go.set()
            await asyncio.gather(run, close, return_exceptions=True)
            while asyncio.all_tasks() - tasks:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await until_registered(server, 0)


class ClosedLink:
    """A connection to a task (`remote_step.Way`) whose session closes as soon as it is open."""

    task, address, restarts, is_told = "/job:a/replica:0/task:0", "inproc://a", 0, True

    @property
    def worker(self) -> WorkerSession:
        raise AbortedError("the session is closed")

    def tell(self) -> None: ...

    async def open(self, patience: float) -> None: ...


async def test_remote_step_open_raises_plain_error_when_session_closes() -> None:
    async def resolve(tasks: Collection[str]) -> None: ...

    part: Any = SimpleNamespace(task=ClosedLink.task)
    way: Any = ClosedLink()
    standing = Standing(resolve, lambda: True)
    step = RemoteStep([(way, part)], af.SessionConfig(), 1.0, Background(), standing)
    with pytest.raises(AbortedError, match="the session is closed"):
        await step.open()


async def test_outcomes_raises_the_error_of_its_iterable() -> None:
    async def call() -> None:
        raise AssertionError("begun")

    def calls() -> Any:
        yield call()
        raise AbortedError("the session is closed")

    with pytest.raises(AbortedError):
        await outcomes(calls())


async def test_outcomes_closes_calls_that_have_not_begun() -> None:
    async def call() -> None:
        raise AssertionError("begun")

    calls = [call(), call()]
    task = asyncio.get_running_loop().create_task(outcomes(calls))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert [inspect.getcoroutinestate(c) for c in calls] == [inspect.CORO_CLOSED] * 2


# ── servers and connections ──


@on_each_loop
@on_each_transport
async def test_server_leaves_nothing_when_cancelled_at_each_turn(tcp: bool) -> None:
    async def serve() -> None:
        async with cluster("a", tcp=tcp) as (server,):
            await server.drain(1.0)

    await cancel_at_each_turn(serve, turns=TURNS, until_ended=True)


@on_each_loop
async def test_health_and_status_leave_nothing_when_cancelled_at_each_turn() -> None:
    async with cluster("a", "b", tcp=True) as servers:

        async def ask() -> None:
            async with af.Session(servers[0].target, graph=af.Graph()) as session:
                await session.health()

        await cancel_at_each_turn(ask, turns=TURNS, until_ended=True)


@on_each_loop
@on_each_transport
async def test_listener_leaves_nothing_when_cancelled_at_each_turn(tcp: bool) -> None:
    async def serve() -> None:
        async with listen(address(tcp), until_ended):
            await asyncio.sleep(0)

    await cancel_at_each_turn(serve, turns=TURNS, until_ended=True)


@on_each_loop
@on_each_transport
async def test_connect_leaves_nothing_when_cancelled_at_each_turn(tcp: bool) -> None:
    async with listen(address(tcp), until_ended) as listener:

        async def use() -> None:
            async with await connect(listener.address):
                pass

        await cancel_at_each_turn(use, turns=TURNS, until_ended=True)


@on_each_loop
async def test_status_page_leaves_nothing_when_cancelled_at_each_turn() -> None:
    async with cluster("a") as (server,):

        async def serve() -> None:
            async with serve_status(server.status):
                await asyncio.sleep(0)

        await cancel_at_each_turn(serve, turns=TURNS, until_ended=True)
