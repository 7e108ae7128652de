"""How a process takes connections off the socket that it shares with the others.

All wait at one socket, so that a connection which nobody has taken yet waits for whoever comes first: it outlives a
process that ends, and does not wait for one that stands still. (With a socket for each, by SO_REUSEPORT, the kernel has
given every connection to one of them at once, for better or worse.) What such a queue does not do is to spread
connections, and one that is kept alive stays where it is: so a process that has more than another lets the others go
first, for a moment.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, NoReturn

from aioflow.serve.processes.board import Board
from aioflow.serve.processes.moving import MovingProtocol, take

__all__ = ["Acceptor", "Sockets"]

_LOG: Final = logging.getLogger("aioflow.serve")
_MOMENT: Final = 5e-3  # seconds in which others may take a connection first
_SHORTEST: Final = 1e-3
_STEP: Final = 2e-4  # seconds after which one looks whether they have
_SLACK: Final = 1  # connections that one may have more than another
_PAUSE: Final = 0.1  # seconds, where the process has no room for another connection
_HANDSHAKE: Final = 30.0
_GONE: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EAGAIN)


@dataclass(frozen=True, slots=True)
class Sockets:
    """What all processes share.

    Attributes:
        listener: That listens.
        give, take: Where a connection is put that is handed on, and where it is found.
    """

    listener: socket.socket
    give: socket.socket
    take: socket.socket


class Acceptor:
    """The connections of one process.

    Args:
        board: Where it says how many it has, and sees how many others have.
        opened: What makes the protocol of a connection.
        tls: By which it speaks TLS.
        count: How many connections there are that have been set up.
    """

    def __init__(
        self,
        sockets: Sockets,
        board: Board,
        opened: Callable[[], MovingProtocol],
        tls: SSLContext | None,
        count: Callable[[], int],
    ) -> None:
        sockets.listener.setblocking(False)
        self._sockets = sockets
        self._board = board
        self._opened = opened
        self._tls = tls
        self._count = count
        self._beginning = 0  # connections that are being set up
        self._is_taking = True
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Acceptor:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, error, traceback)  # what is being set up goes on to its end

    @property
    def connections(self) -> int:
        """How many there are."""
        return self._count() + self._beginning

    async def accept(self) -> NoReturn:
        """The body of the task that takes what comes."""
        await self._take(self._sockets.listener, self._accepted, is_moved=False)

    async def take_moved(self) -> NoReturn:
        """The body of the task that takes what is handed on."""
        await self._take(self._sockets.take, self._handed_on, is_moved=True)

    def sweep(self) -> None:
        """Take all that waits, and wait for no more."""
        self._is_taking = False
        while (connection := self._accepted()) is not None:
            self._begin(connection, is_moved=False)
        while (connection := self._handed_on()) is not None:
            self._begin(connection, is_moved=True)

    async def _take(self, source: socket.socket, taken: Callable[[], socket.socket | None], is_moved: bool) -> NoReturn:
        moment = _MOMENT
        while True:
            await _readable(source)
            has_waited = await self._others_first(moment)
            try:
                connection = taken()
            except OSError as error:
                _LOG.warning("a connection cannot be taken: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            if connection is None:
                continue
            moment = (
                max(moment / 2, _SHORTEST) if has_waited else _MOMENT
            )  # where others do not take them, they are busy
            self._begin(connection, is_moved)

    async def _others_first(self, moment: float) -> bool:
        """Let others take a connection, if they have fewer; whether they still have fewer after that moment."""
        until = time.monotonic() + moment
        while self._board.ahead() > _SLACK:
            if time.monotonic() >= until:
                return True
            await asyncio.sleep(_STEP)
        return False

    def _handed_on(self) -> socket.socket | None:
        return take(self._sockets.take)

    def _accepted(self) -> socket.socket | None:
        try:
            connection, _ = self._sockets.listener.accept()
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        return connection

    def _begin(self, connection: socket.socket, is_moved: bool) -> None:
        connection.setblocking(False)
        self._beginning += 1
        self._board.write(self.connections, self._is_taking)
        self._group.create_task(self._set_up(connection, is_moved))

    async def _set_up(self, connection: socket.socket, is_moved: bool) -> None:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {} if self._tls is None else {"ssl_handshake_timeout": _HANDSHAKE}
        try:
            _, opened = await loop.connect_accepted_socket(self._opened, connection, ssl=self._tls, **options)
            if is_moved:
                opened.expect()
        except (OSError, TimeoutError) as error:  # it is the client's fault, or it has gone
            _LOG.info("a connection was not set up: %s", error)
            connection.close()
        finally:
            self._beginning -= 1


async def _readable(source: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()

    def come() -> None:
        if not came.done():
            came.set_result(None)

    loop.add_reader(source.fileno(), come)
    try:
        await came
    finally:
        loop.remove_reader(source.fileno())
