"""The status page of a server: HTTP at a port of the loopback, for probes and metrics collectors.

A connection serves one request. Its time and size are limited to a few seconds and KiB, and so is the number of
connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from aioflow.net.status.http import answer
from aioflow.net.status.server import ServerStatus

_HOST: Final = "127.0.0.1"
_SECONDS: Final = 5.0  # per connection
_MOST: Final = 32  # connections at a time


@asynccontextmanager
async def serve_status(
    status: Callable[[], ServerStatus], port: int = 0, seconds: float = _SECONDS, most: int = _MOST
) -> AsyncIterator[str]:
    """Serve `/`, `/health` and `/metrics` during the block, which receives the URL.

    Args:
        status: Returns the status of the server.
        port: Port on the loopback; 0 for a free one.
        seconds: Maximum duration of a connection.
        most: Maximum number of connections; further ones are closed at once.

    Raises:
        OSError: the port is in use.
    """
    loop = asyncio.get_running_loop()
    connections: set[asyncio.Transport] = set()
    listener = await loop.create_server(
        lambda: _Connection(status, connections, seconds, most), _HOST, port, start_serving=False
    )
    try:
        # Not in `create_server`, which leaves the socket open if it is cancelled.
        await listener.start_serving()
        yield f"http://{_HOST}:{listener.sockets[0].getsockname()[1]}/"
    finally:
        listener.close()
        for transport in list(connections):
            transport.abort()
        await listener.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(
        self, status: Callable[[], ServerStatus], connections: set[asyncio.Transport], seconds: float, most: int
    ) -> None:
        self._status = status
        self._connections = connections
        self._seconds = seconds
        self._most = most
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._connections) >= self._most:
            self._transport.abort()
            return
        self._connections.add(self._transport)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._answered or self._transport is None:
            return  # one request per connection
        self._received += data
        found = answer(self._received, self._status)
        if found is not None:
            self._answered = True
            self._received.clear()
            self._transport.write(found)
            # Leave it to the peer to close: closing with unread input would reset the connection and lose the answer.
            self._transport.write_eof()

    def eof_received(self) -> None:
        """Let the transport close once all has been written."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._connections.discard(self._transport)
