"""The supervisor's handle of a serving process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from typing import Final

from aioflow.errors import FailedPreconditionError, OpError, UnavailableError
from aioflow.serve.processes.channel import Functions, ProcessChannel, open_channel
from aioflow.serve.processes.settings import Settings

_LOG: Final = logging.getLogger("aioflow.serve")


class Child:
    """A serving process that has been started.

    Args:
        running: The process.
        slot: Its slot on the board.
        end: The supervisor's end of the channel to it.

    Attributes:
        index: Its models, set when it becomes ready.
        is_ready: True while it accepts connections.
        is_leaving: True once it has been told to end.
        ended: Set when the process has ended.
        exit_reason: The signal or status with which it ended.
        last_metrics: Its final counters, if it ended gracefully.
    """

    def __init__(self, running: asyncio.subprocess.Process, slot: int, end: socket.socket) -> None:
        self.slot = slot
        self.index: list[dict[str, str]] = []
        self.is_ready = False
        self.is_leaving = False
        self.ended = asyncio.Event()
        self.exit_reason = ""
        self.last_metrics = ""
        self._running = running
        self._end = end
        self._channel: ProcessChannel | None = None
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, settings: Settings, listener: socket.socket, board: int, slot: int) -> Child:
        """Start a process. Raises OSError if the system cannot start one."""
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = listener.fileno(), board, theirs.fileno()
            try:
                running = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", __package__),
                    *map(str, (listener.fileno(), board, slot, theirs.fileno())),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=inherited,
                    # Ctrl-C in a terminal signals the whole session: only the supervisor should receive it.
                    start_new_session=True,
                )
            except BaseException:
                # If the process has started nevertheless, it finds its end of the channel closed, and ends.
                ours.close()
                raise
        child = cls(running, slot, ours)
        if running.stdin is not None and not running.stdin.is_closing():  # closing if the process has ended already
            running.stdin.write(settings.to_json())
            # The end of the stream ends the settings.
            running.stdin.close()
        return child

    def __repr__(self) -> str:
        return f"serving process {self.pid}"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running.pid

    @property
    def channel(self) -> ProcessChannel:
        """The channel to the process. Raises UnavailableError if it is not open yet."""
        if self._channel is None:
            raise UnavailableError(f"{self} has not started")
        return self._channel

    async def run(self, functions: Functions) -> None:
        """Answer the process's calls until it has ended."""
        try:
            own: Functions = {"ready": self._ready, "failed": self._failed, "left": self._left}
            self._channel = await open_channel(self._end, {**functions, **own})
            await self._channel.run()
        finally:
            self.is_ready = False
            # The channel is closed, but the process may still be ending; `wait` also reaps it.
            self.exit_reason = _exit_reason(await self._running.wait())
            self._resolve(UnavailableError(f"{self} ended {self.exit_reason} before it was ready"))
            self.ended.set()

    async def started(self) -> None:
        """Wait until the process is ready.

        Raises:
            FailedPreconditionError: it cannot become ready, for the reason that it reported.
            UnavailableError: it has ended.
        """
        # A waiter that is cancelled must not cancel the future for the others.
        await asyncio.shield(self._started)

    async def _ready(self, index: list[dict[str, str]]) -> None:
        self.index = index
        self.is_ready = True
        self._resolve(None)

    async def _failed(self, message: str, expected: str | None, actual: str | None) -> None:
        self._resolve(FailedPreconditionError(message, expected=expected, actual=actual))

    async def _left(self, metrics: str) -> None:
        self.last_metrics = metrics

    def _resolve(self, error: OpError | None) -> None:
        # A process that was ready also resolves at its end.
        if self._started.done():
            return
        if error is None:
            self._started.set_result(None)
        else:
            self._started.set_exception(error)
            self._started.exception()  # mark it as retrieved: there may be no waiter

    def leave(self, replaced: bool) -> None:
        """Tell the process to end once its requests are answered. Kill it if its channel is not open yet.

        Args:
            replaced: Whether another process accepts connections in its place.
        """
        self.is_ready, self.is_leaving = False, True
        if self._channel is not None:
            self._channel.notify("leave", replaced=replaced)
        else:
            self.kill()

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            self._running.kill()

    async def finish(self, timeout: float) -> None:
        """Wait until the process has ended. Kill it after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self.ended.wait()
        except TimeoutError:
            _LOG.warning("%s did not end in time; killing it", self)
            self.kill()
            await self._running.wait()


def _exit_reason(status: int) -> str:
    """Return the reason in words: "by SIGKILL" or "with status 1"."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
