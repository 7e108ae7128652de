"""Bounds per client: requests and their bytes, pushes, steps and their time; also for clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from aioflow.net.channel import Channel, Reply, Service, ServiceRequest
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.framing import FrameKind, WireMessage, encode
from aioflow.net.limits import Limits
from aioflow.net.proving import HelloFields
from aioflow.net.requests import OpenRequests, all_open_requests
from aioflow.net.server import Server
from aioflow.net.transports import listen
from aioflow.testing.check_comm import connected
from tests.net.clusters import inproc

ANY = "tcp://127.0.0.1:0"
SECONDS = 60.0
MB = 1 << 20


def limited(**limits: int) -> CommOptions:
    return CommOptions(limits=Limits(**limits))


def test_open_requests_are_counted_per_client_and_in_total() -> None:
    limits = Limits(open_requests=3, open_bytes=3 * MB, all_open_bytes=4 * MB)
    everybody = all_open_requests(limits)
    one, other = OpenRequests(limits, everybody), OpenRequests(limits, everybody)
    tensor = np.zeros(MB, np.uint8)
    sizes = [one.take([tensor]) for _ in range(3)]
    for again, asked in ((one, ()), (other, (tensor, tensor))):
        with pytest.raises(ResourceExhaustedError) as raised:
            again.take(asked)
        assert not raised.value.may_have_been_applied
    for size in sizes:
        one.give(size)
    assert everybody.taken == (0, 0)
    assert other.take([tensor, tensor]) == 2 * MB
    with pytest.raises(ResourceExhaustedError, match="of all clients"):
        one.take([tensor] * 3)
    assert one.take([tensor]) == MB, "what was refused took nothing"


@pytest.mark.parametrize("address", ["inproc://open", ANY])
async def test_pushes_to_a_service_count_as_open_requests(address: str) -> None:
    """End the connection at the limit: a refused push has no answer that could report it."""
    gate = asyncio.Event()
    running = 0

    async def slow(request: ServiceRequest) -> None:
        nonlocal running
        running += 1
        await gate.wait()

    options = limited(open_requests=5)
    async with (
        asyncio.timeout(SECONDS),
        connected(address)(options, options) as (first, second),
        Channel(second, {"slow": slow}) as serving,
        Channel(first) as calling,
    ):
        with contextlib.suppress(UnavailableError):
            for _ in range(1000):
                await calling.push("slow")
        error = await serving.wait_ended()
        assert "too many open requests" in str(error)
        assert running == 5
        gate.set()


@pytest.mark.parametrize("address", ["inproc://open", ANY])
async def test_cancelled_requests_free_their_slots_up_to_a_limit(address: str) -> None:
    """Free the slots at once, although running services may stop later; the number of those is limited, too."""
    gate = asyncio.Event()
    stubborn = 0

    async def hold(request: ServiceRequest) -> Reply:
        nonlocal stubborn
        try:
            await gate.wait()
        except asyncio.CancelledError:
            stubborn += 1
            await gate.wait()
            raise
        return Reply()

    async def answer(request: ServiceRequest) -> Reply:
        await asyncio.sleep(0)
        return Reply()

    options = limited(open_requests=3)
    async with (
        asyncio.timeout(SECONDS),
        connected(address)(options, CommOptions()) as (second, first),
        Channel(second, {"hold": hold, "answer": answer}) as serving,
        Channel(first) as calling,
        asyncio.TaskGroup() as tg,
    ):
        for refused in (0, 3):
            calls = [tg.create_task(calling.call("hold", timeout=SECONDS)) for _ in range(3)]
            await asyncio.sleep(0.05)
            for call in calls:
                call.cancel()
            answers = [tg.create_task(outcome(calling.call("answer", timeout=SECONDS))) for _ in range(3)]
            await asyncio.wait(answers)
            assert sum(isinstance(found.result(), ResourceExhaustedError) for found in answers) == refused
        assert stubborn == 6
        gate.set()
        while serving.is_busy:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await calling.call("answer", timeout=SECONDS)


async def outcome(call: Awaitable[Reply]) -> Reply | OpError:
    try:
        return await call
    except OpError as error:
        return error


@pytest.mark.parametrize("address", ["inproc://open", ANY])
async def test_bytes_of_open_requests_are_bounded(address: str) -> None:
    gate = asyncio.Event()
    held = 0

    async def hold(request: ServiceRequest) -> Reply:
        nonlocal held
        held += 1
        await gate.wait()
        return Reply({}, request.tensors)

    options = limited(open_bytes=3 * MB)
    async with (
        asyncio.timeout(SECONDS),
        connected(address)(options, CommOptions()) as (second, first),
        Channel(second, {"hold": hold}),
        Channel(first) as calling,
        asyncio.TaskGroup() as tg,
    ):
        value = np.ones(MB, np.uint8)
        calls = [tg.create_task(calling.call("hold", {}, [value], timeout=SECONDS)) for _ in range(3)]
        while held < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(ResourceExhaustedError, match="too many open requests") as raised:
            await calling.call("hold", {}, [value], timeout=SECONDS)
        assert "File" not in "".join(raised.value.__notes__), "to say where takes longer than to be asked"
        gate.set()
        for call in calls:
            np.testing.assert_array_equal((await call).tensors[0], value)
        await calling.call("hold", {}, [value] * 3, timeout=SECONDS)


@pytest.mark.parametrize("kind", ["wait", "fail", "refuse", "answer", "unheard of"])
async def test_flooding_client_that_does_not_read_is_disconnected(kind: str) -> None:
    """Send a hundred thousand requests against a limit of four: few become asyncio tasks, whatever their outcome."""
    most = 0
    ended: asyncio.Future[OpError] = asyncio.get_running_loop().create_future()
    gate = asyncio.Event()

    async def wait(request: ServiceRequest) -> None:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        await gate.wait()

    async def fail(request: ServiceRequest) -> Reply:
        raise InvalidArgumentError("it fails later")

    def refuse(request: ServiceRequest) -> Reply:
        raise InvalidArgumentError("it fails at once")

    def answer(request: ServiceRequest) -> Reply:
        return Reply({"text": "x" * 300})

    async def serve(comm: Comm) -> None:
        services: dict[str, Service] = {"wait": wait, "fail": fail, "refuse": refuse, "answer": answer}
        async with Channel(comm, services) as channel:
            ended.set_result(await channel.wait_ended())

    def ask(number: int) -> bytes:
        return encode(WireMessage(FrameKind.REQUEST, number, {"kind": kind, "timeout": None, "body": {}})).head

    async with asyncio.timeout(SECONDS), listen(ANY, serve, limited(open_requests=4)) as listener:
        tasks = len(asyncio.all_tasks())
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", int(listener.address.rpartition(":")[2])))
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(sock, HelloFields(3).to_bytes())
                for first in range(1, 100_000, 500):
                    await loop.sock_sendall(sock, b"".join(map(ask, range(first, first + 500))))
                    most = max(most, len(asyncio.all_tasks()))
            error = await ended
        assert re.search("too many open requests|does not read that its requests have failed", str(error))
        assert most <= tasks + 20


@asynccontextmanager
async def two_tasks(limits: Limits) -> AsyncIterator[tuple[Server, Server]]:
    """Run two servers; sessions on the second reach the first by a connection."""
    spec = {"ps": inproc(1), "worker": inproc(1)}
    options = replace(CommOptions(), limits=limits, heartbeat=5.0)
    async with (
        asyncio.timeout(SECONDS),
        Server(spec, "ps", 0, options=options) as ps,
        Server(spec, "worker", 0) as worker,
    ):
        yield ps, worker


async def test_number_of_steps_per_client_is_bounded() -> None:
    with af.device("/job:ps"):
        queue = af.FIFOQueue(10, [af.float32], shapes=[[]])
        taken, put = queue.dequeue(), queue.enqueue(7.0)
    async with (
        two_tasks(Limits(steps=2)) as (ps, worker),
        af.Session(worker.target) as one,
        af.Session(worker.target) as other,
        asyncio.TaskGroup() as tg,
    ):
        waiting = [tg.create_task(one.run(taken)) for _ in range(2)]
        while ps.status().activity.running < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(ResourceExhaustedError, match="steps of one client") as raised:
            await one.run(put)
        assert not raised.value.may_have_been_applied
        for _ in range(2):
            await other.run(put)
        assert [await step for step in waiting] == [7.0, 7.0]
        await one.run(put)
        assert await one.run(taken) == 7.0


async def test_duration_of_steps_is_bounded() -> None:
    with af.device("/job:ps"):
        taken = af.FIFOQueue(10, [af.float32], shapes=[[]]).dequeue()
    async with two_tasks(Limits(step_seconds=0.05)) as (_, worker), af.Session(worker.target) as session:
        with pytest.raises(DeadlineExceededError, match="the step exceeded its timeout") as raised:
            await session.run(taken)
        assert "0.05 s" in str(raised.value)


@pytest.mark.parametrize("wrong", [float("nan"), "1"])
def test_step_seconds_must_be_a_number(wrong: float) -> None:
    with pytest.raises((InvalidArgumentError, TypeError)):
        Limits(step_seconds=wrong)
