"""Stacks of the graphs, sessions and scopes that are open around a piece of code, one stack for each context.

A block may be left in another context than it was entered in: a server starts and stops in two tasks, or a generator is
closed by another task or by the garbage collector. There a context variable's `reset` raises an error. So nothing is
reset: leaving a block marks its entry, in any context, and lookups skip marked entries.

There is one exception: a task is started inside a block, and the block is then left in the context that it was entered
in. The task's context is a copy, and the task keeps the value that it was started with.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Thread(threading.local):
    """An object that identifies each thread; the system reuses thread numbers."""

    def __init__(self) -> None:
        self.mark = object()


_THREAD = _Thread()


def _here() -> object:
    """Return an identity of the running task, or of the event loop between tasks, or of a thread without a loop."""
    # Not imported here: a running loop has imported it, and building graphs need not wait for it.
    asyncio = sys.modules.get("asyncio")
    running_loop = getattr(asyncio, "_get_running_loop", None)
    loop = None if running_loop is None else running_loop()
    if asyncio is None or loop is None:
        return _THREAD.mark
    # A weak reference, so that an entry keeps neither a task nor a loop alive.
    return weakref.ref(asyncio.current_task(loop) or loop)


class EnteredBlock(Generic[T]):
    """One block that was entered.

    Attributes:
        value: The value that is open in it; None once the block was left.
        home: Identity of the task or thread in which it was entered.
        rest: Once the block was left there: the value, or a weak reference, for tasks that were started inside.
    """

    __slots__ = ("home", "rest", "value")

    def __init__(self, value: T) -> None:
        self.value: T | None = value
        self.home = _here()
        self.rest: Any = None


class ContextStack(Generic[T]):
    """The open entries, for each context.

    Args:
        name: Name of the context variable.
        weak: Whether tasks keep only a weak reference to the value of a block that was left.

    Attributes:
        entries: Returns the stack of this context, the outermost entry first; some of its blocks may have been left.
    """

    def __init__(self, name: str, *, weak: bool) -> None:
        variable: ContextVar[tuple[EnteredBlock[T], ...]] = ContextVar(name, default=())
        self.entries: Callable[[], tuple[EnteredBlock[T], ...]] = variable.get
        self._set = variable.set
        self._weak = weak

    def enter(self, value: T) -> EnteredBlock[T]:
        """Enter a block in this context, with this value."""
        entry = EnteredBlock(value)
        around = self.entries()
        for other in around:
            # Left in another context. Without this, the stack of a long-lived context would grow.
            if other.value is None:
                around = tuple(e for e in around if self.seen(e) is not None)
                break
        self._set((*around, entry))
        return entry

    def leave(self, entry: EnteredBlock[T]) -> None:
        """Leave a block, in any context, thread or order. Idempotent."""
        stack = self.entries()
        held = True
        if stack and stack[-1] is entry:
            self._set(stack[:-1])
        elif entry in stack:
            self._set(tuple(other for other in stack if other is not entry))
        else:
            held = False
        value = entry.value
        if value is not None:
            # Only a block that is left where it was entered leaves its value to the tasks that were started inside.
            if held and entry.home == _here():
                entry.rest = weakref.ref(value) if self._weak else value
            entry.value = None

    @contextmanager
    def inside(self, value: T) -> Iterator[T]:
        """Open a value inside a block."""
        entry = self.enter(value)
        try:
            yield value
        finally:
            self.leave(entry)

    def seen(self, entry: EnteredBlock[T]) -> T | None:
        """Return the value of an entry of the stack, as seen from this context."""
        value = entry.value
        if value is not None:
            return value
        # In its own context the block is over. A task that was started inside still sees the value.
        if entry.rest is None or entry.home == _here():
            return None
        kept: T | None = entry.rest() if self._weak else entry.rest
        return kept

    def __iter__(self) -> Iterator[T]:
        """Yield the open values of this context, the innermost first."""
        for entry in reversed(self.entries()):
            value = self.seen(entry)
            if value is not None:
                yield value

    def innermost(self) -> T | None:
        """Return the innermost open value of this context, or None."""
        for entry in reversed(self.entries()):
            value = entry.value
            if value is None:
                value = self.seen(entry)
            if value is not None:
                return value
        return None

    def innermost_of(self, entries: Container[EnteredBlock[T]]) -> EnteredBlock[T] | None:
        """Return the innermost of these entries that this context is in, or None."""
        return next((entry for entry in reversed(self.entries()) if entry in entries), None)
