"""Calls and pushes over both transports: answers, failures, cancellation, limits, and the end of the peer."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from aioflow.errors import (
    AioflowError,
    ClosedSessionError,
    DataLossError,
    DeadlineExceededError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    SourceLine,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from aioflow.net.channel import Channel, Reply, Service, ServiceRequest, Taker
from aioflow.net.comm import CommOptions
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.limits import Limits
from aioflow.testing.check_comm import connected

_GUARD = 60.0  # seconds after which a call counts as hanging; a machine may stall for a while
ADDRESSES = ["inproc://channel", "tcp://127.0.0.1:0"]


@pytest.fixture(params=ADDRESSES, ids=["inproc", "tcp"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def channels(
    address: str,
    services: Mapping[str, Service],
    options: CommOptions | None = None,
    takers: Mapping[str, Taker] | None = None,
) -> AsyncIterator[tuple[Channel, Channel]]:
    """Yield a calling channel, and the channel whose services it calls."""
    chosen = options or CommOptions()
    async with (
        asyncio.timeout(120),
        connected(address)(chosen, chosen) as (first, second),
        Channel(second, services, takers) as serving,
        Channel(first) as calling,
    ):
        yield calling, serving


async def echo(request: ServiceRequest) -> Reply:
    return Reply({"kind": request.kind, **request.header}, request.tensors)


async def test_call_returns_the_reply_of_the_service(address: str) -> None:
    async def double(request: ServiceRequest) -> Reply:
        return Reply({"n": request.header["n"] + 1}, [t * 2 for t in request.tensors])

    async with channels(address, {"double": double}) as (calling, _):
        for size in (3, 1_000_000):
            reply = await calling.call("double", {"n": 4}, [np.arange(size), np.float32(1.5)], timeout=_GUARD)
            assert reply.header == {"n": 5}
            np.testing.assert_array_equal(reply.tensors[0], np.arange(size) * 2)
            assert reply.tensors[1] == 3.0


async def test_service_may_return_none(address: str) -> None:
    async def nothing(request: ServiceRequest) -> None:
        return None

    async with channels(address, {"nothing": nothing}) as (calling, _):
        assert await calling.call("nothing", timeout=None) == Reply()


async def test_calls_are_served_concurrently(address: str) -> None:
    """Answer the first call through the effect of the second."""
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(request: ServiceRequest) -> None:
        await gate

    async def release(request: ServiceRequest) -> None:
        gate.set_result(None)

    async with channels(address, {"wait": wait, "release": release}) as (calling, _), asyncio.TaskGroup() as tg:
        waiting = tg.create_task(calling.call("wait", timeout=_GUARD))
        await calling.call("release", timeout=_GUARD)
        await waiting


async def test_answers_match_their_calls(address: str) -> None:
    async def later(request: ServiceRequest) -> Reply:
        await asyncio.sleep(0 if request.header["i"] % 3 else 0.01)
        return Reply(request.header, request.tensors)

    async def ask(calling: Channel, i: int) -> None:
        size = 300_000 if i % 7 == 0 else 2
        reply = await calling.call("later", {"i": i}, [np.full(size, i)], timeout=_GUARD)
        assert reply.header == {"i": i}
        assert reply.tensors[0].shape == (size,)
        assert (reply.tensors[0] == i).all()

    async with channels(address, {"later": later}) as (calling, _), asyncio.TaskGroup() as tg:
        for i in range(100):
            tg.create_task(ask(calling, i))


async def test_both_ends_can_call(address: str) -> None:
    async with (
        asyncio.timeout(120),
        connected(address)(CommOptions(), CommOptions()) as (first, second),
        Channel(first, {"echo": echo}) as one,
        Channel(second, {"echo": echo}) as two,
    ):
        calls = (c.call("echo", {"i": i}, timeout=_GUARD) for i in range(20) for c in (one, two))
        replies = await asyncio.gather(*calls)
        assert [r.header["i"] for r in replies] == [i for i in range(20) for _ in range(2)]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [InvalidArgumentError, DTypeError, NotFoundError, ClosedSessionError])
async def test_error_is_raised_as_its_own_class(address: str, kind: Any) -> None:
    async def fail(request: ServiceRequest) -> None:
        raise kind("it is wrong", expected=[1], actual="2").at("node_a", "MatMul", SourceLine("user.py", 12, "build"))

    async with channels(address, {"fail": fail}) as (calling, _):
        with pytest.raises(kind) as caught:
            await calling.call("fail", timeout=_GUARD)
    error = caught.value
    assert type(error) is kind
    assert error.message == f"From {calling.peer}: it is wrong"
    assert (error.node, error.op_type, error.source) == ("node_a", "MatMul", SourceLine("user.py", 12, "build"))
    assert (error.expected, error.actual) == ("[1]", "2")
    assert any("in fail" in note for note in error.__notes__), "the note shows the peer's traceback"


async def test_other_exceptions_are_raised_as_unknown_error(address: str) -> None:
    async def fail(request: ServiceRequest) -> None:
        raise ZeroDivisionError("by zero")

    async with channels(address, {"fail": fail, "echo": echo}) as (calling, _):
        with pytest.raises(UnknownError, match="ZeroDivisionError: by zero"):
            await calling.call("fail", timeout=_GUARD)
        await calling.call("echo", timeout=_GUARD)


async def test_unknown_kind_raises_error_that_lists_the_known_ones(address: str) -> None:
    async with channels(address, {"echo": echo}) as (calling, _):
        with pytest.raises(UnimplementedError) as caught:
            await calling.call("shout", timeout=_GUARD)
        assert "echo" in str(caught.value)
        await calling.call("echo", timeout=_GUARD)


async def test_unsendable_answer_raises_an_error(address: str) -> None:
    async def odd(request: ServiceRequest) -> Reply:
        return Reply({}, [np.array([object()])])

    async with channels(address, {"odd": odd, "echo": echo}) as (calling, _):
        with pytest.raises(DTypeError):
            await calling.call("odd", timeout=_GUARD)
        await calling.call("echo", timeout=_GUARD)


async def test_unsendable_request_raises_the_callers_error(address: str) -> None:
    async with channels(address, {"echo": echo}) as (calling, _):
        for tensor in (np.array([object()]), np.zeros(10, "datetime64[s]")):
            with pytest.raises(DTypeError) as caught:
                await calling.call("echo", {}, [tensor], timeout=_GUARD)
            assert "From" not in str(caught.value)
        await calling.call("echo", timeout=_GUARD)


async def test_overlong_error_still_arrives(address: str) -> None:
    async def fail(request: ServiceRequest) -> None:
        raise InvalidArgumentError("ü" * 500_000, expected="y" * 500_000, node="n" * 100_000)

    for header_bytes in (64 << 10, 4 << 10):
        options = CommOptions(limits=Limits(header_bytes=header_bytes))
        async with channels(address, {"fail": fail}, options) as (calling, _):
            with pytest.raises(InvalidArgumentError, match="üüü"):
                await calling.call("fail", timeout=_GUARD)


# ── deadlines and cancellation ───────────────────────────────────────────────────────────────────────────────────────


class Sleeper:
    """A service that waits until it is cancelled, and records that."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def __call__(self, request: ServiceRequest) -> Reply:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        return Reply()


