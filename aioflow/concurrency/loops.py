"""The event loops that this package creates."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import TypeVar

from aioflow.concurrency.forking import not_forked

T = TypeVar("T")


def new_runner() -> asyncio.Runner:
    """Return a runner whose loop exists. Call where other threads may fork.

    Forks wait meanwhile: the locks of asyncio and of its policy would stay locked in a child, which could then create
    no loop.
    """
    with not_forked():
        runner = asyncio.Runner()
        runner.get_loop()
    return runner


def run_on_new_loop(coroutine: Coroutine[object, object, T]) -> T:
    """Do what `asyncio.run` does, where other threads may fork."""
    with new_runner() as runner:
        return runner.run(coroutine)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the constructor of the fastest event loop that is installed; None for asyncio's own."""
    # In debug mode, uvloop reads the running frame when an async generator is garbage. Python 3.11 crashes if that
    # happens while it creates a coroutine.
    if is_debug_mode() and sys.version_info < (3, 12):
        return None
    try:
        import uvloop  # not available on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop


def is_debug_mode() -> bool:
    """Return True if new event loops are in asyncio's debug mode, which is slow."""
    by_environment = not sys.flags.ignore_environment and bool(os.environ.get("PYTHONASYNCIODEBUG"))
    return sys.flags.dev_mode or by_environment
