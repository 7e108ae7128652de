"""A uvicorn server embedded in another program, which keeps its own signal handlers and logging."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.server import ServerState

from aioflow.concurrency.threads import although_cancelled, to_its_end

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
else:
    Base = object  # uvicorn has several protocols, which need different optional packages

__all__ = ["Connection", "EmbeddedServer", "EmbeddedSettings"]

# Seconds at shutdown for which idle connections stay open, and for which clients may read the last responses.
_GRACE: Final = 0.3
_PROBES: Final = (0.25, 1.0)  # seconds after which a client that closed its sending half is probed
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CUT_OFF: Final = b'{"error":"the service has ended"}'


class EmbeddedSettings(uvicorn.Config):
    """Settings of an embedded server. They leave logging alone: uvicorn would close the handlers of the program."""

    def configure_logging(self) -> None:
        """Do nothing; the program configures logging."""

    def load(self) -> None:
        """Load the application and the protocol, and wrap both.

        Each connection becomes a `Connection`, and requests that are cut off get a 503.
        """
        super().load()
        self.loaded_app = _answering_cut_off(self.loaded_app)
        protocol: Any = self.http_protocol_class
        self.http_protocol_class = type("_Connection", (Connection, protocol), {})


def _answering_cut_off(app: ASGIApp) -> ASGIApp:
    """Return an ASGI application that responds 503 when a request of `app` is cancelled, as at shutdown."""

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            await send(message)
            has_begun = True

        try:
            await app(scope, receive, sending)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if has_begun:
                return  # uvicorn logs the incomplete response and closes the connection
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(_CUT_OFF)),
                (b"connection", b"close"),
            ]
            with contextlib.suppress(asyncio.CancelledError):  # if the client does not read
                await send({"type": "http.response.start", "status": 503, "headers": headers})
                await send({"type": "http.response.body", "body": _CUT_OFF})

    return answering


class _State(ServerState):
    """The state that the server and its connections share.

    Attributes:
        is_leaving: Whether connections are closed after their next response.
        has_closed: Event, set when a connection has been closed or set up.
        set_ups: Tasks that set connections up if the program accepts them itself: TLS handshakes.
        is_over: Whether the server has ended, so that connections still being accepted are dropped.
    """

    is_leaving = False
    is_over = False

    def __init__(self) -> None:
        super().__init__()
        self.has_closed = asyncio.Event()
        self.set_ups: set[asyncio.Task[None]] = set()


class Connection(Base):
    """Mix-in for a uvicorn protocol: one connection to an `EmbeddedServer`."""

    server_state: _State

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.access_log: bool = self.access_log and self.config.access_log  # uvicorn does that in `configure_logging`
        self._requests = deque[Any]()  # requests without a complete response; all but the last are pipelined

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Set the connection up, or drop it if the server ended while it was accepted."""
        super().connection_made(transport)
        if self.server_state.is_over:
            transport.abort()
        elif self.server_state.is_leaving:
            self.end_silence()

    def end_silence(self) -> None:
        """Close the connection if the client sends nothing for a while."""
        # uvicorn starts this timer only after a response.
        if not self._requests and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_headers_complete(self) -> None:
        """Record the request."""
        super().on_headers_complete()
        while self._requests and self._requests[0].response_complete:
            self._requests.popleft()
        if self.cycle is not None:  # None if the connection becomes a WebSocket
            self._requests.append(self.cycle)
            self.cycle.keep_alive = self.cycle.keep_alive and not self.server_state.is_leaving

    def eof_received(self) -> bool | None:  # type: ignore[override]  # as asyncio has it
        """Keep the connection open for the responses to a client that has closed its sending half, as HTTP allows.

        A disconnected client sends the same EOF, so the connection is probed with an interim response. A client that is
        still connected ignores it. The system of a disconnected client resets the connection, so the next probe fails.
        """
        waiting = [request for request in self._requests if not request.response_complete]
        if self.scheme == "https" or not waiting or any(request.more_body for request in waiting):
            return None  # TLS cannot be half closed, and a truncated request never completes
        waiting[-1].keep_alive = False
        # HTTP/1.0 has no interim responses.
        if all(request.scope["http_version"] == "1.1" for request in waiting):
            for seconds in _PROBES:
                self.loop.call_later(seconds, self._probe)
        return True

    def _probe(self) -> None:
        for request in self._requests:
            if not request.response_complete:
                if not request.response_started and not self.transport.is_closing():
                    self.transport.write(_CONTINUE)
                return

    def send_400_response(self, msg: str) -> None:
        """Reject input that is not HTTP, in the JSON format of the protocol's errors."""
        body = json.dumps({"error": msg}).encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify every request that the client has disconnected."""
        # uvicorn notifies only the last request. With pipelining, an earlier one is being answered, and would write to
        # a closed transport.
        for request in self._requests:
            if not request.response_complete:
                request.disconnected = True
                request.message_event.set()
        super().connection_lost(exc)
        self.server_state.has_closed.set()


class EmbeddedServer(uvicorn.Server):
    """A server in an event loop of a program that keeps its signal handlers."""

    server_state: _State

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _State()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`, then answer the requests that have begun, and cut off the rest.

        If this is cancelled, all requests are cut off at once.
        """
        try:
            await super().serve(sockets)
        finally:
            await self._cut_off()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. A cancellation takes effect only afterwards."""
        # asyncio loses a server if its creation is cancelled.
        await to_its_end(super().startup(sockets))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait briefly for requests that clients may be sending, and end."""
        for server in self.servers:
            server.close()
        drain = self.config.timeout_graceful_shutdown
        await self.end_keep_alive(_GRACE if drain is None else min(_GRACE, drain))
        await super().shutdown(sockets)

    async def end_keep_alive(self, seconds: float) -> None:
        """Close each connection after its next response, which announces the close, or when it is idle for a while.

        A connection is idle while its client has no request in progress. Return when all are closed, or after `seconds`
        seconds.
        """
        state = self.server_state
        state.is_leaving = True
        for connection in state.connections:
            connection.end_silence()  # type: ignore[union-attr]  # each is a `Connection`
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while state.connections or state.set_ups:
                    state.has_closed.clear()
                    await state.has_closed.wait()

    async def _cut_off(self) -> None:
        state = self.server_state
        state.is_over = True
        # uvicorn sets `servers` in `startup`, which may have failed or not begun.
        for server in getattr(self, "servers", ()):
            server.close()
        aborting = asyncio.get_running_loop().call_later(_GRACE, self._abort)  # for clients that do not read
        # A task that has just ended stays in its set until the next iteration of the loop. Without the `done`
        # condition, this would be a busy loop that never yields.
        while tasks := [task for task in (*state.tasks, *state.set_ups) if not task.done()]:
            for task in tasks:
                task.cancel()
            for task in tasks:
                await although_cancelled(task)
        aborting.cancel()
        self._abort()

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture no signals."""
        yield