async def test_deadline_error_names_peer_and_call_and_stops_the_service(address: str) -> None:
    sleeper = Sleeper()
    async with channels(address, {"sleep": sleeper, "echo": echo}) as (calling, _):
        with pytest.raises(DeadlineExceededError) as caught:
            await calling.call("sleep", timeout=0.02)
        assert calling.peer in str(caught.value)
        assert "sleep" in str(caught.value)
        await sleeper.stopped.wait()
        await calling.call("echo", timeout=_GUARD)


async def test_cancelled_caller_stops_the_service(address: str) -> None:
    """Stop the service by a CANCEL message alone: the request has no deadline."""
    sleeper = Sleeper()
    async with channels(address, {"sleep": sleeper, "echo": echo}) as (calling, _), asyncio.TaskGroup() as tg:
        for tensors in ([], [np.zeros(2_000_000)]):
            sleeper.started.clear()
            sleeper.stopped.clear()
            task = tg.create_task(calling.call("sleep", {}, tensors, timeout=None))
            await sleeper.started.wait()
            task.cancel()
            await sleeper.stopped.wait()
            await asyncio.wait([task])
            assert task.cancelled()
            await calling.call("echo", timeout=_GUARD)


async def test_large_request_cancelled_while_sent_is_stopped_on_arrival(address: str) -> None:
    sleeper = Sleeper()
    async with channels(address, {"sleep": sleeper}) as (calling, _), asyncio.TaskGroup() as tg:
        task = tg.create_task(calling.call("sleep", {}, [np.zeros(2_000_000)], timeout=None))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not sleeper.started.is_set()
        task.cancel()
        await sleeper.stopped.wait()


