"""Renewal of locks, queues and threads in forked children.

A child has its parent's memory, but only the thread that forked. A lock that another thread held stays locked forever,
the threads that serve a queue are missing, and sockets and event loops still belong to the parent. So every object with
such state that lives longer than a step registers here. An object that cannot be renewed refuses use with
`check_process`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import _bootstrap
from typing import Final, Protocol, TypeVar
from weakref import WeakSet

from aioflow.errors import FailedPreconditionError

F = TypeVar("F", bound=Callable[[], object])


class Forks(Protocol):
    """An object that is notified of forks."""

    def after_fork(self) -> None:
        """Renew the state. Called in the child, where no other thread runs."""


class _Process:
    """Number of forks between this process and the one that imported aioflow."""

    def __init__(self) -> None:
        self.generation = 0


_PROCESS: Final = _Process()
_KNOWN: Final[WeakSet[Forks]] = WeakSet()


def in_child(function: F) -> F:
    """Call `function()` in every child that is forked from now on. Usable as a decorator."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def renew_in_child(known: Forks) -> None:
    """Call `known.after_fork()` in every child. The registry holds only a weak reference."""
    _KNOWN.add(known)


@in_child
def _tell() -> None:
    _PROCESS.generation += 1
    for known in list(_KNOWN):
        known.after_fork()


class _Imports:
    """The blocks that forks wait for, one at a time.

    Packages with import cycles, such as NumPy, cannot be imported by several threads at once. But a thread that is
    already importing does not wait for its turn: the thread in the block may wait for a module whose lock this thread
    holds.
    """

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._lock = threading.RLock()  # used directly: an interrupt can leave a condition locked
        self._changed = threading.Condition(self._lock)
        self._threads: dict[object, int] = {}  # the thread of each block
        self._aside: dict[object, int] = {}  # blocks of the forking thread, during the fork

    @contextmanager
    def block(self) -> Iterator[None]:
        """Delay forks by other threads while the block runs."""
        mark = object()  # one for each block, since a thread may be in several
        with nullcontext() if _is_importing() else self._turn:
            try:
                with self._lock:
                    self._threads[mark] = threading.get_ident()
                yield
            finally:
                with self._lock:
                    # An interrupt may come before the mark is stored.
                    self._threads.pop(mark, None)
                    self._changed.notify_all()

    def is_here(self) -> bool:
        """Return True if this thread is in a block."""
        # Copied in one step, since other threads may change the dictionary meanwhile.
        return threading.get_ident() in list(self._threads.values())

    def before_fork(self) -> None:
        """Wait until no other thread is in a block, and keep new blocks from starting.

        Blocks of this thread do not count, neither here nor for another thread that waits to fork.
        """
        # Held until `after_fork`, so that no block begins between here and the fork.
        self._lock.acquire()
        here = threading.get_ident()
        aside = {mark: thread for mark, thread in self._threads.items() if thread == here}
        for mark in aside:
            del self._threads[mark]
        self._changed.notify_all()
        try:
            # Releases the lock while it waits, so that the blocks of other threads can end.
            self._changed.wait_for(lambda: not self._threads)
        finally:
            self._aside = aside

    def after_fork(self) -> None:
        """Allow blocks again. Called in both processes."""
        self._threads.update(self._aside)
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Like `after_fork`. Also renews the turn, which a thread of the parent may hold."""
        self._turn = threading.RLock()
        self.after_fork()


def _is_importing() -> bool:
    """Return True if this thread is inside an import, and thus holds the lock of a module."""
    # Python code of the import system is in `importlib._bootstrap`, whose functions share these globals.
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
    """Delay forks by other threads while the block runs, for imports.

    Python's lock of a module that is half imported stays locked in a child, where importing the module would wait
    forever.
    """
    return _IMPORTS.block()


class Locked:
    """An object shared by threads under its `lock`, which is renewed in a child."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Renew the lock in a child."""
        self.lock = threading.RLock()


def generation() -> int:
    """Return a number that differs between a process and its forked children."""
    return _PROCESS.generation


def check_process(made_in: int, what: str) -> None:
    """Raise FailedPreconditionError unless `what` was made in this process; `made_in` was its `generation` then."""
    if made_in != _PROCESS.generation:
        raise FailedPreconditionError(
            f"{what} was made before this process was forked; its threads and connections are the parent's",
            expected=f"{what} that was made in this process, or one that was started with spawn",
            actual="forked since",
        )
