"""`until_disconnect` stops the steps of disconnected clients, on a real server and with fake messages; `rows_of`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aioflow as af
from aioflow.demo.service import serving
from aioflow.errors import ClientDisconnectedError, FailedPreconditionError, InvalidArgumentError
from aioflow.web import rows_of, until_disconnect

SECONDS = 60.0


# ── a real server ────────────────────────────────────────────────────────────────────────────────────────────────────


class Service:
    """An application: `POST /` runs a step on the number in the body, `GET /` on 1."""

    def __init__(self, run: Callable[[float], Awaitable[Any]]) -> None:
        self._run = run
        self.outcomes: asyncio.Queue[object] = asyncio.Queue()

    async def answer(self, request: Request) -> Response:
        number = (await request.json()) if request.method == "POST" else 1.0
        try:
            value = float(await until_disconnect(request.receive, self._run(number)))
        except BaseException as error:
            await self.outcomes.put(error)
            raise
        await self.outcomes.put(value)
        return JSONResponse(value)

    async def gone(self, _: Request, error: Exception) -> Response:
        return Response(str(error), status_code=499)

    async def outcome(self) -> object:
        """Return the result or the error of the next request that ends."""
        async with asyncio.timeout(SECONDS):
            return await self.outcomes.get()

    @contextlib.asynccontextmanager
    async def at(self, middleware: Iterable[Middleware] = ()) -> AsyncIterator[int]:
        """Serve the application, and yield the port."""
        routes = [Route("/", self.answer, methods=["GET", "POST"])]
        handlers: Any = {ClientDisconnectedError: self.gone}
        app = Starlette(routes=routes, middleware=[*middleware], exception_handlers=handlers)
        async with asyncio.timeout(SECONDS), serving(app, 0) as url:
            yield int(url.rpartition(":")[2])


def post(number: float) -> bytes:
    body = json.dumps(number)
    return f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@contextlib.asynccontextmanager
async def client(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Waiting:
    """A coroutine for a node that waits for `may_end` and returns its argument.

    Events report its start and its cancellation.
    """

    def __init__(self) -> None:
        self.entered, self.cancelled, self.may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, x: Any) -> Any:
        self.entered.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return x


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
async def service(waiting: Waiting) -> AsyncIterator[Service]:
    """Yield a service whose step waits in a coroutine."""
    x = af.placeholder(af.float32, [])
    y = af.py_coroutine(waiting, [x], af.float32, shapes=[]) * 2.0
    async with af.Session() as session:
        yield Service(session.make_callable(y, [x]))


async def read_body(request: Request, call_next: Any) -> Any:
    await request.body()
    return await call_next(request)


async def read_nothing(request: Request, call_next: Any) -> Any:
    return await call_next(request)


@pytest.mark.parametrize("message", [post(3.0), GET], ids=["POST", "GET"])
@pytest.mark.parametrize("dispatch", [None, read_nothing, read_body], ids=["plain", "middleware", "body in middleware"])
async def test_disconnect_stops_the_step(service: Service, waiting: Waiting, message: bytes, dispatch: Any) -> None:
    middleware = [] if dispatch is None else [Middleware(BaseHTTPMiddleware, dispatch=dispatch)]
    async with service.at(middleware) as port:
        async with client(port) as (_, writer):
            writer.write(message)
            await waiting.entered.wait()
        assert isinstance(await service.outcome(), ClientDisconnectedError)
        assert waiting.cancelled.is_set()
        # The server still answers other clients.
        waiting.may_end.set()
        async with client(port) as (reader, writer):
            writer.write(post(4.0))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await service.outcome() == 8.0


async def test_disconnect_stops_a_loop_of_kernels() -> None:
    """The loop runs in a thread and stops after the current kernel.

    `run` returns only when no kernel of the step is running.
    """
    x = af.placeholder(af.float32, [])
    begun = asyncio.Event()

    async def say(x: Any) -> Any:
        begun.set()
        return x

    start = af.py_coroutine(say, [x], af.float32, shapes=[])
    _, y = af.while_loop(lambda i, _: i < 2**31 - 1, lambda i, y: (i + 1, af.tanh(y)), (0, start))
    async with af.Session() as session:
        service = Service(session.make_callable(y, [x]))
        async with service.at() as port:
            async with client(port) as (_, writer):
                writer.write(post(1.0))
                await begun.wait()
            assert isinstance(await service.outcome(), ClientDisconnectedError)
            assert await session.run(x * 2.0, {x: 3.0}) == 6.0


async def test_pipelined_requests_are_answered_in_order(service: Service, waiting: Waiting) -> None:
    """The second request arrives while the first waits (pipelining), and is not a disconnect."""
    async with service.at() as port, client(port) as (reader, writer):
        writer.write(post(1.0) + post(2.0))
        await waiting.entered.wait()
        waiting.may_end.set()
        assert [await service.outcome(), await service.outcome()] == [2.0, 4.0]
        answers = await reader.readuntil(b"2.0") + await reader.readuntil(b"4.0")
        assert answers.count(b"HTTP/1.1 200") == 2


async def test_error_of_the_step_is_raised_unchanged(service: Service) -> None:
    async with service.at() as port, client(port) as (reader, writer):
        body = b'"text"'
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n" + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 500")
        assert isinstance(await service.outcome(), af.errors.InvalidArgumentError)


# ── results, errors and cancellation ─────────────────────────────────────────────────────────────────────────────────


class Receiver:
    """An ASGI `receive` that returns messages, and then waits until the client disconnects. Counts its waiters."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = list(messages)
        self.pending = 0
        self.goes = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        self.pending += 1
        try:
            await self.goes.wait()
        finally:
            self.pending -= 1
        return {"type": "http.disconnect"}