async def test_caller_cancelled_while_sending_does_not_affect_others(address: str) -> None:
    seen: list[int] = []

    async def count(request: ServiceRequest) -> None:
        seen.append(request.tensors[0].nbytes)

    async with channels(address, {"count": count, "echo": echo}) as (calling, _), asyncio.TaskGroup() as tg:
        task = tg.create_task(calling.call("count", {}, [np.zeros(8_000_000)], timeout=_GUARD))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        reply = await calling.call("echo", {"i": 1}, [np.arange(300_000)], timeout=_GUARD)
        assert reply.header["i"] == 1
        assert all(size == 64_000_000 for size in seen)


async def test_open_requests_are_bounded_at_both_ends(address: str) -> None:
    gate, full = asyncio.Event(), asyncio.Event()
    running = most = 0

    async def wait(request: ServiceRequest) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await gate.wait()
        running -= 1

    options = CommOptions(limits=Limits(open_requests=3))
    async with channels(address, {"wait": wait}, options) as (calling, _), asyncio.TaskGroup() as tg:
        tasks = [tg.create_task(calling.call("wait", timeout=_GUARD)) for _ in range(8)]
        await full.wait()
        with pytest.raises(DeadlineExceededError):
            await calling.call("wait", timeout=0.01)
        # The peer enforces the limit against a caller that ignores it.
        await calling.comm.send(WireMessage(FrameKind.REQUEST, 999, {"kind": "wait", "timeout": None, "body": {}}))
        other = await calling_failure(calling, 999)
        assert isinstance(other, ResourceExhaustedError)
        gate.set()
        await asyncio.gather(*tasks)
    assert most == 3


async def calling_failure(calling: Channel, number: int) -> BaseException | None:
    """Return the failure that arrives for a request sent directly on the comm."""
    answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    calling.calls._answers[number] = answer
    await asyncio.wait([answer])
    return answer.exception()


# ── pushes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_large_pushes_let_small_calls_through(address: str) -> None:
    arrived: asyncio.Queue[ServiceRequest] = asyncio.Queue()

    async def take(request: ServiceRequest) -> None:
        arrived.put_nowait(request)

    async with channels(address, {"take": take, "echo": echo}) as (calling, _), asyncio.TaskGroup() as tg:
        pushes = [tg.create_task(calling.push("take", {"i": i}, [np.full(2_000_000, i)])) for i in range(3)]
        await calling.call("echo", timeout=_GUARD)
        await asyncio.gather(*pushes)
        await calling.push("take", {"i": 3}, [np.full(2, 3)])
        found = {r.header["i"]: r.tensors[0] for r in [await arrived.get() for _ in range(4)]}
        assert {i: (t.size, int(t.min()), int(t.max())) for i, t in found.items()} == {
            0: (2_000_000, 0, 0),
            1: (2_000_000, 1, 1),
            2: (2_000_000, 2, 2),
            3: (2, 3, 3),
        }


