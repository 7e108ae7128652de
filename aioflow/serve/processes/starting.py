"""A process of the service, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

from aioflow.errors import FailedPreconditionError, OpError, UnavailableError
from aioflow.serve.processes.accepting import Sockets
from aioflow.serve.processes.line import Handlers, Line, open_line

__all__ = ["Process", "start"]

_LOG: Final = logging.getLogger("aioflow.serve")


class Process:
    """A process, which has been started.

    Attributes:
        own: Its line on the board.
        index: The models that it has, once it is ready.
        is_ready: Whether it takes connections.
        ended: Set when it is no more.
    """

    def __init__(self, running: asyncio.subprocess.Process, own: int) -> None:
        self.own = own
        self.index: list[dict[str, str]] = []
        self.is_ready = False
        self.ended = asyncio.Event()
        self.last_metrics = ""
        self._running = running
        self._line: Line | None = None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"process {self.pid}"

    @property
    def pid(self) -> int:
        """Its number."""
        return self._running.pid

    @property
    def line(self) -> Line:
        """The line to it. Raises UnavailableError: there is none yet."""
        if self._line is None:
            raise UnavailableError(f"{self} has not begun")
        return self._line

    async def run(self, end: socket.socket, settings: Mapping[str, Any], handlers: Handlers) -> None:
        """Tell it what to do, and hear what it says, until it has ended."""
        try:
            said: Handlers = {"ready": self._ready, "failed": self._failed, "left": self._left}
            self._line = await open_line(end, {**handlers, **said})
            self._line.tell("begin", settings=settings)
            await self._line.run()
        finally:
            self.is_ready = False
            status = await self._running.wait()
            self._settle(UnavailableError(f"{self} has ended with status {status} before it was ready"))
            self.ended.set()

    async def begun(self) -> None:
        """Wait until it is ready. Raises FailedPreconditionError, with what it says; UnavailableError: it has ended."""
        await asyncio.shield(self._begun)

    async def _ready(self, index: list[dict[str, str]]) -> None:
        self.index = index
        self.is_ready = True
        self._settle(None)

    async def _failed(self, message: str, expected: str | None, actual: str | None) -> None:
        self._settle(FailedPreconditionError(message, expected=expected, actual=actual))

    async def _left(self, metrics: str) -> None:
        self.last_metrics = metrics

    def _settle(self, error: OpError | None) -> None:
        if self._begun.done():
            return
        if error is None:
            self._begun.set_result(None)
        else:
            self._begun.set_exception(error)
            self._begun.exception()  # somebody has looked, should nobody wait

    def leave(self, replaced: bool) -> None:
        """Have it end in good order.

        Args:
            replaced: Whether others go on, who take its connections.
        """
        self.is_ready = False
        if self._line is not None:
            self._line.tell("leave", replaced=replaced)
        else:
            self.kill()

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            self._running.kill()

    async def finish(self, seconds: float) -> None:
        """Wait for its end, for at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            _LOG.warning("%s has not ended in time, and is killed", self)
            self.kill()
            await self._running.wait()


async def start(sockets: Sockets, board: int, own: int) -> tuple[Process, socket.socket]:
    """A new process, and this end of the line to it. Raises OSError: there is no room for one."""
    ours, theirs = socket.socketpair()
    with theirs:
        shared = [each.fileno() for each in (sockets.listener, sockets.give, sockets.take)]
        arguments = [*shared, board, own, theirs.fileno()]
        try:
            running = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __package__,
                *map(str, arguments),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(*shared, board, theirs.fileno()),
                env=dict(os.environ),
                start_new_session=True,  # a terminal's Ctrl-C is for the supervisor, which ends them in order
            )
        except BaseException:  # nobody waits for it any more, or there is no room: one that has begun sees the end
            ours.close()
            raise
    return Process(running, own), ours
