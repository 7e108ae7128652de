"""Entering and leaving a session: the call that closes it, errors, and leftovers."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import weakref
from collections.abc import AsyncIterator, Generator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.concurrency.context_stack import ContextStack
from aioflow.graph.default_session import SESSIONS
from aioflow.net.comm import Comm
from aioflow.net.server import Server
from aioflow.net.transports import listen
from aioflow.runtime.step import Step
from tests.net.clusters import given_up_at_once
from tests.support.waiting import until_collected

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


# -- closing ---------------------------------------------------------------------------------------------------------


async def test_leaving_the_outermost_block_closes_the_session() -> None:
    x = af.constant(1.0)
    session = af.Session()
    async with session:
        async with session:
            with session:
                assert await x.eval() == 1.0
            assert await x.eval() == 1.0
        assert not session.closed
        assert af.get_default_session() is session
        assert await x.eval() == 1.0
    assert session.closed


async def test_leaving_as_default_does_not_close() -> None:
    session = af.Session()
    with session.as_default():
        assert af.get_default_session() is session
    assert not session.closed
    await session.close()


async def test_leaving_without_entering_closes() -> None:
    session = af.Session()
    await session.__aexit__(None, None, None)
    assert session.closed
    await session.__aexit__(None, None, None)
    session.__exit__(None, None, None)


@pytest.mark.parametrize("target", ["", "aioflow://127.0.0.1:1"])
async def test_closed_session_cannot_be_entered(target: str) -> None:
    session = af.Session(target)
    await session.close()
    with pytest.raises(af.errors.ClosedSessionError):
        async with session:
            pass
    with pytest.raises(af.errors.ClosedSessionError), session:
        pass
    with pytest.raises(af.errors.ClosedSessionError):
        session.run_sync(af.constant(1.0))
    assert af.get_default_session() is None


async def test_closed_session_is_not_a_default() -> None:
    x = af.constant(1.0)
    async with af.Session() as outer:
        async with af.Session() as inner:
            assert af.get_default_session() is inner
            await inner.close()
            assert af.get_default_session() is outer
            assert await x.eval() == 1.0
        await outer.close()
        with pytest.raises(af.errors.FailedPreconditionError, match="no default session"):
            await x.eval()


async def test_task_does_not_keep_the_sessions_that_it_was_started_in() -> None:
    end = asyncio.Event()

    async def wait() -> Any:
        await end.wait()
        return af.get_default_session()

    async with asyncio.TaskGroup() as group:
        with af.Graph().as_default():
            async with af.Session() as session:
                await session.run(af.constant(1.0))
                task = group.create_task(wait())
                await asyncio.sleep(0)
        references: list[weakref.ref[Any]] = [weakref.ref(session), weakref.ref(session.graph)]
        del session
        until_collected(*references)
        end.set()
    assert task.result() is None


async def test_task_keeps_its_default_session_while_it_is_open() -> None:
    async def look() -> Any:
        await asyncio.sleep(0)
        return af.get_default_session()

    async with af.Session() as outer, af.Session() as inner, asyncio.TaskGroup() as group:
        with outer.as_default():
            task = group.create_task(look())
        assert af.get_default_session() is inner
    assert task.result() is outer


async def test_long_lived_context_does_not_accumulate_entries() -> None:
    """The program opens each session before it closes the previous one, all in one context."""
    last = await af.Session().__aenter__()
    for _ in range(50):
        following = await af.Session().__aenter__()
        await asyncio.gather(last.__aexit__(None, None, None))  # gather leaves it in another task
        last = following
    assert len(SESSIONS.entries()) < 4
    await last.__aexit__(None, None, None)


async def test_server_and_session_may_be_left_by_other_tasks() -> None:
    """Many servers run start-up and shutdown in separate tasks, each with a timeout."""
    x = af.constant(1.0)
    server = Server({"local": ["127.0.0.1:0"]})

    async def start() -> af.Session:
        await server.__aenter__()
        return await asyncio.wait_for(af.Session(server.target).__aenter__(), 20)

    async def stop(session: af.Session) -> None:
        await session.__aexit__(None, None, None)
        await server.__aexit__(None, None, None)

    (session,) = await asyncio.gather(start())
    assert await session.run(x) == 1.0
    await asyncio.wait_for(stop(session), 20)
    assert session.closed
    assert af.get_default_session() is None


# -- errors ----------------------------------------------------------------------------------------------------------


async def test_error_of_the_close_does_not_hide_the_error_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise af.errors.UnavailableError("no answer")

    def failing() -> af.Session:
        session = af.Session()
        monkeypatch.setattr(session._cluster, "close", fail)
        return session

    with pytest.raises(KeyError) as raised:
        async with failing() as session:
            raise KeyError("mine")
    assert session.closed
    assert "no answer" in raised.value.__notes__[0]
    with pytest.raises(af.errors.UnavailableError):
        async with failing() as session:
            pass
    assert session.closed
    assert af.get_default_session() is None


async def test_cancelled_close_closes_the_rest() -> None:
    """The close is cancelled while it waits for a prefetching iterator, but must still close all else."""
    ending, may_end = asyncio.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def numbers() -> AsyncIterator[np.float32]:
        try:
            while True:
                yield np.float32(1.0)
        finally:
            ending.set()
            await may_end.wait()

    async def note() -> np.float32:
        loops.append(asyncio.get_running_loop())
        return np.float32(2.0)

    element = af.from_async_iterator(numbers, af.float32, [], prefetch=1)
    noted = af.py_coroutine(note, [], af.float32)
    session = af.Session()

    async def use() -> None:
        async with session:
            assert await session.run(element) == 1.0
            assert await asyncio.to_thread(session.run_sync, noted) == 2.0
            raise KeyError("mine")

    task = asyncio.get_running_loop().create_task(use())
    await ending.wait()
    task.cancel()
    may_end.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert session.closed
    assert [loop.is_closed() for loop in loops] == [True]


# -- failures on entry -----------------------------------------------------------------------------------------------


async def test_failed_connection_to_a_cluster_leaves_no_entry() -> None:
    session = af.Session("aioflow://127.0.0.1:1")
    before = SESSIONS.entries()
    with given_up_at_once(), pytest.raises(af.errors.UnavailableError):
        async with session:
            pass
    assert SESSIONS.entries() == before
    assert af.get_default_session() is None
    assert not session.closed
    await session.close()


def test_session_may_use_another_loop_after_a_failed_connection() -> None:
    """A failed connection must not bind the session to the event loop."""
    address = "inproc://comes-later"
    x = af.constant(1.0)
    session = af.Session(address)
    with given_up_at_once(), pytest.raises(af.errors.UnavailableError):
        asyncio.run(session.__aenter__())

    async def use() -> Any:
        async with Server({"local": [address]}), session:
            return await session.run(x)

    assert asyncio.run(use()) == 1.0


async def test_cancelled_entry_leaves_neither_entry_nor_connection() -> None:
    connected, gone = asyncio.Event(), asyncio.Event()

    async def silent(comm: Comm) -> None:
        connected.set()
        try:
            while await comm.receive() is not None:
                pass
        except af.errors.UnavailableError:
            pass
        gone.set()

    async with listen("tcp://127.0.0.1:0", silent) as listener:
        session = af.Session(listener.address.replace("tcp", "aioflow"))
        before = SESSIONS.entries()

        async def enter() -> None:
            async with session:
                pass

        task = asyncio.get_running_loop().create_task(enter())
        await connected.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with asyncio.timeout(10):
            await gone.wait()
        assert SESSIONS.entries() == before
        await session.close()


# -- run_sync --------------------------------------------------------------------------------------------------------


def test_run_sync_runs_in_the_context_of_each_caller() -> None:
    who = af.py_func(WHO.get, [], af.string, stateful=True)
    with af.Session() as session:
        for name in ("alice", "bob"):
            context = contextvars.copy_context()
            context.run(WHO.set, name)
            assert context.run(session.run_sync, who) == name.encode()
        assert session.run_sync(who) == b"nobody"


async def doubled(session: af.Session, x: af.Tensor) -> float:
    return 2.0 * float(await session.run(x))


@pytest.mark.parametrize("loop_runs", [False, True])
def test_closed_session_closes_the_coroutine_passed_to_wait_for(loop_runs: bool) -> None:
    session = af.Session()
    session.run_sync(af.constant(1.0))
    session.__exit__(None, None, None)
    coroutine = doubled(session, af.constant(1.0))

    async def inside() -> None:
        session.wait_for(coroutine)

    with pytest.raises(af.errors.ClosedSessionError):
        asyncio.run(inside()) if loop_runs else session.wait_for(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED, "or Python warns that nobody awaited it"


async def test_wait_for_inside_a_running_loop() -> None:
    async with af.Session() as session:
        assert session.wait_for(doubled(session, af.constant(1.5))) == 3.0


def test_wait_for_rejects_a_coroutine_that_was_awaited() -> None:
    with af.Session() as session:
        coroutine = doubled(session, af.constant(1.5))
        assert session.wait_for(coroutine) == 3.0
        with pytest.raises(af.errors.FailedPreconditionError, match=r"doubled\(\) has already been awaited"):
            session.wait_for(coroutine)


def test_wait_for_raises_errors_and_rejects_other_objects() -> None:
    class Answer:
        def __await__(self) -> Generator[None, None, int]:
            yield
            return 42

    async def fail() -> None:
        raise KeyError("mine")

    with af.Session() as session:
        assert session.wait_for(Answer()) == 42
        with pytest.raises(KeyError, match="mine"):
            session.wait_for(fail())
        not_one: Any = 3
        with pytest.raises(af.errors.DTypeError, match="awaitable"):
            session.wait_for(not_one)


def test_session_of_a_script_may_be_left_inside_a_running_loop() -> None:
    x = af.constant(1.0)
    session = af.Session()
    session.__enter__()
    assert session.run_sync(x) == 1.0

    async def leave() -> None:
        session.__exit__(None, None, None)

    asyncio.run(leave())
    assert session.closed


def test_session_closes_if_the_loop_of_a_step_is_closed() -> None:
    session = af.Session()
    loop = asyncio.new_event_loop()
    session._steps[Step()] = loop
    loop.close()
    asyncio.run(session.close())
    assert session.closed


def test_context_stack_entries_may_be_left_in_any_order() -> None:
    """Leaving an entry twice has no effect."""
    stack: ContextStack[Any] = ContextStack("test", weak=False)
    first, second = stack.enter("a"), stack.enter("b")
    assert (stack.innermost(), list(stack)) == ("b", ["b", "a"])
    assert stack.innermost_of({first}) is first
    for _ in range(2):
        stack.leave(first)
        assert list(stack) == ["b"]
    stack.leave(second)
    assert (stack.innermost(), stack.entries()) == (None, ())
