"""A serving process: serves models on an inherited socket, controlled by its supervisor."""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final, NoReturn

from starlette.applications import Starlette

from aioflow.errors import OpError, UnavailableError
from aioflow.observe.logs import log_to
from aioflow.serve.app import create_app
from aioflow.serve.embedded import EmbeddedServer
from aioflow.serve.guard import RequestGuard
from aioflow.serve.memory_limits import keep_within
from aioflow.serve.metadata import index_of
from aioflow.serve.processes.board import Board
from aioflow.serve.processes.channel import ProcessChannel, open_channel
from aioflow.serve.processes.settings import Settings
from aioflow.serve.processes.whole_service import METRICS, WholeService, request_inside
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.repository import Repository
from aioflow.serve.running import running
from aioflow.serve.server import web_server

# ── connections from the listening socket that the serving processes share ────────────────────────────────────────────
#
# A connection that is not yet accepted stays in the queue of the one shared socket, even if a process ends or is stuck.
# With a socket for each process (SO_REUSEPORT) the connection would be bound to one process, and lost or delayed with
# it. A shared queue does not spread connections evenly. So a process with more connections than another first leaves a
# new one to the other processes for a moment.


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
        self._board.write(self.connections, self._is_running and self._is_ready(), self._is_running)

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


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────────
#
# It ends when told to leave, and when the channel to the supervisor is closed, so processes of a killed supervisor shut
# down gracefully. It reports SIGTERM to the supervisor, which replaces the process.


_BEAT: Final = 0.1  # seconds between two heartbeats


class ServingProcess:
    """A serving process.

    Args:
        settings: The models and options.
        listener: The listening socket that all processes of the service share.
        board: The board, opened with the slot of this process.
    """

    def __init__(self, settings: Settings, listener: socket.socket, board: Board) -> None:
        self._settings = settings
        self._listener = listener
        self._board = board
        self._app: Starlette | None = None
        self._beat: Callable[[], None] = lambda: board.write(0, False)
        self._stay: asyncio.Timeout | None = None  # expires when the process is to leave
        self._is_leaving = self._is_replaced = False

    async def run(self, end: socket.socket) -> None:
        """Serve until the supervisor tells the process to leave, or has ended."""
        channel = await open_channel(end, {"request": self._request, "leave": self._leave})
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, channel.notify, "terminated")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(channel))
            beating = group.create_task(self._beat_on())
            try:
                await self._serve(channel)
            except OpError as error:
                expected, actual = (None if each is None else str(each) for each in (error.expected, error.actual))
                channel.notify("failed", message=error.message, expected=expected, actual=actual)
            finally:
                await channel.finish()
                beating.cancel()

    async def _beat_on(self) -> NoReturn:
        while True:
            self._beat()
            await asyncio.sleep(_BEAT)

    async def _listen(self, channel: ProcessChannel) -> None:
        await channel.run()
        # The channel is closed: the supervisor has ended, and no successor will come.
        await self._leave(replaced=False)

    async def _request(self, method: str, path: str, body: str) -> JsonObject:
        # The channel opens before the imports, which may take long.
        if self._app is None:
            raise UnavailableError("the process has not started")
        return await request_inside(self._app, method, path, body)

    async def _leave(self, replaced: bool) -> None:
        if not self._is_leaving:
            self._is_leaving, self._is_replaced = True, replaced
            if self._stay is not None:
                # Times out the block in `_load_and_accept`, also while models load.
                self._stay.reschedule(asyncio.get_running_loop().time())

    async def _serve(self, channel: ProcessChannel) -> None:
        settings = self._settings
        for name in settings.imports:
            importlib.import_module(name)
        with nullcontext() if settings.logs is None else log_to(settings.logs):
            await self._serve_imported(channel)

    async def _serve_imported(self, channel: ProcessChannel) -> None:
        settings, where, limits = self._settings, self._settings.where, self._settings.limits
        # Imported objects live as long as the process; scanning them for garbage would block the event loop.
        gc.freeze()
        # After the imports: the limit adds to the present use of memory, so imported code does not use up the budget.
        if settings.memory_budget is not None:
            limits = limits.within(settings.memory_budget)
            keep_within(settings.memory_budget)
        repository = Repository(
            settings.models,
            settings.options,
            memory_budget=settings.memory_budget,
            drain_seconds=where.drain_seconds,
            readiness=where.readiness,
        )
        self._app = app = create_app(repository, limits=limits)
        # The guard is outside the application here. The OpenAPI document must still say that requests need a token.
        app.state.has_token, app.state.has_admin_token = where.token is not None, where.admin_token is not None
        guard = RequestGuard(where.token, where.allowed(), app.state.open, where.admin_token)
        web = web_server(WholeService(app, guard, limits, channel, self._board, settings.quorum), where)
        async with repository, running() as group:
            # No sockets of its own: the acceptor hands connections over.
            serving = group.create_task(web.serve(sockets=[]))
            watch = group.create_task(app.state.watch.run())
            try:
                await self._accept(channel, repository, web, group)
            finally:
                repository.drain()
                web.should_exit = True
                # Not `await serving`: an error of the task reaches the group, which raises it.
                await asyncio.wait([serving])
                watch.cancel()
            # Last, so that the counts include every answered request.
            metrics = await request_inside(app, "GET", METRICS)
            channel.notify("left", metrics=metrics["body"])

    async def _accept(
        self, channel: ProcessChannel, repository: Repository, web: EmbeddedServer, group: asyncio.TaskGroup
    ) -> None:
        """Load the models and accept connections until the process is to leave, then end idle connections."""
        acceptor = Acceptor(self._listener, self._board, web, lambda: repository.is_ready, group)
        # From now on heartbeats carry the number of connections and the readiness.
        self._beat = acceptor.beat
        await self._load_and_accept(channel, repository, acceptor)
        # No successor: also accept the connections that are still in the queue of the listening socket.
        if not self._is_replaced:
            await acceptor.accept_rest()
            return
        loop, seconds = asyncio.get_running_loop(), self._settings.where.drain_seconds
        end = loop.time() + seconds
        await web.end_keep_alive(seconds)
        # Both phases together stay within the drain time.
        web.config.timeout_graceful_shutdown = max(end - loop.time(), 0.0)  # type: ignore[assignment]  # as in `serve.embedded`

    async def _load_and_accept(self, channel: ProcessChannel, repository: Repository, acceptor: Acceptor) -> None:
        # The supervisor may have said so before this point.
        stay = asyncio.timeout(0 if self._is_leaving else None)
        try:
            async with stay:
                self._stay = stay
                await repository.load_all(but=self._settings.unloaded, strict=self._settings.where.strict)
                self._board.write(0, repository.is_ready, is_accepting=True)  # before the supervisor reports readiness
                channel.notify("ready", index=index_of(repository.index()))
                await acceptor.run()
        except TimeoutError:
            if not stay.expired():
                raise
        finally:
            self._stay = None
