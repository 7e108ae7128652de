"""Programs that tests start: each ends with the block that started it, with its children, whatever it was doing.

A program gets SIGINT as a terminal's foreground job has it. The tests themselves may run where it is ignored, as in the
background job of a shell, and what is ignored is inherited.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

__all__ = ["SECONDS", "end", "program", "program_on_loop", "start"]

SECONDS: Final = 120.0  # that a program may take to end when it should: generous, for machines that are busy
_POSIX: Final = os.name == "posix"


def _own_group() -> dict[str, Any]:
    """The options of a process that can be ended together with its children."""
    return {"start_new_session": True} if _POSIX else {}


def _prepared(*command: str, ignores_interrupts: bool = False) -> list[str]:
    """The command behind a program that sets what SIGINT does, and becomes it. Python can do so in the child before it
    is a program (`preexec_fn`), but then fork handlers of libraries run there: gRPC's abort it at times.
    """
    if not _POSIX:
        return list(command)
    disposition = "SIG_IGN" if ignores_interrupts else "SIG_DFL"
    set_and_become = (
        f"import os, signal, sys; signal.signal(2, signal.{disposition}); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", set_and_become, *command]


def _kill(process: subprocess.Popen[Any] | asyncio.subprocess.Process) -> None:
    """Kill what still runs of a process and its children; these may outlive it."""
    with suppress(ProcessLookupError):
        if _POSIX:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def start(*command: str, ignores_interrupts: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """A Python program (`-m aioflow …`), for whoever sees to it that `end` is called."""
    prepared = _prepared(sys.executable, *command, ignores_interrupts=ignores_interrupts)
    return subprocess.Popen(prepared, **_own_group(), **options)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill it if it still runs."""
    _kill(process)
    process.wait(SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def program(
    *command: str, ignores_interrupts: bool = False, stdout: int = subprocess.PIPE, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A Python program (`-m aioflow …`), killed at the end of the block if it still runs."""
    process = start(
        *command, ignores_interrupts=ignores_interrupts, stdout=stdout, text=True, encoding="utf-8", **options
    )
    try:
        yield process
    finally:
        end(process)


@asynccontextmanager
async def program_on_loop(
    *command: str, stdout: int = asyncio.subprocess.PIPE, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The same for tests that talk to the program from their event loop. Its output is a pipe."""
    async with process_on_loop(sys.executable, *command, stdout=stdout, **options) as process:
        yield process


@asynccontextmanager
async def process_on_loop(
    command: str, *arguments: str, stdout: int = asyncio.subprocess.PIPE, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The same for programs that are not written in Python."""
    first, *rest = _prepared(command, *arguments)
    process = await asyncio.create_subprocess_exec(first, *rest, stdout=stdout, **_own_group(), **options)
    try:
        yield process
    finally:
        _kill(process)
        async with asyncio.timeout(SECONDS):
            await process.communicate()
