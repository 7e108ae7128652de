"""Starts the processes of a service, begins them again when they end, replaces them one by one, and ends them together.

A keeper for each place is all there is to supervision: it waits until the process in its place has ended, and starts
another. Whatever changes the service (a start, a replacement, a model that is loaded) has the lock, so that no process
misses a change, and never more than one is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn

from aioflow.checks.numbers import check_number, check_whole
from aioflow.distributed.starting.restarts import Restarts
from aioflow.errors import FailedPreconditionError, InvalidArgumentError, OpError, UnavailableError, UnimplementedError
from aioflow.net.remote_step import outcomes
from aioflow.serve.options import ModelOptions
from aioflow.serve.processes.accepting import Sockets
from aioflow.serve.processes.asking import Asking
from aioflow.serve.processes.board import Board, new_board
from aioflow.serve.processes.line import Handlers
from aioflow.serve.processes.settings import Settings
from aioflow.serve.processes.starting import Process, start
from aioflow.serve.protocol import Limits
from aioflow.serve.repository import Entry, State
from aioflow.serve.running import running
from aioflow.serve.server import listening, url_of
from aioflow.serve.sources import ModelSource
from aioflow.serve.where import ServerOptions

__all__ = ["Processes"]

_LOG: Final = logging.getLogger("aioflow.serve")
_MOST_FAILURES: Final = 5  # in a row, of starts
_END_SECONDS: Final = 5.0  # beyond the time of the requests, for a process to end
_LINGER: Final = 0.1  # seconds in which they take what waits at the socket, before it is closed
_LOOK: Final = 0.5  # seconds between two looks for processes that stand still
_START_SECONDS: Final = 60.0  # without a beat, at least, until a process that starts is stuck: it imports modules first


class Processes:
    """A service of several processes that listens while its block runs, as `Server` does with one.

        async with aioflow.serve.Processes({"digits": "models/digits"}, processes=4) as service:
            await service.ready()
            await service.stopped()

    Each process has all models; their weights are mapped, and in memory once. A process that ends is started again,
    after a pause where it does not live long. What begins with one process is not lost by another: they share the
    socket that listens.

    Args:
        models, options, where, limits: As of `Server`.
        processes: How many.
        memory_budget: Bytes that the models and requests of each process may take.
        quorum: How many must be ready for the service to be; all, if not given.
        imports: Modules that register ops, for each process to import.
        stuck_seconds: A process whose event loop stands still for so long is killed, and started again; 0 for never.
            While a process starts or ends, the time is a minute at least.

    Raises:
        UnimplementedError: this system cannot hand sockets to a process; or they were to speak gRPC.
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str] | ModelSource],
        options: ModelOptions | None = None,
        where: ServerOptions | None = None,
        *,
        processes: int,
        limits: Limits | None = None,
        memory_budget: int | None = None,
        quorum: int | None = None,
        imports: tuple[str, ...] = (),
        stuck_seconds: float = 30.0,
    ) -> None:
        check_whole(processes, "the number of processes", 1)
        check_number(stuck_seconds, "stuck_seconds", "a number of seconds")
        if quorum is not None:
            check_whole(quorum, "the quorum", 1)
        if quorum is not None and quorum > processes:
            raise InvalidArgumentError(
                "the quorum is more than there are processes", expected=f"at most {processes}", actual=quorum
            )
        if os.name != "posix":
            raise UnimplementedError("this system hands no sockets to processes", expected="one process")
        self._where = where or ServerOptions()
        if self._where.grpc_port is not None:
            raise UnimplementedError("several processes speak no gRPC: its connections cannot change hands")
        self._settings = Settings(
            {name: _source(each) for name, each in models.items()},
            options or ModelOptions(),
            self._where,
            limits or Limits(),
            memory_budget,
            imports,
            quorum or processes,
        )
        self._places: list[Process | None] = [None] * processes
        self._running: set[Process] = set()
        self._free = set(range(2 * processes + 1))  # lines on the board: each may be there twice while it is replaced
        self._outdated: list[int] = []  # places whose processes are to be replaced
        self._has_outdated = asyncio.Event()
        self._first = processes  # how many have not begun for the first time
        self._stuck_seconds = stuck_seconds
        self._stack = contextlib.AsyncExitStack()
        self._change = asyncio.Lock()
        self._end = asyncio.Event()
        self._failure: OpError | None = None
        self.url = ""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Processes:
        self._all_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as stack:
            listener = stack.enter_context(listening(self._where.host, self._where.port))
            self._sockets = Sockets(listener, *map(stack.enter_context, socket.socketpair()))
            self._board_fd = new_board(len(self._free))
            stack.callback(os.close, self._board_fd)
            self._board = Board(self._board_fd)
            self._group = await stack.enter_async_context(running())
            self._asking = Asking(self._change, self._serving, self._running, self._group)
            await self._change.acquire()  # until each place has had its first process
            works = [*map(self._keep, range(len(self._places))), self._look(), self._replace_outdated()]
            tasks = [self._group.create_task(work) for work in works]
            stack.push_async_callback(self._close, tasks)
            self.url = url_of(listener, self._where)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def _close(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks)
            processes = list(self._running)
            for process in processes:
                process.leave(replaced=False)
            await asyncio.sleep(_LINGER)
            with contextlib.suppress(OSError):  # as on systems where a socket that listens cannot be shut down
                self._sockets.listener.shutdown(socket.SHUT_RDWR)
            await outcomes(process.finish(self._where.drain_seconds + _END_SECONDS) for process in processes)
        finally:
            for process in self._running:  # where this was cancelled: the task group waits for their ends
                process.kill()

    async def ready(self) -> None:
        """Wait until all processes are ready. Raises UnavailableError: one cannot be."""
        await asyncio.shield(self._all_ready)

    def stop(self) -> None:
        """End `stopped`; from a signal handler of the loop, say."""
        self._end.set()

    async def stopped(self) -> None:
        """Wait for `stop`. Raises UnavailableError: no process serves, and none can be started."""
        await self._end.wait()
        if self._failure is not None:
            raise self._failure

    def reload(self) -> None:
        """Replace the processes one by one: each new one is ready before an old one hands on its connections, answers
        what has begun, and ends. One that cannot be started changes nothing.
        """
        self._outdated = list(range(len(self._places)))
        self._has_outdated.set()

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that are ready."""
        return [process.pid for process in self._serving()]

    def index(self) -> list[Entry]:
        """The models, as a process has found them."""
        found = next((process.index for process in self._serving()), [])
        return [Entry(each["name"], each["version"], State(each["state"]), each["reason"]) for each in found]

    def _serving(self) -> list[Process]:
        return [process for process in self._places if process is not None and process.is_ready]

    # -- keepers ------------------------------------------------------------------------------------------------------

    async def _keep(self, place: int) -> None:
        restarts, failures, is_first = Restarts(-1), 0, True
        while True:
            await asyncio.sleep(restarts.next(asyncio.get_running_loop().time()) or 0.0)
            try:
                if is_first:
                    await self._fill(place)
                else:
                    async with self._change:
                        await self._fill(place)
                failures = 0
            except (OpError, OSError) as error:
                failures += 1
                _LOG.error("a process of the service cannot be started: %s", error)
                if self._is_hopeless(error, failures):
                    return
            finally:
                if is_first:
                    is_first = False
                    self._has_begun()
            while (process := self._places[place]) is not None:
                await process.ended.wait()
                if self._places[place] is process:
                    _LOG.warning("%s of the service has ended", process)
                    self._places[place] = None

    async def _fill(self, place: int) -> None:
        self._places[place] = await self._started()
        if None not in self._places and not self._all_ready.done():
            self._all_ready.set_result(None)

    def _has_begun(self) -> None:
        self._first -= 1
        if not self._first:
            self._change.release()

    def _is_hopeless(self, error: OpError | OSError, failures: int) -> bool:
        """Whether to start it again is of no use, and nobody else serves. Then the service ends."""
        is_new = not self._all_ready.done()
        has_said_why = isinstance(error, FailedPreconditionError) and is_new
        if not has_said_why and (failures < _MOST_FAILURES or (self._serving() and not is_new)):
            return False
        if self._failure is None:
            said = error if isinstance(error, OpError) else None
            self._failure = UnavailableError(
                f"a process cannot be started: {error if said is None else said.message}",
                expected=said and said.expected,
                actual=said and said.actual,
            )
            self._failure.__cause__ = error
            self._end.set()
            if is_new:
                self._all_ready.set_exception(self._failure)
                self._all_ready.exception()  # somebody has looked, should nobody wait
        return True

    async def _started(self) -> Process:
        """A process that is ready. Raises OpError, OSError: it cannot be."""
        own = self._free.pop()
        try:
            process, end = await start(self._sockets, self._board_fd, own)
        except BaseException:
            self._free.add(own)
            raise
        self._running.add(process)
        self._board.begin(own)
        self._group.create_task(self._watch(process, end))
        try:
            await process.begun()
        except BaseException:
            process.kill()
            raise
        _LOG.info("%s of the service is ready", process)
        return process

    async def _watch(self, process: Process, end: socket.socket) -> None:
        settings = replace(self._settings, unloaded=tuple(self._asking.unloaded))
        handlers: Handlers = {"all": self._asking.all, "terminated": partial(self._terminated, process)}
        try:
            await process.run(end, settings.to_json(), handlers)
        finally:
            self._board.clear(process.own)
            self._free.add(process.own)
            self._running.discard(process)
            self._asking.ended(process)

    async def _look(self) -> None:
        """Kill processes whose event loop is stuck, those that start or end included."""
        while self._stuck_seconds:
            await asyncio.sleep(_LOOK)
            for process in self._running:
                seconds = self._board.seconds_since_beat(process.own)
                if seconds > max(self._stuck_seconds, 0.0 if process.is_ready else _START_SECONDS):
                    _LOG.error("%s of the service has stood still for %.0f s, and is killed", process, seconds)
                    process.kill()

    # -- replacement --------------------------------------------------------------------------------------------------

    async def _terminated(self, process: Process) -> None:
        """Somebody wants this process to end."""
        self._outdated += [place for place, each in enumerate(self._places) if each is process]
        self._has_outdated.set()

    async def _replace_outdated(self) -> NoReturn:
        while True:
            await self._has_outdated.wait()
            while self._outdated:
                async with self._change:
                    old = await self._replace(self._outdated.pop(0))
                if old is not None:  # without the lock: a client may wait in it for a change of the service
                    await old.finish(self._where.drain_seconds + _END_SECONDS)
            self._has_outdated.clear()

    async def _replace(self, place: int) -> Process | None:
        """Put another in the place of a process; which is to end, if it has been replaced."""
        old = self._places[place]
        if old is None or not old.is_ready:  # it has ended, and its keeper sees to it
            return None
        try:
            self._places[place] = await self._started()
        except (OpError, OSError) as error:
            _LOG.error("the processes of the service are not replaced: %s", error)
            self._outdated.clear()
            return None
        old.leave(replaced=True)
        return old


def _source(given: str | os.PathLike[str] | ModelSource) -> ModelSource:
    return given if isinstance(given, ModelSource) else ModelSource(os.fspath(given))