async def test_failing_push_ends_the_connection_with_its_error(address: str) -> None:
    async def fail(request: ServiceRequest) -> None:
        raise NotFoundError("no such step")

    for kind, wanted in (("fail", NotFoundError), ("unheard of", UnimplementedError)):
        async with channels(address, {"fail": fail}) as (calling, serving):
            await calling.push(kind)
            assert type(await serving.wait_ended()) is wanted
            assert isinstance(await calling.wait_ended(), UnavailableError)


async def test_taker_receives_small_pushes_in_order(address: str) -> None:
    """Deliver each push whole on arrival, before the answer to a later call."""
    taken: list[tuple[int, int]] = []

    def take(request: ServiceRequest) -> None:
        taken.append((request.header["i"], int(request.tensors[0].sum())))

    async with channels(address, {"echo": echo}, takers={"take": take}) as (calling, _):
        for i in range(200):
            await calling.push("take", {"i": i}, [np.full(3, i)])
        await calling.call("echo", timeout=_GUARD)
        assert taken == [(i, 3 * i) for i in range(200)]
        await calling.push("take", {"i": 200}, [np.ones(2_000_000)])
        await calling.call("echo", timeout=_GUARD)
        assert taken[-1] == (200, 2_000_000)


async def test_failing_taker_ends_the_connection_with_its_error(address: str) -> None:
    taken: list[int] = []

    def fail(request: ServiceRequest) -> None:
        taken.append(request.header["i"])
        raise NotFoundError("no such step") if request.header["known"] else KeyError("step")

    for known, wanted, says in ((True, NotFoundError, "no such step"), (False, UnavailableError, "KeyError|'step'")):
        taken.clear()
        async with channels(address, {}, takers={"take": fail}) as (calling, serving):
            for i in range(3):
                with contextlib.suppress(UnavailableError):  # the failure may be known here already
                    await calling.push("take", {"i": i, "known": known})
            error = await serving.wait_ended()
            assert type(error) is wanted
            assert re.search(says, str(error))
            assert isinstance(await calling.wait_ended(), UnavailableError)
        assert taken == [0], "nothing is taken after the failure"


async def test_taker_is_only_for_pushes(address: str) -> None:
    async with channels(address, {"echo": echo}, takers={"take": lambda request: None}) as (calling, _):
        with pytest.raises(UnimplementedError, match="take"):
            await calling.call("take", timeout=_GUARD)
        await calling.call("echo", timeout=_GUARD)


