"""A conformance suite for transports: `await check_comm(factory)` checks the contract in `aioflow.net.comm`.

The factory connects two comms for the duration of a block. `connected(address)` is a factory for any address that
`listen` and `connect` support. No check depends on the speed of the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import (
    AioflowError,
    DTypeError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from aioflow.graph.dtypes import ALL, as_dtype
from aioflow.memory.values import Value
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.framing import Document, FrameKind, WireMessage
from aioflow.net.limits import Limits
from aioflow.net.transports import connect, listen

__all__ = ["CHECKS", "Check", "Factory", "check_comm", "connected"]

Factory: TypeAlias = Callable[[CommOptions, CommOptions], AbstractAsyncContextManager[tuple[Comm, Comm]]]
Check: TypeAlias = Callable[[Factory], Awaitable[None]]

_SECONDS: Final = 60.0  # timeout of one check, which detects a hang
_MIB: Final = 1 << 20


async def check_comm(factory: Factory) -> None:
    """Run every check.

    Args:
        factory: Connects two comms, given the options of both ends.

    Raises:
        InternalError: the transport violates the contract; the message states how.
        TimeoutError: a check hangs.
    """
    for check in CHECKS:
        async with asyncio.timeout(_SECONDS):
            await check(factory)


def connected(address: str) -> Factory:
    """Return the factory that listens at an address and connects to it."""

    @asynccontextmanager
    async def factory(first: CommOptions, second: CommOptions) -> AsyncIterator[tuple[Comm, Comm]]:
        # A future carries the accepted end from the listener's task to this one.
        accepted: asyncio.Future[Comm] = asyncio.get_running_loop().create_future()
        done = asyncio.Event()

        async def hand_over(comm: Comm) -> None:
            accepted.set_result(comm)
            # The handler must live as long as the connection is used.
            await done.wait()

        async with listen(address, hand_over, second) as listener:
            comm = await connect(listener.address, options=first)
            try:
                yield comm, await accepted
            finally:
                # Abort, not close: a check may leave messages that nothing reads.
                comm.abort("the check is over")
                done.set()

    return factory


def _require(condition: bool, what: str, expected: object = None, actual: object = None) -> None:
    if not condition:
        raise InternalError(what, expected=expected, actual=actual)


async def _fails(kind: type[AioflowError], wanted: str, awaitable: Awaitable[object], contains: str = "") -> None:
    try:
        result = await awaitable
    except kind as error:
        _require(contains in str(error), f"{wanted}: wrong error message", contains, str(error))
    else:
        raise InternalError(wanted, expected=kind.__name__, actual=result)


async def _receive(comm: Comm) -> WireMessage:
    message = await comm.receive()
    if message is None:
        raise InternalError("the connection ended early", expected="a message", actual=None)
    return message


def _push(request: int, *tensors: Value) -> WireMessage:
    return WireMessage(FrameKind.PUSH, request, {}, tensors)


def _require_equal(sent: Value, received: Any) -> None:
    wanted = np.asarray(sent)
    # Arrays arrive in native byte order.
    native = wanted.astype(wanted.dtype.newbyteorder("="))
    _require(isinstance(received, np.ndarray), "a tensor is not an array", np.ndarray, type(received))
    _require(received.dtype == native.dtype, "a tensor's dtype changed", native.dtype, received.dtype)
    _require(received.shape == native.shape, "a tensor's shape changed", native.shape, received.shape)
    # Bytes of numbers distinguish NaNs and signs of zero; object arrays hold references.
    same = native.tolist() == received.tolist() if native.dtype == object else native.tobytes() == received.tobytes()
    _require(same, "a tensor's values changed", native, received)


async def _exchange(factory: Factory, *messages: WireMessage) -> list[WireMessage]:
    async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
        # The receiver runs beside the sender: with limits on unread bytes the sender would wait forever.
        received = tg.create_task(_collect(second, len(messages)))
        for message in messages:
            await first.send(message)
        return await received


async def _collect(comm: Comm, count: int) -> list[WireMessage]:
    return [await _receive(comm) for _ in range(count)]


# ── delivery ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def check_dtypes(factory: Factory) -> None:
    """Check that every numeric and bool dtype arrives, in shapes and memory layouts of every kind."""
    bits = np.random.default_rng(0).integers(0, 256, 2 * 3 * 4 * 16, np.uint8)
    tensors: list[Value] = []
    for dtype in ALL:
        if dtype.is_numeric or dtype.is_bool:
            # A bool's byte must be 0 or 1.
            whole = (bits & 1 if dtype.is_bool else bits)[: 24 * dtype.size].view(dtype.np_dtype).reshape(2, 3, 4)
            tensors += [
                whole,
                whole[0, 0, 0],
                np.asarray(whole[0, 0, 0]),
                whole[:, ::-2],
                whole.T,
                whole[:0],
                whole[:0].T,
            ]
    # Byte orders other than the native one, and the largest rank that the format has.
    tensors += [np.arange(5, dtype=">i4"), np.arange(5, dtype=">f8"), np.zeros((1,) * 32, np.int8)]
    for start in range(0, len(tensors), 50):
        part = tensors[start : start + 50]
        (message,) = await _exchange(factory, _push(1, *part))
        for sent, received in zip(part, message.tensors, strict=True):
            _require_equal(sent, received)


async def check_strings(factory: Factory) -> None:
    """Check that byte strings of any content and length arrive."""
    # Strings with zero bytes, which terminators would cut, and one that spans several reads.
    items = [b"", b"\x00", b"a\x00", bytes(range(256)), b"x" * 200_000, "ü".encode()]
    square = np.array(items[:4], dtype=object).reshape(2, 2)
    scalar = np.empty((), dtype=object)
    scalar[()] = b"one"
    tensors = [np.array(items, dtype=object), square, square.T, scalar, np.empty((0, 3), dtype=object)]
    (message,) = await _exchange(factory, _push(1, *tensors))
    for sent, received in zip(tensors, message.tensors, strict=True):
        _require_equal(sent, received)


async def check_headers(factory: Factory) -> None:
    """Check that headers with any plain document arrive, and that kind and request number are kept."""
    document: Document = {
        "a": [None, True, -(2**63), 2**64 - 1, 1.5, "ü", [], {}],
        "": {"nested": [[1], {"x": "y"}]},
    }
    sent = [
        WireMessage(FrameKind.REQUEST, 0, document),
        WireMessage(FrameKind.REPLY, 2**64 - 1, {}),
        WireMessage(FrameKind.CANCEL, 7, {"t": (1,)}),
    ]
    received = await _exchange(factory, *sent)
    plain = [(m.kind, m.request, dict(m.header), len(m.tensors)) for m in received]
    wanted = [
        (FrameKind.REQUEST, 0, document, 0),
        (FrameKind.REPLY, 2**64 - 1, {}, 0),
        (FrameKind.CANCEL, 7, {"t": [1]}, 0),
    ]
    _require(plain == wanted, "a message without tensors changed", wanted, plain)


async def check_order(factory: Factory) -> None:
    """Check that messages of all sizes arrive in the order in which they were sent."""
    # Sizes around buffer limits, and large messages between small ones, which may not overtake.
    sizes = [3, 70_000, 0, 1, 3 * _MIB, 64, 65, 65_536, 65_537, 2 * _MIB, 5] * 6
    sent = [_push(i, np.full(size, i % 251, np.uint8)) for i, size in enumerate(sizes)]
    received = await _exchange(factory, *sent)
    _require([m.request for m in received] == list(range(len(sizes))), "messages arrived out of order", None, received)
    for before, after in zip(sent, received, strict=True):
        _require_equal(before.tensors[0], after.tensors[0])


async def check_large(factory: Factory) -> None:
    """Check that 100 MB arrive in one message, together with other tensors."""
    array = np.arange(12_500_000.0)
    (message,) = await _exchange(factory, _push(1, np.arange(3, dtype=np.int8), array, np.float32(2.5)))
    _require(np.array_equal(message.tensors[1], array), "a large tensor's values changed")
    _require_equal(np.float32(2.5), message.tensors[2])


async def check_ownership(factory: Factory) -> None:
    """Check that changes of the sender's array after `send` do not reach the receiver."""
    for size in (10, 100_000, 8 * _MIB):
        async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
            received = tg.create_task(_receive(second))
            array = np.ones(size, np.uint8)
            await first.send(_push(1, array))
            # From here on the memory belongs to the caller again.
            array[:] = 2
            _require(
                bool((await received).tensors[0].max() == 1), "the receiver got a later change of the sender's array"
            )


