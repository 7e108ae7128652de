"""How work that may take long asks whether it is to go on, and whether there is room for what it is about to make.

Whoever runs kernels tells their thread what it works on (`doing`). A loop in a kernel that may take long calls
`checkpoint` between two blocks, and what makes a value of a size that it reads from its inputs calls `claim` before. In
a thread that works on nothing in particular, a checkpoint does nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

from aioflow.errors import ResourceExhaustedError
from aioflow.work.context_stack import ContextStack

__all__ = [
    "COPY_RATE",
    "Brief",
    "Elsewhere",
    "Stoppable",
    "Stopped",
    "Work",
    "acting",
    "batches",
    "blocks",
    "checkpoint",
    "claim",
    "current_work",
    "doing",
    "largest_value",
    "value_limit",
]

T = TypeVar("T")
R = TypeVar("R")

COPY_RATE: Final = 2e9  # bytes a second that are copied into fresh memory, on the slower of today's machines
_MOMENT: Final = 1e-3  # seconds that work may hold up an event loop


class Stopped(BaseException):
    """The work was asked to stop. Whoever asked does not wait for a result. (No `except Exception` is to stop this.)"""


class Elsewhere(BaseException):
    """The work turned out to be too much for the event loop that it was begun on: begin it again in a thread."""


# As `SessionConfig.max_value_bytes`, in the context of a step that has set it.
_LIMIT: Final[ContextStack[int]] = ContextStack("aioflow_value_limit", weak=False)


class Work:
    """What a thread is working on. This one is never asked to stop.

    Args:
        limit: The most bytes that a value may take; None for what the context says, or else `largest_value`.
        effects: As the attribute, where nothing else is said.

    Attributes:
        effects: Whether what the thread does at the moment changes something that others see. Only a call that does not
            may be left behind.
        watchers: Called, on the event loop of who waits, when the work is asked to stop.
    """

    __slots__ = ("_rests", "effects", "limit", "watchers")

    def __init__(self, limit: int | None = None, effects: bool = True) -> None:
        self.limit = _LIMIT.innermost() if limit is None and _LIMIT.entries() else limit
        self.effects = self._rests = effects
        self.watchers: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """Whether it was asked to stop."""
        return False

    def stop(self) -> None:
        """Ask it to stop."""

    def check(self) -> None:
        """Raise, if it is to stop."""

    def act(self) -> None:
        """What comes next has an effect: it is not begun where the work is to stop, and is waited for.

        Raises:
            Stopped: it is to stop.
        """
        self.effects = True  # and then look: who leaves a call behind asks it to stop, and then looks at this
        if self.requested:
            self.effects = self._rests
            raise Stopped

    def acted(self) -> None:
        """What had an effect has ended."""
        self.effects = self._rests

    def admit(self, size: int, seconds: float) -> None:
        """Raise, if a value of `size` bytes, which takes so long to make, is not to be made here."""
        limit = largest_value() if self.limit is None else self.limit
        if size > limit:
            raise ResourceExhaustedError(
                "the value would be larger than SessionConfig.max_value_bytes",
                expected=f"at most {limit} bytes",
                actual=f"{size} bytes",
            )


class Stoppable(Work):
    """Work that ends at its next checkpoint when it is asked to stop."""

    __slots__ = ("_requested",)

    def __init__(self, limit: int | None = None, effects: bool = True) -> None:
        super().__init__(limit, effects)
        self._requested = False

    @property
    def requested(self) -> bool:
        """Whether it was asked to stop."""
        return self._requested

    def stop(self) -> None:
        """Ask it to stop. Call on the event loop of who waits for it."""
        self._requested = True
        for watcher in list(self.watchers):
            watcher()

    def check(self) -> None:
        """Raises Stopped."""
        if self._requested:
            raise Stopped


class Brief(Work):
    """Work on an event loop, which others wait for: what takes longer than a moment is given up there, unless it has
    had an effect.

    Args:
        seconds: How long that is.
    """

    __slots__ = ("_seconds", "_until")

    def __init__(self, limit: int | None = None, seconds: float = _MOMENT) -> None:
        super().__init__(limit)
        self._until = perf_counter() + seconds
        self._seconds = seconds

    def check(self) -> None:
        """Raises Elsewhere."""
        if perf_counter() > self._until:
            raise Elsewhere

    def act(self) -> None:
        """From here on it can only go on."""
        self._until = self._seconds = float("inf")

    def admit(self, size: int, seconds: float) -> None:
        """Raises Elsewhere; ResourceExhaustedError where the value is to be made nowhere."""
        super().admit(size, seconds)
        if max(size / COPY_RATE, seconds) > self._seconds:
            raise Elsewhere


class _ThisThread(threading.local):
    work: Work | None = None


_this_thread: Final = _ThisThread()


def current_work() -> Work | None:
    """What this thread is working on."""
    return _this_thread.work


def doing(work: Work | None, function: Callable[..., R], *args: Any) -> R:
    """`function(*args)`, as a part of that work."""
    before = _this_thread.work
    _this_thread.work = work
    try:
        return function(*args)
    finally:
        _this_thread.work = before


def checkpoint() -> None:
    """Go on, unless this thread's work is to stop: then raise what ends it. Costs about 100 ns."""
    work = _this_thread.work
    if work is not None:
        work.check()


def claim(size: int, seconds: float = 0.0) -> None:
    """A value of `size` bytes is about to be made, in so many seconds if it takes longer than to write it.

    Raises:
        ResourceExhaustedError: it is larger than a value may be.
    """
    (_this_thread.work or Work()).admit(size, seconds)


class acting:
    """`with acting():` What is done in the block has an effect: see `Work.act`. Checkpoints in it do nothing."""

    __slots__ = ("_work",)

    def __enter__(self) -> None:
        self._work = _this_thread.work
        if self._work is not None:
            self._work.act()
            _this_thread.work = None

    def __exit__(self, *exc_info: object) -> None:
        if self._work is not None:
            self._work.acted()
            _this_thread.work = self._work


def blocks(total: int, size: int) -> Iterator[slice]:
    """The slices, of at most `size`, that make up `total` elements, with a checkpoint before each but the first."""
    for start in range(0, total, size):
        if start:
            checkpoint()
        yield slice(start, min(start + size, total))


def batches(items: Sequence[T] | Iterable[T], size: int = 1024) -> Iterator[T]:
    """The items one by one, with a checkpoint after each `size` of them."""
    for number, item in enumerate(items):
        if not (number + 1) % size:
            checkpoint()
        yield item


@contextmanager
def value_limit(limit: int | None) -> Iterator[None]:
    """A block in which no value may take more bytes; None where nothing is said."""
    if limit is None:
        yield
        return
    with _LIMIT.inside(limit):
        yield


@cache
def largest_value() -> int:
    """The most bytes that a value may take where nothing is said: half of the memory that this process may use. (Twice
    that is needed to copy it.) Where the memory is not known, there is no limit.
    """
    found = [_physical_memory(), *_group_limits(), *_own_limits()]
    return min((size for size in found if size is not None), default=2**63) // 2


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None  # Windows


def _group_limits() -> Iterator[int]:
    """What the control group of a container allows."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            yield int(text)


def _own_limits() -> Iterator[int]:
    """What this process may take: of addresses, and of memory that it may write to."""
    try:
        import resource
    except ImportError:
        return  # Windows
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        size, _ = resource.getrlimit(limit)
        if size != resource.RLIM_INFINITY:
            yield size