END_OF_BODY = {"type": "http.request", "body": b"", "more_body": False}


async def give(value: Any) -> Any:
    if isinstance(value, BaseException):
        raise value
    return value


async def after(receiver: Receiver, value: Any) -> Any:
    """Return `value` once a caller of `receiver` waits for the disconnect."""
    while not receiver.pending:  # noqa: ASYNC110  # no event signals the waiter
        await asyncio.sleep(0)
    return await give(value)


@pytest.mark.parametrize("messages", [(), (END_OF_BODY,), ({"type": "http.request"},)])
async def test_until_disconnect_returns_the_result_and_stops_receiving(messages: tuple[dict[str, Any], ...]) -> None:
    receiver = Receiver(*messages)
    assert await until_disconnect(receiver, give(5)) == 5
    assert await until_disconnect(receiver, after(receiver, 6)) == 6
    assert receiver.pending == 0


@pytest.mark.parametrize("error", [ValueError("wrong"), ExceptionGroup("several", [ValueError()]), KeyError(1)])
@pytest.mark.parametrize("at_once", [True, False])
async def test_until_disconnect_raises_the_original_error(error: Exception, at_once: bool) -> None:
    receiver = Receiver()
    with pytest.raises(type(error)) as raised:
        await until_disconnect(receiver, give(error) if at_once else after(receiver, error))
    assert raised.value is error
    assert raised.value.__context__ is None
    assert receiver.pending == 0


@pytest.mark.parametrize("scope", ["cancel", "timeout"])
async def test_cancelling_the_handler_is_not_a_disconnect(waiting: Waiting, scope: str) -> None:
    receiver = Receiver()
    if scope == "timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await until_disconnect(receiver, waiting(1))
    else:
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(until_disconnect(receiver, waiting(1)))
            await waiting.entered.wait()
            task.cancel()
        assert task.cancelled()
    assert waiting.cancelled.is_set()
    assert receiver.pending == 0


async def test_disconnect_inside_a_timeout_is_not_a_timeout(waiting: Waiting) -> None:
    """The task stays usable: it can wait, and be cancelled."""
    receiver = Receiver()
    receiver.goes.set()
    async with asyncio.timeout(SECONDS) as scope:
        with pytest.raises(ClientDisconnectedError) as raised:
            await until_disconnect(receiver, waiting(1))
        await asyncio.sleep(0)
    assert not scope.expired()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert isinstance(raised.value, af.errors.CancelledError)
    assert "client" in str(raised.value)


async def test_error_during_cancellation_is_the_cause_of_the_disconnect() -> None:
    receiver = Receiver()

    async def fails_to_stop() -> None:
        try:
            receiver.goes.set()
            await asyncio.Event().wait()
        finally:
            raise OSError("disk full")

    with pytest.raises(ClientDisconnectedError) as raised:
        await until_disconnect(receiver, fails_to_stop())
    assert isinstance(raised.value.__cause__, OSError)


async def test_until_disconnect_rejects_an_unread_body(waiting: Waiting) -> None:
    for messages in (
        [{"type": "http.request", "body": b"[1]", "more_body": False}],
        [{"type": "http.request", "body": b"", "more_body": True}],
        [END_OF_BODY] * 2,
        [{"type": "websocket.receive", "text": "x"}],
    ):
        receiver = Receiver(*messages)
        with pytest.raises(FailedPreconditionError, match="body"):
            await until_disconnect(receiver, waiting(1))
    assert waiting.cancelled.is_set()