async def check_both_ways(factory: Factory) -> None:
    """Check that many tasks can send large and small messages both ways at once.

    Each message arrives once, and those of one task arrive in order.
    """

    async def send(comm: Comm, task: int) -> None:
        for i in range(10):
            size = 2 * _MIB if i % 5 == 4 else 100
            await comm.send(_push(task * 100 + i, np.full(size, task, np.uint8)))

    async def receive(comm: Comm) -> None:
        found: dict[int, list[int]] = {}
        # 8 tasks send 10 messages each.
        for message in await _collect(comm, 80):
            task, i = divmod(message.request, 100)
            _require(bool((message.tensors[0] == task).all()), "messages were mixed up")
            found.setdefault(task, []).append(i)
        wanted = {task: list(range(10)) for task in range(8)}
        _require(found == wanted, "messages of one task were reordered, lost or duplicated", wanted, found)

    async with factory(CommOptions(), CommOptions()) as pair, asyncio.TaskGroup() as tg:
        for comm in pair:
            tg.create_task(receive(comm))
            for task in range(8):
                tg.create_task(send(comm, task))


async def check_urgent(factory: Factory) -> None:
    """Check that an urgent message sent during a large one arrives whole, as does the large one."""
    async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
        large = tg.create_task(first.send(_push(1, np.ones(16 * _MIB, np.uint8))))
        # The large message must have begun when the urgent one is sent.
        await asyncio.sleep(0)
        urgent = tg.create_task(first.send(_push(2, np.arange(4)), urgent=True))
        messages = {m.request: m for m in await _collect(second, 2)}
        await large
        await urgent
        _require_equal(np.ones(16 * _MIB, np.uint8), messages[1].tensors[0])
        _require_equal(np.arange(4), messages[2].tensors[0])


