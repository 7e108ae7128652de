"""The end of every program of the package: normally, by a signal, at a closed pipe, or with one line about an error.

A user's error is one line on stderr and exit status 2; tracebacks are for faults of the program. SIGINT is handled even
if it is inherited as ignored, as in a background job of a shell, since its sender intends it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Final, TextIO, TypeVar

from aioflow.concurrency.loops import loop_factory
from aioflow.errors import OpError
from aioflow.release import install_command

T = TypeVar("T")

_LOG: Final = logging.getLogger("aioflow.program")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_ERROR_OUTPUT: Final = 2
# Seconds. faulthandler raises an OverflowError for a timeout that is too large.
_LONGEST: Final = 86_400.0 * 365
_WRONG: Final = 2  # also argparse's status
_BROKEN_PIPE: Final = 128 + 13  # the status that a shell shows for a program ended by SIGPIPE


class StoppedBySignal(Exception):
    """A signal has stopped the coroutine that `run` ran."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells use for this signal."""
        return 128 + self.number


# ── the end of a command ──────────────────────────────────────────────────────────────────────────────────────────────


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit status; print an error or an interruption in one line."""
    _prepare()
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, where a failure can still be reported
    except KeyboardInterrupt:
        say(name, "interrupted")
        return StoppedBySignal(signal.SIGINT).status
    except StoppedBySignal as stopped:
        say(name, f"stopped by {stopped}")
        return stopped.status
    except BrokenPipeError:  # the reader of the output has closed the pipe
        return _BROKEN_PIPE
    except (OpError, OSError) as error:
        say(name, in_one_line(error))
        return _WRONG
    except ExceptionGroup as group:
        # A fault of the program among the errors keeps its traceback.
        mistakes, others = group.split((OpError, OSError))
        if others is not None or mistakes is None:
            raise
        say(name, in_one_line(_first(mistakes)))
        return _WRONG
    finally:
        _give_up_broken_output()


def _prepare() -> None:
    """Open missing standard streams, escape characters that their encoding lacks, and let SIGINT interrupt."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_closed_streams() -> None:
    """Open the null device for closed standard streams; otherwise sockets would get their file descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def say(name: str, line: str) -> None:
    """Print one line on stderr."""
    with suppress(OSError):  # stderr is closed
        print_line(f"{name}: {line}", sys.stderr)


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print a line at once, on stdout by default, in one write: the log's thread may write to the same pipe or file.

    `print` writes the end of the line separately if the stream is unbuffered.
    """
    chosen = sys.stdout if stream is None else stream
    chosen.write(f"{text}\n")
    chosen.flush()


def in_one_line(error: BaseException) -> str:
    """Return the message of an error, on one line."""
    if isinstance(error, OpError):
        text = error.message
        known = {"expected": error.expected, "actual": error.actual}
        if said := "; ".join(f"{name}: {value}" for name, value in known.items() if value is not None):
            text += f" ({said})"
        if error.node is not None:
            text += f"; node {error.node!r}"
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    else:
        text = str(error) or type(error).__name__
    # Line breaks in a message would break the promise of one line.
    return " ".join(text.split())


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _give_up_broken_output() -> None:
    """Discard output that cannot be written: at exit the interpreter would try again and report an error."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # The descriptor is replaced, since the interpreter flushes its own buffer at exit.
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


# ── coroutines as programs ────────────────────────────────────────────────────────────────────────────────────────────


def run(
    main: Coroutine[object, object, T], on_terminate: Callable[[], object] | None = None, patience: float | None = None
) -> T:
    """Run a coroutine to its end in the fastest available event loop.

    SIGINT and SIGTERM cancel the coroutine. A second signal ends the loop. A third one ends the program even if the
    event loop is blocked.

    Args:
        main: The coroutine.
        on_terminate: Called on the event loop at the first SIGTERM, which then does not count as a signal: the
            coroutine ends in its own time, and the next signal cancels it.
        patience: Seconds after the first signal in which the process ends in any case, even if a thread computes
            forever and the event loop is blocked. The stacks of its threads are then printed on stderr.

    Raises:
        Stopped: a signal came, and the coroutine has ended because of it.
        KeyboardInterrupt: more than one signal came.
    """
    stop = _Stop(on_terminate, patience)
    with _handled(stop), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(stop.watched(main))


class _Stop:
    """The handler of signals that arrive while a coroutine runs."""

    def __init__(self, on_terminate: Callable[[], object] | None, patience: float | None) -> None:
        self._on_terminate = on_terminate
        self._patience = patience
        self._received: list[int] = []
        self._task: asyncio.Task[object] | None = None
        self._is_cut_off = False

    async def watched(self, main: Coroutine[object, object, T]) -> T:
        """Run the coroutine in this task. Raises Stopped."""
        # Signals before this line find no task, and raise in the handler.
        self._task = asyncio.current_task()
        try:
            return await main
        except asyncio.CancelledError:
            # Not cancelled by the first signal: another cancellation, or one that a second signal overtook.
            if len(self._received) != 1:
                raise
            raise StoppedBySignal(self._received[0]) from None

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self._task is not None:
            # On the loop: a handler of the log has a lock, which the interrupted code may hold.
            _call_soon(self._task.get_loop(), partial(_LOG.info, "received %s", signal.Signals(number).name))
        if self._patience is not None:
            # Armed at the first signal only: a later one must not extend the time.
            _end_within(self._patience)
            self._patience = None
        # The loop has not started the coroutine yet, so there is nothing to cancel.
        if self._task is None:
            raise StoppedBySignal(number)
        if number == signal.SIGTERM and self._on_terminate is not None and not self._received:
            _call_soon(self._task.get_loop(), self._on_terminate)
            self._on_terminate = None
            return
        self._received.append(number)
        loop = self._task.get_loop()
        if len(self._received) == 1:
            _call_soon(loop, self._task.cancel)
        elif len(self._received) == 2 or self._is_cut_off:
            _call_soon(loop, partial(self._cut_off, loop))
        else:
            raise KeyboardInterrupt

    def _cut_off(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the loop. Called on the loop: an exception from a signal handler could hit any line of the program."""
        self._is_cut_off = True
        loop.set_exception_handler(_ignore)  # errors of aborted tasks carry no information
        raise KeyboardInterrupt


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the program is ending
        # A signal handler runs between two instructions of the loop's thread; the threadsafe call also wakes a waiting
        # loop. In a context of its own: the interrupted code may answer a request, whose id the log would have.
        loop.call_soon_threadsafe(callback, context=Context())


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Ignore an error of a loop."""


def _end_within(seconds: float) -> None:
    """End the process after this time, by the interpreter's own watchdog.

    The watchdog needs none of the interpreter's locks, so it also ends a process that waits for its threads at exit.
    """
    faulthandler.dump_traceback_later(min(seconds, _LONGEST), exit=True, file=_ERROR_OUTPUT)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            # None stands for a handler that was not installed from Python, and cannot be restored.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


def run_demo(module: str, arguments: Sequence[str], name: str) -> int:
    """Run the `main` of a demo, whose packages are an extra that the other commands do not need."""
    try:
        status: int = importlib.import_module(module).main(arguments)
    except ModuleNotFoundError as error:
        # A missing module of the package itself is a fault, not a missing extra.
        if error.name is None or error.name.partition(".")[0] == "aioflow":
            raise
        say(name, f"the demo needs {error.name}, which is not installed: {install_command('demo')}")
        return _WRONG
    return status
