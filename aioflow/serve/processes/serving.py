"""A serving process: serves models on an inherited socket, controlled by its supervisor.

It ends when told to leave, and when the channel to the supervisor is closed, so processes of a killed supervisor shut
down gracefully. It reports SIGTERM to the supervisor, which replaces the process.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import signal
import socket
from collections.abc import Callable
from typing import Final, NoReturn

from starlette.applications import Starlette

from aioflow.errors import OpError, UnavailableError
from aioflow.serve.app import create_app
from aioflow.serve.backstop import keep_within
from aioflow.serve.embedded import EmbeddedServer
from aioflow.serve.guard import RequestGuard
from aioflow.serve.metadata import index_of
from aioflow.serve.processes.accepting import Acceptor
from aioflow.serve.processes.board import Board
from aioflow.serve.processes.channel import ProcessChannel, open_channel
from aioflow.serve.processes.settings import Settings
from aioflow.serve.processes.whole_service import METRICS, WholeService, request_inside
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.repository import Repository
from aioflow.serve.running import running
from aioflow.serve.server import web_server

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
        settings, where, limits = self._settings, self._settings.where, self._settings.limits
        for name in settings.imports:
            importlib.import_module(name)
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
        )
        self._app = app = create_app(repository, limits=limits)
        # The guard is outside the application here. The OpenAPI document must still say that requests need a token.
        app.state.has_token = where.token is not None
        guard = RequestGuard(where.token, where.allowed(), app.state.open)
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
                await repository.load_all(but=self._settings.unloaded)
                self._board.write(0, is_ready=True)  # before the supervisor reports readiness
                channel.notify("ready", index=index_of(repository.index()))
                await acceptor.run()
        except TimeoutError:
            if not stay.expired():
                raise
        finally:
            self._stay = None