async def check_post(factory: Factory) -> None:
    """Check that posted messages arrive once, whole and in order, and that `post` refuses a message that has to wait.

    The refused message can be sent with `send`.
    """
    # A small limit, so that `post` soon has to refuse.
    options = CommOptions(limits=Limits(unread_bytes=_MIB))
    async with factory(options, options) as (first, second), asyncio.TaskGroup() as tg:
        posted = 0
        while first.post(_push(posted, np.full(100_000, posted % 251, np.uint8))):
            # The bound turns an endless loop into an error.
            posted += 1
            _require(posted < 1000, "`post` never refuses a message although the peer does not read")
        _require(posted > 0, "no message could be posted")
        refused = tg.create_task(first.send(_push(posted, np.full(3, posted % 251, np.uint8))))
        received = await _collect(second, posted + 1)
        await refused
        _require([m.request for m in received] == list(range(posted + 1)), "posted messages were lost or out of order")
        whole = all(bool((m.tensors[0] == m.request % 251).all()) for m in received)
        _require(whole, "a posted message changed")


# ── closing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def check_close(factory: Factory) -> None:
    """Check that after `close` the peer receives all sent messages and then None, and that neither end can send."""
    async with factory(CommOptions(), CommOptions()) as (first, second):
        for i in range(50):
            await first.send(_push(i, np.zeros(20_000, np.uint8)))
        async with asyncio.TaskGroup() as tg:
            tg.create_task(first.close())
            received = [m.request for m in await _collect(second, 50)]
            _require(received == list(range(50)), "messages before a close were lost", 50, received)
            # Twice: the end must stay the end.
            for _ in range(2):
                _require(await second.receive() is None, "the peer did not receive None after a close")
        _require(first.closed and second.closed, "an end is still open after a close")
        await _fails(UnavailableError, "a closed end could send", first.send(_push(1)), first.peer)
        await _fails(UnavailableError, "a send to a closed peer succeeded", second.send(_push(1)), second.peer)
        _require(await first.receive() is None, "a closed end received a message")
        await first.close()


async def check_abort(factory: Factory) -> None:
    """Check that an abort raises UnavailableError with the name of the peer, in waiting and in later calls."""
    async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
        waiting = tg.create_task(
            _fails(UnavailableError, "an abort did not end a pending receive", second.receive(), second.peer)
        )
        # One turn of the loop, so that `receive` is waiting when the abort comes.
        await asyncio.sleep(0)
        first.abort("no more")
        await waiting
        for comm in (first, second):
            await _fails(UnavailableError, "a receive succeeded after an abort", comm.receive(), comm.peer)
            await _fails(UnavailableError, "a send succeeded after an abort", comm.send(_push(1)), comm.peer)


