"""What a forked child makes anew.

A child has its parent's memory and only the thread that forked. A lock that another thread held stays locked forever,
a queue has lost who took from it, and sockets and event loops are the parent's still. So whatever has such a thing for
longer than a step registers here; what cannot be made anew refuses by `check_process`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


_FORKS: Final = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_FORKS.acquire, after_in_parent=_FORKS.release, after_in_child=_FORKS.release)


@contextmanager
def not_forked() -> Iterator[None]:
    """While the block runs, other threads that fork wait. For imports: Python's lock of a module that was half imported
    stays locked in a child, and whoever imports it there waits forever.
    """
    with _FORKS:
        yield


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
