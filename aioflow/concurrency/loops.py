"""The choice of the event loop for this package's programs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable


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