async def check_failed_block(factory: Factory) -> None:
    """Check that a block that fails aborts its comm, and that a block that ends closes it."""
    async with factory(CommOptions(), CommOptions()) as (first, second):
        try:
            async with first:
                raise KeyError("the user's own")
        except KeyError:
            pass
        await _fails(
            UnavailableError,
            "a failed block closed the connection instead of aborting it",
            second.receive(),
            second.peer,
        )
    async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
        end = tg.create_task(second.receive())
        async with first:
            pass
        _require(await end is None, "the end of a block did not close the connection")


async def check_abort_in_message(factory: Factory) -> None:
    """Check that after an abort or a cancelled send during a large message, the peer gets the whole or an error."""
    for cancel in (True, False):
        async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
            array = np.ones(64 * _MIB, np.uint8)
            sending = tg.create_task(_tolerant(first.send(_push(1, array))))
            # A few turns, so that the send is under way in most transports.
            for _ in range(3):
                await asyncio.sleep(0)
            if cancel:
                sending.cancel()
                first.abort("after a cancelled send")
            else:
                first.abort("in the middle")
            try:
                message = await second.receive()
            except UnavailableError:
                continue
            _require(message is not None and bool(message.tensors[0].all()), "part of a message was received")


async def _tolerant(sending: Awaitable[None]) -> None:
    try:
        await sending
    except UnavailableError:
        return


async def check_waiting_sender(factory: Factory) -> None:
    """Check that a sender that waits for a peer that does not read fails when the connection ends."""
    options = CommOptions(limits=Limits(unread_bytes=1000))
    async with factory(options, options) as (first, second), asyncio.TaskGroup() as tg:

        async def fill() -> None:
            while True:
                await first.send(_push(1, np.zeros(_MIB, np.uint8)))

        filling = tg.create_task(
            _fails(UnavailableError, "a waiting sender did not fail when the connection ended", fill(), first.peer)
        )
        await _until_steady(lambda: filling.done(), 20)
        second.abort("not interested")
        await filling


async def _until_steady(progress: Callable[[], object], rounds: int) -> None:
    """Wait until `progress()` has not changed for `rounds` rounds."""
    # Without a fixed time: a slow machine needs more rounds.
    before, quiet = progress(), 0
    while quiet < rounds:
        await asyncio.sleep(0.002)
        now = progress()
        before, quiet = now, quiet + 1 if now == before else 0


async def check_cancelled_receive(factory: Factory) -> None:
    """Check that a cancelled `receive` loses no message, even if it is cancelled as a message arrives."""
    async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
        for i in range(20):
            receiving = tg.create_task(second.receive())
            # The receive must have begun before it is cancelled.
            await asyncio.sleep(0)
            # Odd rounds: the message arrives as the receive is cancelled. Even rounds: after it.
            if i % 2:
                await first.send(_push(i))
            receiving.cancel()
            await asyncio.wait([receiving])
            if not i % 2:
                await first.send(_push(i))
            message = await _receive(second) if receiving.cancelled() else receiving.result()
            _require(message is not None and message.request == i, "a message was lost", i, message)


async def check_two_receivers(factory: Factory) -> None:
    """Check that a second concurrent `receive` is refused, and that the first continues."""
    async with factory(CommOptions(), CommOptions()) as (first, second), asyncio.TaskGroup() as tg:
        receiving = tg.create_task(_receive(second))
        await asyncio.sleep(0)
        await _fails(FailedPreconditionError, "a second concurrent receive was accepted", second.receive())
        await first.send(_push(5))
        _require((await receiving).request == 5, "the first receiver got a wrong message")


