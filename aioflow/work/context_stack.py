"""What is open around a piece of code: graphs, sessions, scopes. One stack of entries for each context.

A program may leave a block in another context than it entered it in: a server starts and stops in two tasks, a
generator is closed by whoever drops it, or by the garbage collector. A context variable's `reset` raises there. So
nothing is ever reset: who leaves an entry says so on the entry itself, wherever that happens, and whoever looks passes
over it.

One case is no such thing: a task that is started inside a block, which is then left where it was entered. The task's
context is a copy, and the task keeps what it was started in.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

__all__ = ["ContextStack", "Entry"]

T = TypeVar("T")


class _Thread(threading.local):
    """A mark of each thread. (The numbers of threads are given again.)"""

    def __init__(self) -> None:
        self.mark = object()


_THREAD = _Thread()


def _here() -> object:
    """Stands for the running task, or for the event loop between its tasks, or for a thread without one."""
    asyncio = sys.modules.get("asyncio")  # whoever runs a loop has it; who makes graphs need not wait for it
    running_loop = getattr(asyncio, "_get_running_loop", None)
    loop = None if running_loop is None else running_loop()
    if asyncio is None or loop is None:
        return _THREAD.mark
    return weakref.ref(asyncio.current_task(loop) or loop)


class Entry(Generic[T]):
    """One block that was entered.

    Attributes:
        value: What is open in it; None once it was left.
        home: Where it was entered.
        rest: What tasks keep of it that were started inside, once it was left at home: the value, or a weak reference.
    """

    __slots__ = ("home", "rest", "value")

    def __init__(self, value: T) -> None:
        self.value: T | None = value
        self.home = _here()
        self.rest: Any = None


class ContextStack(Generic[T]):
    """The entries that are open, for each context.

    Args:
        name: Of the context variable.
        weak: Whether a task that keeps an entry which was left is no reason to keep its value alive.

    Attributes:
        entries: Gives the stack as it is here, the outermost first; some of it may have been left.
    """

    def __init__(self, name: str, *, weak: bool) -> None:
        variable: ContextVar[tuple[Entry[T], ...]] = ContextVar(name, default=())
        self.entries: Callable[[], tuple[Entry[T], ...]] = variable.get
        self._set = variable.set
        self._weak = weak

    def enter(self, value: T) -> Entry[T]:
        """Open a block around what this context does from now on."""
        entry = Entry(value)
        around = self.entries()
        for other in around:
            if other.value is None:  # it was left somewhere else: a context that lives on would collect ever more
                around = tuple(e for e in around if self.seen(e) is not None)
                break
        self._set((*around, entry))
        return entry

    def leave(self, entry: Entry[T]) -> None:
        """Close it, in whatever context, thread or order. To do so again changes nothing."""
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
            if held and entry.home == _here():
                entry.rest = weakref.ref(value) if self._weak else value
            entry.value = None

    @contextmanager
    def inside(self, value: T) -> Iterator[T]:
        """A block in which the value is open."""
        entry = self.enter(value)
        try:
            yield value
        finally:
            self.leave(entry)

    def seen(self, entry: Entry[T]) -> T | None:
        """What is open in an entry of the stack, as seen from here."""
        value = entry.value
        if value is not None:
            return value
        if entry.rest is None or entry.home == _here():
            return None
        kept: T | None = entry.rest() if self._weak else entry.rest
        return kept

    def __iter__(self) -> Iterator[T]:
        """What is open here, the innermost first."""
        for entry in reversed(self.entries()):
            value = self.seen(entry)
            if value is not None:
                yield value

    def innermost(self) -> T | None:
        """What is open here and nothing else inside it, or None."""
        for entry in reversed(self.entries()):
            value = entry.value
            if value is None:
                value = self.seen(entry)
            if value is not None:
                return value
        return None

    def innermost_of(self, entries: Container[Entry[T]]) -> Entry[T] | None:
        """The innermost of these entries that this context is in, or None."""
        return next((entry for entry in reversed(self.entries()) if entry in entries), None)
