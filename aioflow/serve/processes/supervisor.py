"""The supervisor of a service: starts, restarts, replaces and ends its processes.

A task for each place waits until the process there has ended, and starts another. Every change of the service (a
start, a replacement, loading a model) holds a lock, so that no process misses a change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, NoReturn

from aioflow.arguments import check_number, check_whole
from aioflow.distributed.restarts import Restarts
from aioflow.errors import (
    ClosedSessionError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.net.remote_step import outcomes
from aioflow.observe.logs import LogOptions
from aioflow.serve.options import ModelOptions, ServerOptions, options_by_model
from aioflow.serve.processes.board import Board, new_board
from aioflow.serve.processes.child import Child
from aioflow.serve.processes.settings import Settings
from aioflow.serve.processes.whole_service import ServiceRequests
from aioflow.serve.protocol import Limits
from aioflow.serve.repository import IndexEntry, VersionState
from aioflow.serve.running import running
from aioflow.serve.server import listening, url_of
from aioflow.serve.sources import ModelSource

_LOG: Final = logging.getLogger("aioflow.serve")
_MAX_FAILURES: Final = 5  # consecutive failed starts
_END_SECONDS: Final = 5.0  # seconds for a process to end, in addition to those for its requests
_LINGER: Final = 0.1  # seconds for which processes accept connections from the socket's queue before it is closed
_LOOK: Final = 0.5  # seconds between two checks for stuck processes
# Minimum for `stuck_seconds` while a process starts: importing sends no heartbeats.
_START_SECONDS: Final = 60.0


class Processes:
    """A service of several processes that listens inside its block; the counterpart of `Server`.

        async with aioflow.serve.Processes({"digits": "models/digits"}, processes=4) as service:
            await service.ready()
            await service.stopped()

    Each process has all models; weights are mapped, so they are in memory once. A process that ends is restarted,
    after a pause if it was short-lived. A connection that no process has accepted yet survives the end of any process.

    Args:
        models: As in `Server`.
        options: As in `Server`.
        where: As in `Server`.
        processes: Number of processes.
        limits: As in `Server`.
        memory_budget: Bytes for the models and requests of each process.
        quorum: Number of processes that must be ready for the service to be ready; all by default.
        imports: Modules that register ops, for each process to import.
        stuck_seconds: A process whose event loop does not run for this time is killed and restarted; 0 for never. At
            least a minute while a process starts or ends.
        logs: The form of the processes' logs, on standard error. None to log only warnings and errors, as Python does,
            unless a module of `imports` configures logging.

    Raises:
        InvalidArgumentError: an option is out of range, or cannot be sent to a process.
        UnimplementedError: the system cannot pass sockets to a process, or gRPC is requested.
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str] | ModelSource],
        options: ModelOptions | Mapping[str | None, ModelOptions] | None = None,
        where: ServerOptions | None = None,
        *,
        processes: int,
        limits: Limits | None = None,
        memory_budget: int | None = None,
        quorum: int | None = None,
        imports: tuple[str, ...] = (),
        stuck_seconds: float = 30.0,
        logs: LogOptions | None = None,
    ) -> None:
        check_whole(processes, "the number of processes", 1)
        check_number(stuck_seconds, "stuck_seconds", "a number of seconds")
        quorum = processes if quorum is None else quorum
        check_whole(quorum, "the quorum", 1)
        if quorum > processes:
            raise InvalidArgumentError(
                "the quorum is more than there are processes", expected=f"at most {processes}", actual=quorum
            )
        if os.name != "posix":
            raise UnimplementedError("this system passes no sockets to processes", expected="one process")
        where = where or ServerOptions()
        if where.grpc_port is not None:
            raise UnimplementedError("several processes speak no gRPC", expected="one process, or no grpc_port")
        self._settings = Settings(
            {
                name: each if isinstance(each, ModelSource) else ModelSource(os.fspath(each))
                for name, each in models.items()
            },
            options_by_model(models, options),
            where,
            limits or Limits(),
            memory_budget,
            imports,
            quorum,
            logs=logs,
        )
        # Fail early if an option cannot be sent to a process.
        self._settings.to_json()
        self._finish_seconds = where.drain_seconds + _END_SECONDS
        self._stuck_seconds = stuck_seconds
        self._places: list[Child | None] = [None] * processes
        self._ended = [asyncio.Event() for _ in self._places]  # set when a process of that place ends
        self._running: set[Child] = set()  # includes processes that answer their last requests
        # Slots of the board: a place takes two of them while its process is replaced.
        self._free_slots = set(range(2 * processes + 1))
        self._first_starts = processes  # first starts that have not finished
        self._outdated: set[int] = set()  # places whose processes are to be replaced
        self._has_outdated = asyncio.Event()
        self._change = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._stop = asyncio.Event()
        self._failure: OpError | None = None
        self.url = ""

    async def __aenter__(self) -> Processes:
        if self.url:
            raise ClosedSessionError(
                "a service can be entered only once", expected="a new service", actual="already entered"
            )
        self._all_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        where = self._settings.where
        async with contextlib.AsyncExitStack() as stack:
            self._listener = stack.enter_context(listening(where))
            self._board_fd = new_board(len(self._free_slots))
            stack.callback(os.close, self._board_fd)
            self._board = Board(self._board_fd)
            self._group = await stack.enter_async_context(running())
            self._requests = ServiceRequests(self._change, self._ready, self._running, self._group)
            # Held until the first start of every place, which run concurrently, has finished.
            await self._change.acquire()
            works = [*map(self._keep, range(len(self._places))), self._kill_stuck(), self._replace_outdated()]
            tasks = [self._group.create_task(work) for work in works]
            stack.push_async_callback(self._close, tasks)
            self.url = url_of(self._listener, where)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks)
            children = list(self._running)
            for child in children:
                child.leave(replaced=False)
            # Processes that leave still accept what is in the queue of the socket (`accept_rest`).
            await asyncio.sleep(_LINGER)
            with contextlib.suppress(OSError):  # fails on systems that cannot shut down a listening socket
                self._listener.shutdown(socket.SHUT_RDWR)
            await outcomes(child.finish(self._finish_seconds) for child in children)
        finally:
            # Not empty only if this was cancelled; the task group waits for the ends of these processes.
            for child in self._running:
                child.kill()

    async def ready(self) -> None:
        """Wait until all processes are ready. Raises UnavailableError if one cannot be started."""
        # A waiter that is cancelled must not cancel the future for the others.
        await asyncio.shield(self._all_ready)

    def stop(self) -> None:
        """End `stopped`. May be called from a signal handler of the event loop."""
        self._stop.set()

    async def stopped(self) -> None:
        """Wait for `stop`. Raises UnavailableError if no process serves and none can be started."""
        await self._stop.wait()
        if self._failure is not None:
            raise self._failure

    def reload(self) -> None:
        """Replace the processes one by one, in the background.

        An old process leaves when the new one is ready. It answers its pending requests; its clients reconnect. If a
        new process cannot be started, the old ones stay.
        """
        self._outdated.update(range(len(self._places)))
        self._has_outdated.set()

    @property
    def pids(self) -> list[int]:
        """The ids of the ready processes."""
        return [child.pid for child in self._ready()]

    def index(self) -> list[IndexEntry]:
        """Return the models of the service."""
        found = next((child.index for child in self._ready()), [])
        return [
            IndexEntry(each["name"], each["version"], VersionState(each["state"]), each["reason"]) for each in found
        ]

    def _ready(self) -> list[Child]:
        return [child for child in self._places if child is not None and child.is_ready]

    # -- starting -----------------------------------------------------------------------------------------------------

    async def _keep(self, place: int) -> None:
        """Keep a process running in a place, until restarts are hopeless."""
        restarts, failures = Restarts(-1), 0
        while True:
            await asyncio.sleep(restarts.next(asyncio.get_running_loop().time()) or 0.0)
            try:
                await (self._start_first(place) if restarts.count == 0 else self._start_again(place))
                failures = 0
            except (OpError, OSError) as error:
                failures += 1
                if self._is_hopeless(error, failures):
                    self._fail(error)
                    return
                _LOG.error("a serving process cannot be started: %s", error)
            while (child := self._places[place]) is not None:
                if child.ended.is_set():
                    _LOG.warning("%s has ended %s", child, child.exit_reason)
                    # `_replace` may put another process here first; the inner loop then waits for that one.
                    self._places[place] = None
                else:
                    await self._ended[place].wait()
                    self._ended[place].clear()

    async def _start_first(self, place: int) -> None:
        try:
            await self._start(place)
        finally:
            self._first_starts -= 1
            if not self._first_starts:
                self._change.release()

    async def _start_again(self, place: int) -> None:
        async with self._change:
            if self._places[place] is None:  # None unless a replacement was in progress when the process ended
                await self._start(place)

    async def _start(self, place: int) -> None:
        """Start a process and put it in a place when it is ready. Raises OpError or OSError if it cannot be started."""
        slot = self._free_slots.pop()
        settings = replace(self._settings, unloaded=tuple(self._requests.unloaded))
        try:
            child = await Child.start(settings, self._listener, self._board_fd, slot)
        except BaseException:
            self._free_slots.add(slot)
            raise
        self._running.add(child)
        # Otherwise the slot's last beat is 0, and the process would count as stuck at once.
        self._board.begin(slot)
        # In its own task, which must go on if the start is cancelled: it frees the slot when the process ends.
        self._group.create_task(self._run(child, place))
        try:
            await child.started()
        except BaseException as error:
            child.kill()
            if isinstance(error, OpError):
                await child.ended.wait()
            raise
        _LOG.info("%s is ready", child)
        self._places[place] = child
        if None not in self._places and not self._all_ready.done():
            self._all_ready.set_result(None)

    async def _run(self, child: Child, place: int) -> None:
        async def terminated() -> None:
            if self._places[place] is child:
                self._outdated.add(place)
                self._has_outdated.set()

        try:
            await child.run({"request_all": self._requests.answer, "terminated": terminated})
        finally:
            if child.is_leaving:  # otherwise `_keep` or `_start` reports the end
                _LOG.info("%s has ended %s", child, child.exit_reason)
            self._board.clear(child.slot)
            self._free_slots.add(child.slot)
            self._running.discard(child)
            self._requests.remove(child)
            self._ended[place].set()

    def _is_hopeless(self, error: OpError | OSError, failures: int) -> bool:
        if not self._all_ready.done() and isinstance(error, FailedPreconditionError):
            return True  # such as a model that is missing
        return failures >= _MAX_FAILURES and not (self._all_ready.done() and self._ready())

    def _fail(self, error: OpError | OSError) -> None:
        if self._failure is not None:
            return
        message = f"a serving process cannot be started: {error.message if isinstance(error, OpError) else error}"
        expected, actual = (error.expected, error.actual) if isinstance(error, OpError) else (None, None)
        self._failure = UnavailableError(message, expected=expected, actual=actual)
        self._failure.__cause__ = error
        self._stop.set()
        if not self._all_ready.done():
            self._all_ready.set_exception(self._failure)
            self._all_ready.exception()  # mark it as retrieved: there may be no waiter

    # -- killing and replacing ----------------------------------------------------------------------------------------

    async def _kill_stuck(self) -> None:
        seen: set[Child] = set()
        while self._stuck_seconds:
            await asyncio.sleep(_LOOK)
            stuck = {child for child in self._running if self._is_stuck(child)}
            # On the first check, the whole machine or container may have been suspended instead of the process.
            for child in stuck & seen:
                _LOG.error("%s is stuck, and is killed", child)
                child.kill()
            seen = stuck

    def _is_stuck(self, child: Child) -> bool:
        least = 0.0 if child.is_ready else _START_SECONDS
        return self._board.seconds_since_beat(child.slot) > max(self._stuck_seconds, least)

    async def _replace_outdated(self) -> NoReturn:
        while True:
            await self._has_outdated.wait()
            self._has_outdated.clear()
            # Taken as a whole: a reload that arrives meanwhile starts another round.
            places, self._outdated = self._outdated, set()
            for place in places:
                try:
                    async with self._change:
                        old = await self._replace(place)
                except (OpError, OSError) as error:
                    _LOG.error("the serving processes are not replaced: %s", error)
                    # If a new process cannot start in one place, it would fail in the others, too; the old ones stay.
                    break
                # Without the lock, because a client of the old process may wait for a model to load.
                if old is not None:
                    await old.finish(self._finish_seconds)

    async def _replace(self, place: int) -> Child | None:
        """Put a new process in a place and tell the old one to leave.

        Return the old process, or None if it has ended. Raises the same errors as `_start`; the old process then stays.
        """
        old = self._places[place]
        # `_keep` restarts it anyway.
        if old is None or not old.is_ready:
            return None
        await self._start(place)
        old.leave(replaced=True)
        return old
