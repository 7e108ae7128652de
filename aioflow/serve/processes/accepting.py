"""Accepting of connections from the listening socket that the serving processes share.

A connection that is not yet accepted stays in the queue of the one shared socket, even if a process ends or is stuck.
With a socket for each process (SO_REUSEPORT) the connection would be bound to one process, and lost or delayed with
it. A shared queue does not spread connections evenly. So a process with more connections than another first leaves a
new one to the other processes for a moment.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

from aioflow.serve.embedded import EmbeddedServer
from aioflow.serve.processes.board import Board

_LOG: Final = logging.getLogger("aioflow.serve")
_PATIENCE: Final = 5e-3  # seconds for which a connection is left to other processes
_LEAST_PATIENCE: Final = 1e-3
_STEP: Final = 2e-4  # seconds between two checks if another process accepted it
_SLACK: Final = 1  # connections that one process may have more than another
_PAUSE: Final = 0.1  # seconds to wait if the process has no free file descriptor
_HANDSHAKE: Final = 30.0  # seconds
_LINGER: Final = 0.3  # seconds: longer than a supervisor takes to shut down the socket
_GONE: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EAGAIN)


class Acceptor:
    """The acceptor of one serving process.

    Args:
        listener: The socket that all processes share.
        board: The board with the number of connections of each process.
        web: The server that handles the connections.
        is_ready: Returns True if the models are ready.
        group: The group of the tasks that set up connections; they end with `web`.
    """

    def __init__(
        self,
        listener: socket.socket,
        board: Board,
        web: EmbeddedServer,
        is_ready: Callable[[], bool],
        group: asyncio.TaskGroup,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._board = board
        self._web = web
        self._is_ready = is_ready
        self._group = group
        self._is_running = False

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._web.server_state.connections) + len(self._web.server_state.set_ups)

    def beat(self) -> None:
        """Write a heartbeat."""
        self._board.write(self.connections, self._is_running and self._is_ready())

    async def run(self) -> None:
        """Accept connections until this is cancelled."""
        self._is_running = True
        self.beat()
        try:
            await self._accept_all()
        finally:
            self._is_running = False
            self.beat()

    async def _accept_all(self) -> NoReturn:
        patience = _PATIENCE
        while True:
            await self._acceptable()
            has_waited = await self._leave_to_others(patience)
            try:
                has_accepted = self.accept()
            except OSError as error:
                _LOG.warning("a connection cannot be accepted: %s", error)
                # The connection stays in the queue, so without a pause this would be a busy loop.
                await asyncio.sleep(_PAUSE)
                continue
            if has_accepted:  # if other processes leave connections to this one, they are busy
                patience = max(patience / 2, _LEAST_PATIENCE) if has_waited else _PATIENCE

    async def _leave_to_others(self, seconds: float) -> bool:
        """Wait up to `seconds` while another process has fewer connections. Return True if one still has then."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._board.ahead() > _SLACK:
            if loop.time() >= end:
                return True
            await asyncio.sleep(_STEP)
        return False

    async def accept_rest(self) -> None:
        """Accept connections until the supervisor shuts down the listening socket, but at most for a moment."""
        with suppress(OSError):
            async with asyncio.timeout(_LINGER):
                while True:
                    await self._acceptable()
                    self.accept()

    def accept(self) -> bool:
        """Accept a connection and set it up in a task. Return False if there was none, or another process took it.

        Raises:
            OSError: no descriptor is free, or the socket is shut down.
        """
        try:
            # All processes are woken by the same connection; those that come too late get EAGAIN.
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        # On Linux an accepted socket does not inherit the listener's mode.
        connection.setblocking(False)
        task = self._group.create_task(self._set_up(connection))
        # Counted at once: the board must not show this process as emptier than it is during a TLS handshake.
        self._web.server_state.set_ups.add(task)
        task.add_done_callback(partial(self._ended, connection))
        self.beat()
        return True

    async def _set_up(self, connection: socket.socket) -> None:
        config, state = self._web.config, self._web.server_state
        options: dict[str, Any] = {} if config.ssl is None else {"ssl": config.ssl, "ssl_handshake_timeout": _HANDSHAKE}
        protocol: Any = config.http_protocol_class
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol(config=config, server_state=state, app_state={}), connection, **options
            )
        except (OSError, TimeoutError) as error:
            # The handshake failed or the client disconnected: not an error of the service.
            _LOG.info("a connection was not set up: %s", error)
            connection.close()

    def _ended(self, connection: socket.socket, set_up: asyncio.Task[None]) -> None:
        if set_up.cancelled():  # possibly before the task started
            connection.close()
        self._web.server_state.set_ups.discard(set_up)
        self._web.server_state.has_closed.set()

    async def _acceptable(self) -> None:
        """Wait until there is a connection to accept."""
        # Not `sock_accept`: the connection must stay in the shared queue while this process leaves it to others.
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._listener.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._listener.fileno())
