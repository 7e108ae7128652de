"""Programs that tests start. The end of the block that started a program kills it and its children.

A program gets SIGINT like a terminal's foreground job. The tests themselves may run with SIGINT ignored, as in the
background job of a shell, and child processes inherit ignored signals.
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

__all__ = ["SECONDS", "end", "process", "program", "program_on_loop", "start"]

SECONDS: Final = 120.0  # limit for a program to end; generous, for busy machines
_POSIX: Final = os.name == "posix"


def _own_group() -> dict[str, Any]:
    """Return the options of a process that can be killed together with its children."""
    return {"start_new_session": True} if _POSIX else {}


def _prepared(*command: str, ignores_interrupts: bool = False) -> list[str]:
    """Return a command that sets the action of SIGINT and then executes `command`.

    `preexec_fn` could set it in the child, but then fork handlers of libraries run there: gRPC's sometimes abort it.
    """
    if not _POSIX:
        return list(command)
    disposition = "SIG_IGN" if ignores_interrupts else "SIG_DFL"
    set_and_become = (
        f"import os, signal, sys; signal.signal(2, signal.{disposition}); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", set_and_become, *command]


def _kill(process: subprocess.Popen[Any] | asyncio.subprocess.Process) -> None:
    """Kill a process and its children, which may outlive it."""
    with suppress(ProcessLookupError):
        if _POSIX:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def start(*command: str, ignores_interrupts: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Start a Python program (`-m aioflow …`). The caller must call `end`."""
    prepared = _prepared(sys.executable, *command, ignores_interrupts=ignores_interrupts)
    return subprocess.Popen(prepared, **_own_group(), **options)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill the process if it still runs, and close its pipes."""
    _kill(process)
    process.wait(SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def process(*command: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run any program, and kill it at the end of the block if it still runs."""
    started = subprocess.Popen(_prepared(*command), **_own_group(), **options)
    try:
        yield started
    finally:
        end(started)


@contextmanager
def program(
    *command: str, ignores_interrupts: bool = False, stdout: int = subprocess.PIPE, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program (`-m aioflow …`), and kill it at the end of the block if it still runs."""
    started = start(
        *command, ignores_interrupts=ignores_interrupts, stdout=stdout, text=True, encoding="utf-8", **options
    )
    try:
        yield started
    finally:
        end(started)


@asynccontextmanager
async def program_on_loop(
    *command: str, stdout: int = asyncio.subprocess.PIPE, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python program for tests that talk to it from their event loop. Its output is a pipe."""
    async with process_on_loop(sys.executable, *command, stdout=stdout, **options) as process:
        yield process


@asynccontextmanager
async def process_on_loop(
    command: str, *arguments: str, stdout: int = asyncio.subprocess.PIPE, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run any program for tests that talk to it from their event loop. Its output is a pipe."""
    first, *rest = _prepared(command, *arguments)
    process = await asyncio.create_subprocess_exec(first, *rest, stdout=stdout, **_own_group(), **options)
    try:
        yield process
    finally:
        _kill(process)
        async with asyncio.timeout(SECONDS):
            await process.communicate()
