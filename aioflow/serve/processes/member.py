"""One of the processes of a service: serves models on a socket that it has inherited, and does what its supervisor
says.

It begins with the settings that come over the line, and ends when it is told to leave and when the line ends: a
supervisor that is killed takes its processes with it, in good order. SIGTERM it tells the supervisor, who knows whether
all are to end.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from starlette.applications import Starlette

from aioflow.errors import OpError, UnavailableError
from aioflow.serve.app import create_app
from aioflow.serve.backstop import keep_within
from aioflow.serve.guard import Guard
from aioflow.serve.metadata import index_of
from aioflow.serve.processes.accepting import Acceptor, Sockets
from aioflow.serve.processes.board import Board
from aioflow.serve.processes.line import Line, open_line
from aioflow.serve.processes.moving import MovingProtocol, hand_on
from aioflow.serve.processes.settings import Settings
from aioflow.serve.processes.together import METRICS, Together, asked_inside
from aioflow.serve.repository import Repository
from aioflow.serve.running import running
from aioflow.serve.server import web_server
from aioflow.web_server import EmbeddedServer

__all__ = ["Member"]

_BEAT: Final = 0.1  # seconds
_STEP: Final = 0.01  # seconds between two looks at connections that are to go
_LINGER: Final = 0.05  # seconds in which what clients have sent already is read, before connections are closed


class Member:
    """One process. Its line on the board is its own."""

    def __init__(self, sockets: Sockets, board: Board) -> None:
        self._sockets = sockets
        self._board = board
        self._settings: asyncio.Future[Settings | None] = asyncio.get_running_loop().create_future()
        self._app: Starlette | None = None
        self._connections: Callable[[], int] = int  # 0
        self._is_ready: Callable[[], bool] = bool  # False
        self._end = asyncio.Event()
        self._is_replaced = False

    async def run(self, end: socket.socket) -> None:
        """Serve until it is to end."""
        line = await open_line(end, {"begin": self._begin, "request": self._request, "leave": self._leave})
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, line.tell, "terminated")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(line))
            beating = group.create_task(self._beat())
            settings = await self._settings
            try:
                if settings is not None:
                    await self._serve(settings, line)
            except OpError as error:
                said = {"message": error.message, "expected": error.expected, "actual": error.actual}
                line.tell("failed", **{key: None if value is None else str(value) for key, value in said.items()})
            finally:
                await line.finish()
                beating.cancel()

    async def _beat(self) -> NoReturn:
        """Write the heartbeat, from the first turn of the event loop to the last."""
        while True:
            self._board.write(self._connections(), self._is_ready())
            await asyncio.sleep(_BEAT)

    async def _listen(self, line: Line) -> None:
        await line.run()
        self._end.set()
        if not self._settings.done():
            self._settings.set_result(None)

    # -- what the supervisor says -------------------------------------------------------------------------------------

    async def _begin(self, settings: dict[str, Any]) -> None:
        if not self._settings.done():  # the line may have ended meanwhile
            self._settings.set_result(Settings.from_json(settings))

    async def _request(self, method: str, path: str, body: str) -> dict[str, Any]:
        if self._app is None:
            raise UnavailableError("the process has not begun")
        return await asked_inside(self._app, method, path, body)

    async def _leave(self, replaced: bool) -> None:
        self._is_replaced = replaced
        self._end.set()

    # -- serving ------------------------------------------------------------------------------------------------------

    async def _serve(self, settings: Settings, line: Line) -> None:
        where, limits = settings.where, settings.limits
        for name in settings.imports:
            importlib.import_module(name)
        gc.freeze()  # what was imported stays: to look for garbage among it would hold the event loop
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
        app.state.has_token = where.token is not None  # though others ask for it
        guard = Guard(where.token, where.allowed(), app.state.open)
        web = web_server(Together(app, guard, limits, line, self._board, settings.quorum), where)
        async with repository, running() as group:
            serving = group.create_task(web.serve(sockets=[]))
            watch = group.create_task(app.state.watch.run())
            try:
                if await self._loaded(group, repository, settings):
                    await self._answer(web, repository, line, where.drain_seconds)
            finally:
                repository.drain()
                web.should_exit = True
                await asyncio.wait([serving])
                watch.cancel()
            last = await asked_inside(app, "GET", METRICS)
            line.tell("left", metrics=last["body"])

    async def _loaded(self, group: asyncio.TaskGroup, repository: Repository, settings: Settings) -> bool:
        """Load the models; whether they are there, and this is not to end. Raises what the first of them raises."""
        failure: OpError | None = None

        async def load() -> None:
            nonlocal failure
            try:
                await repository.load_all(but=settings.unloaded)
            except OpError as error:
                failure = error

        await self._until_end(group, load())
        if failure is not None:
            raise failure
        return not self._end.is_set()

    async def _until_end(self, group: asyncio.TaskGroup, *works: Coroutine[Any, Any, None]) -> None:
        """Do this until the first of it is done, or this is to end."""
        tasks = [group.create_task(work) for work in works]
        end = group.create_task(self._end.wait())
        try:
            await asyncio.wait([end, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (end, *tasks):
                task.cancel()
            await asyncio.wait([end, *tasks])

    async def _answer(self, web: EmbeddedServer, repository: Repository, line: Line, drain_seconds: float) -> None:
        """Take connections until this is to end, and let them go."""

        def opened() -> MovingProtocol:
            return MovingProtocol(config=web.config, server_state=web.server_state, app_state={})

        connections = web.server_state.connections
        acceptor = Acceptor(self._sockets, self._board, opened, web.config.ssl, lambda: len(connections))
        async with acceptor:
            self._connections, self._is_ready = (lambda: acceptor.connections), (lambda: repository.is_ready)
            self._board.write(0, repository.is_ready)
            line.tell("ready", index=index_of(repository.index()))
            async with running() as group:
                await self._until_end(group, acceptor.accept(), acceptor.take_moved())
            self._is_ready = bool
            self._board.write(acceptor.connections, False)
            if not self._is_replaced:
                acceptor.sweep()
                await asyncio.sleep(_LINGER)
                return
            until = asyncio.get_running_loop().time() + drain_seconds
            while acceptor.connections and asyncio.get_running_loop().time() < until:
                for each in connections:
                    if isinstance(each, MovingProtocol):
                        each.leave(self._hand_on)
                await asyncio.sleep(_STEP)

    def _hand_on(self, connection: socket.socket) -> bool:
        return hand_on(self._sockets.give, connection)