# ── rejection ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def check_refused(factory: Factory) -> None:
    """Check that messages that cannot be sent are refused at the sender, and that the connection stays usable."""
    objects = np.array([object()], dtype=object)
    text = np.array(["text"], dtype=object)
    kinds: list[tuple[type[AioflowError], WireMessage]] = [
        (DTypeError, _push(1, objects)),
        (DTypeError, _push(1, text)),
        (DTypeError, _push(1, np.zeros(1, "datetime64[s]"))),
        (InvalidArgumentError, WireMessage(FrameKind.PUSH, 1, {"x": b"bytes"})),
        (InvalidArgumentError, WireMessage(FrameKind.PUSH, 1, {"x": object()})),
        (InvalidArgumentError, WireMessage(FrameKind.PUSH, 1, {"x": 2**64})),
        (InvalidArgumentError, WireMessage(FrameKind.PUSH, 1, {1: "x"})),  # type: ignore[dict-item]  # that is the point
        (InvalidArgumentError, WireMessage(FrameKind.PUSH, 1, ["x"])),  # type: ignore[arg-type]
        (InvalidArgumentError, WireMessage(FrameKind.PUSH, 2**64)),
        (InvalidArgumentError, WireMessage(FrameKind.CLOSE, 1)),
        (ResourceExhaustedError, _push(1, np.zeros((1,) * 33))),
        (ResourceExhaustedError, _push(1, *[np.int8(1)] * 1025)),
        (ResourceExhaustedError, WireMessage(FrameKind.PUSH, 1, {"x": "y" * 70_000})),
    ]
    async with factory(CommOptions(), CommOptions()) as (first, second):
        for kind, message in kinds:
            await _fails(kind, f"{message.header or message.tensors} was sent", first.send(message))
        await first.send(_push(9))
        _require((await _receive(second)).request == 9, "a refused message reached the peer")


async def check_limits(factory: Factory) -> None:
    """Check that a message over a limit of the receiver ends the connection, with an error that names the limit."""
    strict = CommOptions(limits=Limits(tensor_bytes=1000, header_bytes=200, rank=2, tensors=3, strings=4))
    messages = [
        _push(1, np.zeros(1001, np.uint8)),
        _push(1, np.zeros(300_000, np.uint8)),
        WireMessage(FrameKind.PUSH, 1, {"x": "y" * 200}),
        _push(1, np.zeros((1, 1, 1))),
        _push(1, *[np.int8(1)] * 4),
        _push(1, np.array([b""] * 5, dtype=object)),
    ]
    for message in messages:
        async with factory(CommOptions(), strict) as (first, second), asyncio.TaskGroup() as tg:
            tg.create_task(_tolerant(first.send(message)))
            await _fails(ResourceExhaustedError, "a message over the limit was received", second.receive(), second.peer)
            await _fails(UnavailableError, "the sender got no error", first.receive(), first.peer)


async def check_backpressure(factory: Factory) -> None:
    """Check that a sender waits for a receiver that does not read, and that all messages arrive once it reads."""
    count, sent = 300, 0
    options = CommOptions(limits=Limits(unread_bytes=_MIB))
    async with factory(options, options) as (first, second), asyncio.TaskGroup() as tg:

        async def send() -> None:
            nonlocal sent
            for i in range(count):
                await first.send(_push(i, np.zeros(_MIB, np.uint8)))
                sent += 1

        tg.create_task(send())
        await _until_steady(lambda: sent, 20)
        _require(sent < count, "a sender does not wait for the receiver", f"less than {count} MiB", sent)
        received = [m.request for m in await _collect(second, count)]
        _require(received == list(range(count)), "messages were lost while the sender waited", count, len(received))


async def check_names(factory: Factory) -> None:
    """Check that each end knows the incarnation of the other, and has a name for it."""
    async with factory(CommOptions(incarnation=5), CommOptions(incarnation=2**64 - 1)) as (first, second):
        found = (first.peer_incarnation, second.peer_incarnation)
        _require(found == (2**64 - 1, 5), "wrong incarnations", (2**64 - 1, 5), found)
        _require(bool(first.peer) and bool(second.peer), "a peer has no name")
        dtype = as_dtype("float32")
        await first.send(_push(1, np.zeros(1, dtype.np_dtype)))
        await _receive(second)


CHECKS: Final[tuple[Check, ...]] = (
    check_dtypes,
    check_strings,
    check_headers,
    check_order,
    check_large,
    check_ownership,
    check_both_ways,
    check_urgent,
    check_post,
    check_close,
    check_abort,
    check_failed_block,
    check_abort_in_message,
    check_waiting_sender,
    check_cancelled_receive,
    check_two_receivers,
    check_refused,
    check_limits,
    check_backpressure,
    check_names,
)