async def test_messages_before_the_channel_opens_are_taken_before_its_end(address: str) -> None:
    taken: list[int] = []
    async with connected(address)(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
        for i in range(3):
            await first.send(WireMessage(FrameKind.PUSH, 0, {"kind": "take", "timeout": None, "body": {"i": i}}))
        closing = tg.create_task(first.close())
        await asyncio.sleep(0.01)  # time in which all messages may arrive, but need not
        async with Channel(second, takers={"take": lambda request: taken.append(request.header["i"])}) as channel:
            error = await channel.wait_ended()
            assert type(error) is UnavailableError
            assert "closed the connection" in str(error)
        await closing
    assert taken == [0, 1, 2]


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_end_of_the_peer_fails_calls_and_stops_services(address: str, how: str) -> None:
    sleeper = Sleeper()
    async with channels(address, {"sleep": sleeper}) as (calling, serving), asyncio.TaskGroup() as tg:
        tasks = [tg.create_task(fails(calling)) for _ in range(3)]
        await sleeper.started.wait()
        if how == "close":
            await serving.close()
        else:
            serving.comm.abort("crashed")
        for task in tasks:
            assert calling.peer in await task
        await sleeper.stopped.wait()
        with pytest.raises(UnavailableError):
            await calling.call("sleep", timeout=_GUARD)
        with pytest.raises(UnavailableError):
            await calling.push("sleep")
        assert calling.peer in str(await calling.wait_ended())


async def fails(calling: Channel) -> str:
    with pytest.raises(UnavailableError) as caught:
        await calling.call("sleep", timeout=None)
    return str(caught.value)


async def test_pushes_before_a_close_arrive(address: str) -> None:
    sizes: asyncio.Queue[int] = asyncio.Queue()

    async def take(request: ServiceRequest) -> None:
        sizes.put_nowait(request.tensors[0].size)

    async with channels(address, {"take": take}) as (calling, serving):
        for size in (1_000_000, 5, 3_000_000, 6):
            await calling.push("take", {}, [np.zeros(size)])
        await calling.close()
        await serving.wait_ended()
        assert sorted([await sizes.get() for _ in range(4)]) == [5, 6, 1_000_000, 3_000_000]


@pytest.mark.parametrize(
    "message",
    [
        WireMessage(FrameKind.REQUEST, 1, {"kind": 3, "timeout": None, "body": {}}),
        WireMessage(FrameKind.REQUEST, 1, {"kind": "echo", "timeout": -1, "body": {}}),
        WireMessage(FrameKind.REQUEST, 1, {"kind": "echo", "timeout": float("nan"), "body": {}}),
        WireMessage(FrameKind.REQUEST, 1, {"kind": "echo", "timeout": True, "body": {}}),
        WireMessage(FrameKind.REQUEST, 1, {"kind": "echo", "timeout": None, "body": []}),
        WireMessage(FrameKind.REQUEST, 1, {"kind": "echo", "timeout": None, "body": {}, "more": 1}),
        WireMessage(FrameKind.REQUEST, 1, {}),
        WireMessage(FrameKind.PUSH, 1, {"kind": "echo"}),
        WireMessage(FrameKind.FAILURE, 1, {}),
        WireMessage(FrameKind.FAILURE, 1, {"error": "SystemExit", "message": "x"}),
    ],
    ids=str,
)
async def test_malformed_message_ends_the_connection(address: str, message: WireMessage) -> None:
    async with channels(address, {"echo": echo}) as (calling, serving):
        await calling.comm.send(message)
        error: AioflowError = await serving.wait_ended()
        assert type(error) is DataLossError
        assert isinstance(await calling.wait_ended(), UnavailableError)


async def test_reused_request_number_ends_the_connection(address: str) -> None:
    sleeper = Sleeper()
    async with channels(address, {"sleep": sleeper}) as (calling, serving):
        for _ in range(2):
            await calling.comm.send(WireMessage(FrameKind.REQUEST, 1, {"kind": "sleep", "timeout": None, "body": {}}))
            await sleeper.started.wait()
        assert type(await serving.wait_ended()) is DataLossError
        await sleeper.stopped.wait()


async def test_replies_and_cancels_of_unknown_requests_are_ignored(address: str) -> None:
    async with channels(address, {"echo": echo}) as (calling, serving):
        await calling.comm.send(WireMessage(FrameKind.CANCEL, 77))
        await serving.comm.send(WireMessage(FrameKind.REPLY, 78, {"late": True}))
        assert (await calling.call("echo", timeout=_GUARD)).header == {"kind": "echo"}


async def test_close_does_not_serve_requests_that_arrive_during_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop a request that arrives while the comm still sends: nothing would cancel its service."""

    async def wait(_: ServiceRequest) -> None:
        await asyncio.Event().wait()

    async with channels(address, {"wait": wait}) as (_, serving):
        close = serving.comm.close

        async def close_later() -> None:
            serving._on_message(WireMessage(FrameKind.REQUEST, 1, {"kind": "wait", "timeout": None, "body": {}}))
            await close()

        monkeypatch.setattr(serving.comm, "close", close_later)
        async with asyncio.timeout(_GUARD):
            await serving.close()
