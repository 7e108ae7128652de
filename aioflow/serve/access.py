"""Request ids and the access log of the HTTP server, outside of the application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aioflow.observe.logs import REQUEST_ID, REQUEST_ID_HEADER, TRACEPARENT, AccessEntry, log_access, request_id

_TRACEPARENT: Final = TRACEPARENT.encode()
_HEADER: Final = REQUEST_ID_HEADER.encode()
_GONE: Final = 499  # nginx's status of a request whose client has left
_FAULT: Final = 500


class IdentifiedRequests:
    """An ASGI application that gives each request of another one an id, and each response a header with it.

    Records that the application logs have the id, too.

    Args:
        app: The application.
        is_logged: Whether to log each request to the access log.
        clock: Returns seconds, for durations.
        now: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        app: ASGIApp,
        is_logged: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._is_logged = is_logged
        self._clock = clock
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = request_id(_traceparent(scope))
        # Not reset: the server runs each request in a context of its own.
        REQUEST_ID.set(number)
        header = (_HEADER, number.encode())
        if self._is_logged:
            await self._logged(scope, receive, send, number, header)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
            await send(message)

        await self._app(scope, receive, sending)

    async def _logged(
        self, scope: Scope, receive: Receive, send: Send, number: str, header: tuple[bytes, bytes]
    ) -> None:
        begun, status, size = self._clock(), 0, 0

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
                await send(message)
                status = message["status"]
            else:
                await send(message)
                size += len(message.get("body", b""))

        try:
            await self._app(scope, receive, sending)
        except (Exception, asyncio.CancelledError):
            # The server answers so, if the response has not begun.
            status = status or _FAULT
            raise
        finally:
            client = scope.get("client")
            entry = AccessEntry(
                self._now(),
                client[0] if client else "-",
                scope["method"],
                scope["raw_path"].decode("latin-1"),
                f"HTTP/{scope['http_version']}",
                status or _GONE,
                0 if scope["method"] == "HEAD" else size,
                self._clock() - begun,
                number,
            )
            log_access(entry)


def _traceparent(scope: Scope) -> str:
    found = [value for key, value in scope["headers"] if key == _TRACEPARENT]
    # Several headers are ignored, as W3C Trace Context demands.
    return found[0].decode("latin-1") if len(found) == 1 else ""
