"""What a forked child makes anew.

A child has its parent's memory and only the thread that forked. A lock that another thread held stays locked forever,
a queue has lost who took from it, and sockets and event loops are the parent's still. So whatever has such a thing for
longer than a step registers here; what cannot be made anew refuses by `check_process`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import _bootstrap
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from aioflow.errors import FailedPreconditionError

__all__ = ["Forks", "Locked", "check_process", "generation", "in_child", "not_forked", "renew_in_child"]

F = TypeVar("F", bound=Callable[[], Any])


class Forks(Protocol):
    """What is told of a fork."""

    def after_fork(self) -> None:
        """This is the child now, and no other thread runs."""


class _Process:
    """How many forks lie between this process and the one that imported aioflow."""

    def __init__(self) -> None:
        self.generation = 0


_PROCESS: Final = _Process()
_KNOWN: Final[WeakSet[Any]] = WeakSet()


def in_child(function: F) -> F:
    """Call `function()` in every child that is forked from now on; may be used as a decorator."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def renew_in_child(known: Forks) -> None:
    """Tell `known`, which is not kept alive, of every fork."""
    _KNOWN.add(known)


@in_child
def _tell() -> None:
    _PROCESS.generation += 1
    for known in list(_KNOWN):
        known.after_fork()


class _Imports:
    """The blocks that forks wait for: one at a time, since packages with cycles of imports, as NumPy, cannot be
    imported by several threads at once. But whoever is importing already does not wait for its turn: another thread may
    be in a block, and wait for the module whose lock is held here.
    """

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._lock = threading.RLock()  # taken as such: an interrupt would leave a condition locked
        self._changed = threading.Condition(self._lock)
        self._threads: dict[object, int] = {}  # of each block
        self._aside: dict[object, int] = {}  # the blocks of the thread that forks

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block."""
        mark = object()
        with nullcontext() if _is_importing() else self._turn:
            try:
                with self._lock:
                    self._threads[mark] = threading.get_ident()
                yield
            finally:
                with self._lock:
                    self._threads.pop(mark, None)
                    self._changed.notify_all()

    def is_here(self) -> bool:
        """Whether this thread is in a block."""
        return threading.get_ident() in list(self._threads.values())

    def before_fork(self) -> None:
        """Wait until no other thread is in a block, and let none begin one. Blocks of this thread do not count, nor do
        they for another one that wants to fork.
        """
        self._lock.acquire()
        here = threading.get_ident()
        aside = {mark: thread for mark, thread in self._threads.items() if thread == here}
        for mark in aside:
            del self._threads[mark]
        self._changed.notify_all()
        try:
            self._changed.wait_for(lambda: not self._threads)
        finally:
            self._aside = aside

    def after_fork(self) -> None:
        """In both processes."""
        self._threads.update(self._aside)
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """As `after_fork`. Who had the turn, and no block yet, is the parent's."""
        self._turn = threading.RLock()
        self.after_fork()


def _is_importing() -> bool:
    """Whether this thread is in the middle of an import, and so holds a module's lock."""
    imports, frame = vars(_bootstrap), sys._getframe(1)
    while frame.f_globals is not imports:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


_IMPORTS: Final = _Imports()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_IMPORTS.before_fork, after_in_parent=_IMPORTS.after_fork, after_in_child=_IMPORTS.after_fork_in_child
    )


def not_forked() -> AbstractContextManager[None]:
    """While the block runs, other threads that fork wait. For imports: Python's lock of a module that was half imported
    stays locked in a child, and whoever imports it there waits forever.
    """
    return _IMPORTS.block()


class Locked:
    """What several threads use, under its `lock`. In a child the lock is free, whoever held it in the parent."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        renew_in_child(self)

    def after_fork(self) -> None:
        """As `Forks`."""
        self.lock = threading.RLock()


def generation() -> int:
    """A number that is a different one in a child."""
    return _PROCESS.generation


def check_process(made_in: int, what: str) -> None:
    """Raise FailedPreconditionError unless `what` was made in this process, whose `generation` was `made_in` then."""
    if made_in != _PROCESS.generation:
        raise FailedPreconditionError(
            f"{what} was made before this process was forked; its threads and connections are the parent's",
            expected=f"{what} that was made in this process, or one that was started with spawn",
            actual="forked since",
        )
