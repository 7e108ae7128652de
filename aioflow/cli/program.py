"""How every program of the package ends: by itself, by a signal, at a closed pipe, or with one line about a mistake.

A user's mistake is one line on the error output and exit status 2; a traceback is left to faults of the program. SIGINT
is taken even where it is inherited as ignored, as in the background job of a shell: who sends it means it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

from aioflow.errors import OpError
from aioflow.release import install_command
from aioflow.work.loops import loop_factory

__all__ = [
    "Stopped",
    "run",
    "run_command",
    "run_demo",
    "say",
]

T = TypeVar("T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_ERROR_OUTPUT: Final = 2
_LONGEST: Final = 86_400.0 * 365
_WRONG: Final = 2  # the status of argparse, too
_BROKEN_PIPE: Final = 128 + 13  # what a shell shows for a program that SIGPIPE has ended


class Stopped(Exception):
    """A signal has stopped what `run` ran."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status by which shells know it."""
        return 128 + self.number


# ── the end of a command ─────────────────────────────────────────────────────────────────────────────────────────────


def run_command(name: str, command: Callable[[], int]) -> int:
    """The exit status of a command: its own, or that of what came in between, which is said in one line."""
    _prepare()
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, where it can still be said that it failed
    except KeyboardInterrupt:
        say(name, "interrupted")
        return Stopped(signal.SIGINT).status
    except Stopped as stopped:
        say(name, f"stopped by {stopped}")
        return stopped.status
    except BrokenPipeError:  # whoever reads the output has enough of it
        return _BROKEN_PIPE
    except (OpError, OSError) as error:
        say(name, _in_one_line(error))
        return _WRONG
    except ExceptionGroup as group:
        mistakes, others = group.split((OpError, OSError))
        if others is not None or mistakes is None:
            raise
        say(name, _in_one_line(_first(mistakes)))
        return _WRONG
    finally:
        _give_up_broken_output()


def _prepare() -> None:
    """There are streams to write to, what their encoding has not is shown by its number, and SIGINT interrupts."""
    _open_what_was_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_what_was_closed() -> None:
    """A program that is started without some of the standard streams would give their numbers to its sockets."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def say(name: str, line: str) -> None:
    """One line on the error output."""
    with suppress(OSError):  # there is nobody to tell
        print(f"{name}: {line}", file=sys.stderr, flush=True)


def _in_one_line(error: BaseException) -> str:
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
    return " ".join(text.split())


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _give_up_broken_output() -> None:
    """What could not be written is dropped: the interpreter would try again at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


# ── coroutines as programs ───────────────────────────────────────────────────────────────────────────────────────────


def run(
    main: Coroutine[Any, Any, T], on_terminate: Callable[[], object] | None = None, patience: float | None = None
) -> T:
    """Run a coroutine to its end in the fastest loop there is.

    SIGINT and SIGTERM cancel it, and a second one cuts it off; a third one, even if the event loop does not turn.

    Args:
        on_terminate: Called on the event loop at the first SIGTERM, which then does not count: the coroutine ends in
            its own time, and is cancelled by the next signal.
        patience: Seconds after the first signal in which the process ends in any case, even if a thread computes
            for ever and the event loop does not turn; where its threads are then is said on the error output.

    Raises:
        Stopped: a signal came, and the coroutine has ended because of it.
        KeyboardInterrupt: more than one came.
    """
    stop = _Stop(on_terminate, patience)
    with _handled(stop), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(stop.watched(main))


class _Stop:
    """The handler of signals that come while a coroutine runs."""

    def __init__(self, on_terminate: Callable[[], object] | None, patience: float | None) -> None:
        self._on_terminate = on_terminate
        self._patience = patience
        self._received: list[int] = []
        self._task: asyncio.Task[Any] | None = None
        self._is_cut_off = False

    async def watched(self, main: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in this task. Raises Stopped."""
        self._task = asyncio.current_task()
        try:
            return await main
        except asyncio.CancelledError:
            if len(self._received) != 1:
                raise
            raise Stopped(self._received[0]) from None

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self._patience is not None:
            _end_within(self._patience)
            self._patience = None
        if self._task is None:
            raise Stopped(number)
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
        """End the loop. From a handler of signals, the exception would hit any line of the program."""
        self._is_cut_off = True
        loop.set_exception_handler(_ignore)  # the errors of tasks that are cut off say nothing
        raise KeyboardInterrupt


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the program is at its end
        loop.call_soon_threadsafe(callback)


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error of a loop by doing nothing."""


def _end_within(seconds: float) -> None:
    """The interpreter's own watchdog, which needs none of its locks, ends the process: also one that waits for its
    threads after all is said and done.
    """
    faulthandler.dump_traceback_later(min(seconds, _LONGEST), exit=True, file=_ERROR_OUTPUT)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


def run_demo(module: str, arguments: Sequence[str], name: str) -> int:
    """Hand over to the `main` of a demo, whose packages are an extra that the other commands do without."""
    try:
        status: int = importlib.import_module(module).main(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "aioflow":
            raise
        say(name, f"the demo needs {error.name}, which is not installed: {install_command('demo')}")
        return _WRONG
    return status