async def test_until_disconnect_raises_errors_of_receive(waiting: Waiting) -> None:
    async def receive() -> dict[str, Any]:
        raise RuntimeError("no channel")

    with pytest.raises(RuntimeError, match="no channel"):
        await until_disconnect(receive, waiting(1))
    assert waiting.cancelled.is_set()


# ── rows that clients send ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "dtype", "shape", "rows"),
    [
        (b"[[1, 2], [3, 4.5]]", af.float32, [None, 2], [[1.0, 2.0], [3.0, 4.5]]),
        ("[[1, 2]]", af.float64, [None, None], [[1.0, 2.0]]),
        (bytearray(b"\n[1.5, 3e38]"), af.bfloat16, [None], [1.5, 3.00405527047391e38]),
        ([[1], [-128]], af.int8, [None, 1], [[1], [-128]]),
        ("[18446744073709551615]", af.uint64, [None], [2**64 - 1]),
        ("[[true], [false]]", af.bool, None, [[True], [False]]),
        ('["é", "a\\u0000"]', af.string, [None], ["é".encode(), b"a\x00"]),
        ("[]", af.float32, [None], []),
    ],
)
async def test_rows_of_returns_arrays_that_can_be_fed(body: Any, dtype: Any, shape: Any, rows: Any) -> None:
    x = af.placeholder(dtype, shape)
    found = rows_of(body, x)
    async with af.Session() as session:
        assert (await session.run(af.identity(x), {x: found})).tolist() == rows


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON: Expecting value"),
        (b"\xff", "not UTF-8 (byte 0)"),
        (b"{}", "the body is an object"),
        (b"7", "shape is []"),
        (b"null", "the body is null"),
        (b"[]", "shape is [0]"),
        (b"[[1]]", "shape is [1, 1]"),
        (b"[[[1, 2]]]", "shape is [1, 1, 2]"),
        (b"[[1, 2], [3]]", "differ in length"),
        (b"[1, [2]]", "differ in length"),
        (b'[[1, "2"]]', "the element at [0, 1] is a string"),
        (b"[[1, 2], [null, 3]]", "the element at [1, 0] is null"),
        (b"[[1, true]]", "a boolean"),
        (b"[[1, NaN]]", "NaN"),
        (b"[[1, -Infinity]]", "-Infinity"),
        ([[1.0, math.nan]], "NaN"),
        (b"[[1, 1e300]]", "too large"),
        (b"[[1, 1e999]]", "too large"),
        (b"[[1, " + b"9" * 400 + b"]]", "too large"),
        (b"[[1, " + b"9" * 5000 + b"]]", "digits"),
        (b"[" * 100_000, "nested"),
        (b"[" * 100 + b"]" * 100, "differ in length"),
    ],
)
def test_rows_of_rejects_malformed_bodies_with_a_reason(body: Any, why: str) -> None:
    x = af.placeholder(af.float32, [None, 2], name="x")
    with pytest.raises(InvalidArgumentError) as raised:
        rows_of(body, x)
    expected = "a JSON list of rows, each a list of 2 numbers (float32)"
    assert raised.value.message == f"invalid rows for 'x': {raised.value.actual}; expected {expected}"
    assert why in raised.value.message


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        (af.int32, [None], "a JSON list of whole numbers (int32)"),
        (af.string, [3], "a JSON list of 3 strings (string)"),
        (af.bool, [None, None], "a JSON list of rows, each a list of booleans (bool)"),
        (af.float32, [None, 4, None], "a JSON list of rows, each nested lists of numbers (float32) of shape [4, ?]"),
        (af.float32, None, "a JSON list of rows of numbers (float32)"),
    ],
)
def test_rows_of_describes_the_expected_json(dtype: Any, shape: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(f"; expected {expected}")):
        rows_of(b"{}", af.placeholder(dtype, shape))


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("[1.0]", af.int32),
        ("[128]", af.int8),
        ("[-1]", af.uint8),
        ("[9223372036854775808]", af.int64),
        ("[1]", af.bool),
        ("[3.4e38]", af.bfloat16),
        ("[65520]", af.float16),
        ('["\\ud800"]', af.string),
        ("[1]", af.string),
        ("[1]", af.complex64),
        ("[1]", af.resource),
    ],
)
def test_rows_of_rejects_values_outside_the_dtype(body: str, dtype: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"expected a JSON list of .*\({dtype.name}\)"):
        rows_of(body, af.placeholder(dtype, [None]))
