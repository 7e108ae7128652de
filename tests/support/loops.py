"""Event loops of tests: each kind in debug mode, and a virtual clock."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import math
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from types import FrameType
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import pytest
import uvloop

from aioflow.testing.virtual_clock import run_virtual

__all__ = ["LOOPS", "on_each_loop", "run_on", "virtually"]

Test: TypeAlias = Callable[..., Coroutine[Any, Any, None]]

# For `pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)`.
LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

_FRAMES: Final = 3


def run_on(new_loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, object]) -> None:
    """Run `work` on a new event loop in debug mode. Errors that the loop can only log fail the test."""
    logged: list[str] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = math.inf  # a busy machine is no fault
        loop.set_exception_handler(lambda _, context: logged.append(repr(context)))
        _finalize_generators_in_python()
        await work

    with _short_stacks(), asyncio.Runner(debug=True, loop_factory=new_loop) as runner:
        runner.run(watched())
    assert not logged, logged


def _finalize_generators_in_python() -> None:
    """Wrap the loop's finalizer of async generators in a Python function.

    uvloop's finalizer is native code, and in debug mode it requests the running frame. Python 3.11 may collect garbage
    while it makes a coroutine. The frame found then is assigned to that coroutine a second time and freed twice, and
    the interpreter crashes.
    """
    hooks = sys.get_asyncgen_hooks()
    if (finalizer := hooks.finalizer) is not None:
        sys.set_asyncgen_hooks(hooks.firstiter, lambda generator: finalizer(generator))


def _never(filename: str | None = None) -> None:
    """Do nothing: `linecache.checkcache` for files that do not change."""


@contextmanager
def _short_stacks() -> Iterator[None]:
    """Keep few stack frames per future and callback in debug mode, and do not check whether their files changed.

    With pytest's deep stacks these take longer than the tests.
    """

    def walk(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        return islice(whole(frame), _FRAMES)

    whole = traceback.walk_stack
    with patch.object(traceback, "walk_stack", walk), patch.object(linecache, "checkcache", _never):
        yield


def on_each_loop(test: Test) -> Callable[..., None]:
    """Run a test coroutine by `run_on`, on each kind of event loop."""

    @wraps(test)
    def run(*args: Any, loop: Callable[[], asyncio.AbstractEventLoop], **kwargs: Any) -> None:
        run_on(loop, test(*args, **kwargs))

    signature = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), loop])  # type: ignore[attr-defined]  # pytest reads it
    parametrized: Callable[..., None] = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)(run)
    return parametrized


def virtually(test: Test) -> Callable[..., None]:
    """Run a test coroutine on the virtual clock."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run
