"""`Session.connect` and `connect_timeout`: waiting for tasks that are not up yet, and the error if they stay down."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aioflow as af
from aioflow.distributed import Credentials
from aioflow.errors import ClosedSessionError, OpError, UnauthenticatedError, UnavailableError
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.server import Server
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate
from tests.net.clusters import inproc

Client = Callable[[af.Session, Callable[[], float]], Awaitable[Any]]


def with_a_late_task(late: str, seconds: float, client: Client, connect_timeout: float = 2.0) -> Any:
    """Run a client in a simulation whose task `late` starts `seconds` after the client. The target is worker0."""

    async def story(net: SimNet) -> Any:
        cluster = SimCluster(net, {"worker": 1, "ps": 1})
        await cluster.start()
        net.crash(late)

        async def program() -> Any:
            clock = asyncio.get_running_loop().time
            since = clock()
            session = af.Session(
                cluster.target("worker0"), af.Graph(), config=SIMULATED, connect_timeout=connect_timeout
            )
            try:
                return await client(session, lambda: clock() - since)
            finally:
                await session.close()

        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(net.host("client").call(program))
            await asyncio.sleep(seconds)
            await net.restart(late)
        await cluster.stop()
        return task.result()

    return simulate(story, seed=3)


async def failure(awaitable: Awaitable[object]) -> OpError:
    with pytest.raises(OpError) as caught:
        await awaitable
    return caught.value


@pytest.mark.parametrize("late", ["worker0", "ps0"])
def test_connect_waits_for_every_task(late: str) -> None:
    async def client(session: af.Session, seconds: Callable[[], float]) -> list[str]:
        await session.connect(wait=30.0)
        assert 10.0 <= seconds() < 12.5
        before = seconds()
        await session.connect(wait=30.0)
        assert seconds() == before, "it was connected already"
        with session.as_default(), af.device("/job:ps"):
            assert await session.run(af.constant(20.0) + 22.0) == 42.0
        return session.list_devices()

    assert sorted(with_a_late_task(late, 10.0, client)) == [
        "/job:ps/replica:0/task:0/device:CPU:0",
        "/job:worker/replica:0/task:0/device:CPU:0",
    ]


@pytest.mark.parametrize(("late", "name"), [("worker0", "tcp://"), ("ps0", "/job:ps/replica:0/task:0")])
def test_connect_names_the_missing_task_and_can_be_called_again(late: str, name: str) -> None:
    async def client(session: af.Session, seconds: Callable[[], float]) -> OpError:
        error = await failure(session.connect(wait=5.0))
        assert 5.0 <= seconds() < 7.5
        await session.connect(wait=60.0)
        assert 20.0 <= seconds() < 22.5
        return error

    error = with_a_late_task(late, 20.0, client)
    assert isinstance(error, UnavailableError)
    assert error.message.startswith(name)
    assert "refused" in error.message.lower()
    assert error.expected == "an answer within 5 s"
    assert not error.may_have_been_applied


def test_entering_waits_for_the_target_as_long_as_connect_timeout() -> None:
    async def client(session: af.Session, seconds: Callable[[], float]) -> float:
        async with session:
            return seconds()

    assert 10.0 <= with_a_late_task("worker0", 10.0, client, connect_timeout=30.0) < 12.5
    # The other tasks need not be up.
    assert with_a_late_task("ps0", 10.0, client, connect_timeout=30.0) < 2.5
    with pytest.raises(UnavailableError, match=r"within 1\.5 s"):
        with_a_late_task("worker0", 10.0, client, connect_timeout=1.5)


def test_cancelled_connect_leaves_the_session_usable() -> None:
    async def client(session: af.Session, seconds: Callable[[], float]) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.connect(wait=3600.0)
        assert 1.0 <= seconds() < 1.5
        await session.connect(wait=30.0)

    for late in ("worker0", "ps0"):
        with_a_late_task(late, 10.0, client)


def test_concurrent_connects_wait_together() -> None:
    async def client(session: af.Session, seconds: Callable[[], float]) -> None:
        async with asyncio.TaskGroup() as tg:
            for _ in range(3):
                tg.create_task(session.connect(wait=30.0))
        assert 10.0 <= seconds() < 12.5

    with_a_late_task("worker0", 10.0, client)


def test_closing_the_session_ends_a_waiting_connect() -> None:
    async def client(session: af.Session, seconds: Callable[[], float]) -> None:
        async with asyncio.TaskGroup() as tg:
            waiting = tg.create_task(failure(session.connect(wait=3600.0)))
            await asyncio.sleep(1.0)
            await session.close()
        assert isinstance(waiting.result(), ClosedSessionError)
        assert seconds() < 4.5
        assert isinstance(await failure(session.connect(wait=1.0)), ClosedSessionError)

    for late in ("worker0", "ps0"):
        with_a_late_task(late, 10.0, client)


async def test_error_of_an_unreachable_target_is_one_traceback() -> None:
    async def entered(session: af.Session) -> None:
        async with session:
            raise AssertionError("it was entered")

    for target in (f"aioflow://{free_addresses(1)[0]}", *inproc(1)):
        for use in (entered, lambda s: s.connect(wait=0.05), lambda s: s.run(af.constant(1.0))):
            error = await failure(use(af.Session(target, connect_timeout=0.05)))
            assert isinstance(error, UnavailableError)
            assert target.partition("//")[2] in error.message
            text = "".join(traceback.format_exception(error))
            assert text.count("Traceback") == 1, text
            assert len(text.splitlines()) <= 30, text


async def refusal(at_server: Credentials, at_client: Credentials) -> OpError:
    """Return the error of a client that would wait an hour for a server to come up."""

    async def client(target: str) -> OpError:
        return await failure(af.Session(target, credentials=at_client).connect(wait=3600.0))

    async with asyncio.timeout(60), Server({"ps": ["127.0.0.1:0"]}, "ps", 0, credentials=at_server) as server:
        # In another thread: on the server's event loop the target would be used without a connection.
        return await asyncio.to_thread(asyncio.run, client(server.target))


async def test_refused_secrets_are_not_tried_again() -> None:
    known, other, none = Credentials(b"s" * 32), Credentials(b"t" * 32), Credentials()
    for at_server, at_client in ((known, other), (known, none), (none, known)):
        assert isinstance(await refusal(at_server, at_client), UnauthenticatedError)


async def test_local_session_is_connected_at_once() -> None:
    async with af.Session() as session:
        await session.connect(wait=0.001)
        await session.connect()
        assert await session.run(af.constant(1.0)) == 1.0
    with pytest.raises(ClosedSessionError):
        await session.connect()
