"""Tasks of a session that outlive a step: readers that prefetch, and steps that run ahead of their consumers.

Each event loop on which the session is used has a task group, created with its first task and left when the session
closes. The group belongs to the session, not to the task that happens to create it, so it is entered and left
explicitly. Its tasks never raise, so a failure of one does not reach the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any, Final

from aioflow.errors import ClosedSessionError

_KEY: Final = "/background"  # in the table of node state; names of nodes do not begin with a slash

# The `Background` objects whose tasks the running code belongs to; inherited by the tasks that it starts.
_AROUND: Final[ContextVar[frozenset[Background]]] = ContextVar("_AROUND", default=frozenset())


class Background:
    """The background tasks of one session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[asyncio.AbstractEventLoop, asyncio.TaskGroup] = {}
        self._tasks: dict[asyncio.AbstractEventLoop, set[asyncio.Task[None]]] = {}
        self._closed = False

    async def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work`, which must not raise, as a task of the running loop.

        Raises:
            ClosedSessionError: the session is closed.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                work.close()
                raise ClosedSessionError("the session is closed", expected="an open session", actual="closed")
            # A loop that was closed without `close` would otherwise stay in the tables for ever.
            self._forget_dead_loops()
            group, fresh = self._groups.get(loop), False
            if group is None:
                group, fresh = asyncio.TaskGroup(), True
                self._groups[loop] = group
                self._tasks[loop] = set()
        if fresh:
            await group.__aenter__()  # does not suspend, so nothing can interfere
        # Set in the task's own context only: the caller does not belong to this group.
        context = copy_context()
        context.run(_AROUND.set, _AROUND.get() | {self})
        task: asyncio.Task[None] = group.create_task(work, context=context)
        tasks = self._tasks.setdefault(loop, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if self.is_closed:  # by another thread, which may have missed this task
            task.cancel()
        return task

    @property
    def is_closed(self) -> bool:
        """True if new tasks are refused and running ones are being cancelled."""
        return self._closed

    def _forget_dead_loops(self) -> None:
        for loop in [loop for loop in self._groups if loop.is_closed()]:
            del self._groups[loop], self._tasks[loop]

    def stop(self) -> None:
        """Cancel all tasks, on any loop, and refuse new ones. Thread-safe and idempotent."""
        with self._lock:
            # A second cancellation would interrupt the clean-up after the first.
            if self._closed:
                return
            self._closed = True
            loops = [(loop, list(tasks)) for loop, tasks in self._tasks.items() if not loop.is_closed()]
        for loop, tasks in loops:
            for task in tasks:
                with suppress(RuntimeError):  # another thread has closed the loop meanwhile
                    loop.call_soon_threadsafe(task.cancel)

    async def close(self) -> None:
        """Stop, and wait for the tasks of this loop."""
        self.stop()
        # Called within one of the tasks, which would wait for itself.
        if self in _AROUND.get():
            return
        loop = asyncio.get_running_loop()
        tasks = self._tasks.get(loop, set())
        with self._lock:
            # Removed under the lock: of several closes only one leaves the group, the others wait for its tasks.
            group = self._groups.pop(loop, None)
        if group is not None:
            await group.__aexit__(None, None, None)
        elif tasks:  # another call of `close` has taken the group
            await asyncio.wait(tasks)


def background_of(state: dict[str, Any]) -> Background:
    """Return the background tasks of the session with this table of kernel state."""
    found: Background = state.setdefault(_KEY, Background())
    return found
