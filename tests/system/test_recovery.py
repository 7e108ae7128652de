"""Tests of steps and sessions whose real peer processes are paused, continued, killed and restarted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from tests.support.outcomes import failure
from tests.system.processes import worker_process

PS = "/job:ps/replica:0/task:0"


@asynccontextmanager
async def served() -> AsyncIterator[tuple[asyncio.subprocess.Process, af.Session]]:
    """Start a server and open a session on it."""
    cluster = {"ps": free_addresses(1)}
    async with (
        asyncio.timeout(200),
        worker_process(cluster, "ps") as ps,
        af.Session(f"aioflow://{cluster['ps'][0]}") as session,
    ):
        yield ps, session


@asynccontextmanager
async def closing(session: af.Session) -> AsyncIterator[None]:
    """Close a session that was not entered, at the end of the block."""
    try:
        yield
    finally:
        await session.close()


def counter() -> tuple[Any, Any, Any]:
    """Return the initializer of a variable on the server, a step that adds one, and one that reads it."""
    with af.device("/job:ps"):
        v = af.Variable(0.0, name="counter")
        return v.initializer, af.assign_add(v, 1.0).op, v.read_value()


async def test_failed_step_is_not_applied_later() -> None:
    """Pause the server until steps fail, and let it continue: it must reject the steps that wait in its socket."""
    init, add, read = counter()
    async with served() as (ps, session):
        await session.run(init)
        await session.run(add)
        os.kill(ps.pid, signal.SIGSTOP)
        try:
            errors = await asyncio.gather(*[failure(session.run(add)) for _ in range(6)])
        finally:
            os.kill(ps.pid, signal.SIGCONT)
        for error in errors:
            assert isinstance(error, af.errors.UnavailableError)
            assert error.may_have_been_applied  # the client cannot know
            assert "applied:  perhaps" in str(error)
        for total in (2.0, 3.0):
            await session.run(add)
            assert await session.run(read) == total


async def test_timed_out_step_is_not_applied_later() -> None:
    init, add, read = counter()
    async with served() as (ps, session):
        await session.run(init)
        await session.run(add)
        os.kill(ps.pid, signal.SIGSTOP)
        try:
            error = await failure(session.run(add, timeout=0.3))
        finally:
            os.kill(ps.pid, signal.SIGCONT)
        assert isinstance(error, af.errors.DeadlineExceededError | af.errors.UnavailableError)
        assert await until(session, read) == 1.0


async def until(session: af.Session, fetch: Any) -> Any:
    """Run a step as soon as its workers can be reached, and return its result."""
    while True:
        try:
            return await session.run(fetch)
        except af.errors.UnavailableError:
            await asyncio.sleep(0.05)


async def test_session_survives_a_pause_and_a_restart_of_its_server() -> None:
    init, add, read = counter()
    cluster = {"ps": free_addresses(1)}
    session = af.Session(f"aioflow://{cluster['ps'][0]}")
    async with asyncio.timeout(200), closing(session):
        async with worker_process(cluster, "ps") as ps:
            await until(session, init)
            await session.run(add)
            os.kill(ps.pid, signal.SIGSTOP)
            try:
                assert isinstance(await failure(session.run(read)), af.errors.UnavailableError)
            finally:
                os.kill(ps.pid, signal.SIGCONT)
            assert await until(session, read) == 1.0  # the variables still exist
        async with worker_process(cluster, "ps"):
            error = await failure(until(session, read))
            assert isinstance(error, af.errors.AbortedError)
            assert "restarted" in str(error)
            assert PS in str(error)
            assert not error.may_have_been_applied
            await session.run(init)
            await session.run(add)
            assert await session.run(read) == 1.0


async def test_python_functions_run_in_the_client_process() -> None:
    """Call Python functions in the middle of a step on workers that do not have them."""
    x = af.placeholder(af.float32, [])
    here: list[float] = []

    def note(value: Any) -> Any:
        here.append(float(value))
        return value * 10

    async def slowly(value: Any) -> Any:
        await asyncio.sleep(0)
        return value + 1

    with af.device("/job:ps"):
        v = af.Variable(2.0, name="v")
        doubled = x * v
    noted = af.py_func(note, [doubled], af.float32)
    waited = af.py_coroutine(slowly, [noted], af.float32)
    with af.device("/job:ps"):
        total = af.identity(waited) * v
        refused = af.py_func(note, [x], af.float32, name="refused")
    async with served() as (_, session):
        await until(session, v.initializer)
        assert await session.run(total, {x: 3.0}) == 122.0
        assert here == [6.0]
        error = await failure(session.run(refused, {x: 3.0}))
        assert isinstance(error, af.errors.OpError)
        assert error.node == "refused"
        assert "another process" in str(error)
        assert __file__ in str(error)


async def test_partial_runs_use_a_cluster() -> None:
    a, b = af.placeholder(af.float32, [], name="a"), af.placeholder(af.float32, [], name="b")
    with af.device("/job:ps"):
        v = af.Variable(2.0, name="v")
        first = a * v
    second = first + b
    async with served() as (_, session):
        await until(session, v.initializer)
        for scale in (1.0, 2.0):
            handle = await session.partial_run_setup([first, second], [a, b])
            assert await session.partial_run(handle, first, {a: 3.0 * scale}) == 6.0 * scale
            assert await session.partial_run(handle, second, {b: 1.0}) == 6.0 * scale + 1.0
        assert await session.run(second, {a: 1.0, b: 1.0}) == 3.0
