"""Cooperative cancellation of long-running work, and limits on the size of values.

The code that runs kernels sets the work of their thread (`doing`). A loop in a kernel that may take long calls
`checkpoint` between two blocks. A kernel that creates a value of a size read from its inputs calls `reserve` first.
In a thread without work, a checkpoint does nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

from aioflow.concurrency.context_stack import ContextStack
from aioflow.errors import ResourceExhaustedError

T = TypeVar("T")
R = TypeVar("R")

COPY_RATE: Final = 2e9  # bytes per second of copies into fresh memory, on the slower of today's machines
# Bytes up to which arrays are copied on an event loop rather than in a thread. Measured for this size: 6 µs into memory
# in use and up to 0.1 ms into fresh memory, against 33 µs for the round trip to an idle thread.
INLINE_COPY: Final = 1 << 18
_MOMENT: Final = 1e-3  # seconds for which work may block an event loop


class Stopped(BaseException):
    """The work was asked to stop, and no caller waits for its result.

    It derives from BaseException, so that no `except Exception` catches it.
    """


class OffloadToThread(BaseException):
    """The work takes too long for the event loop that it was started on: start it again in a thread."""


# Like `SessionConfig.max_value_bytes`, in the context of a step that has set it.
_LIMIT: Final[ContextStack[int]] = ContextStack("aioflow_value_limit", weak=False)


class Work:
    """The work of a thread. An object of this class is never asked to stop.

    Args:
        limit: Maximum size of a value in bytes; None for the context's limit, or else `largest_value`.
        effects: Initial value of the attribute, to which it returns after each critical section.

    Attributes:
        effects: Whether the current call changes state that others see. Only a call without effects may be abandoned.
        watchers: Called when the work is asked to stop, on the event loop of the waiting caller.
    """

    __slots__ = ("_rests", "effects", "limit", "watchers")

    def __init__(self, limit: int | None = None, effects: bool = True) -> None:
        self.limit = _LIMIT.innermost() if limit is None and _LIMIT.entries() else limit
        self.effects = self._rests = effects
        self.watchers: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """True if the work was asked to stop."""
        return False

    def stop(self) -> None:
        """Ask the work to stop."""

    def check(self) -> None:
        """Raise if the work is to stop."""

    def begin_critical(self) -> None:
        """Start a critical section, whose code has effects. A caller waits for its end, and does not abandon it.

        Raises:
            Stopped: the work is to stop.
        """
        # Set before the check: a caller that abandons a call requests the stop first, then reads `effects`.
        self.effects = True
        if self.requested:
            self.effects = self._rests
            raise Stopped

    def end_critical(self) -> None:
        """End a critical section."""
        self.effects = self._rests

    def admit(self, size: int, seconds: float) -> None:
        """Check whether a value of `size` bytes, which takes `seconds` to compute, may be created here.

        Raises:
            ResourceExhaustedError: the value exceeds the limit.
        """
        limit = largest_value() if self.limit is None else self.limit
        if size > limit:
            raise ResourceExhaustedError(
                "the value would be larger than SessionConfig.max_value_bytes",
                expected=f"at most {limit} bytes",
                actual=f"{size} bytes",
            )


class Stoppable(Work):
    """Work that ends at its next checkpoint after it was asked to stop."""

    __slots__ = ("_requested",)

    def __init__(self, limit: int | None = None, effects: bool = True) -> None:
        super().__init__(limit, effects)
        self._requested = False

    @property
    def requested(self) -> bool:
        """True if the work was asked to stop."""
        return self._requested

    def stop(self) -> None:
        """Ask the work to stop. Call on the event loop of the waiting caller."""
        self._requested = True
        for watcher in list(self.watchers):
            watcher()

    def check(self) -> None:
        """Raise Stopped if the work was asked to stop."""
        if self._requested:
            raise Stopped


class BoundedWork(Work):
    """Bounded work on an event loop, which it blocks: it is aborted if it takes too long and has had no effects.

    Args:
        limit: Maximum size of a value in bytes, as for `Work`.
        seconds: Maximum duration.
    """

    __slots__ = ("_seconds", "_until")

    def __init__(self, limit: int | None = None, seconds: float = _MOMENT) -> None:
        super().__init__(limit)
        self._until = perf_counter() + seconds
        self._seconds = seconds

    def check(self) -> None:
        """Raise OffloadToThread if the time is over."""
        if perf_counter() > self._until:
            raise OffloadToThread

    def begin_critical(self) -> None:
        """Start a critical section. It lifts the time limit, since the work cannot be started again afterwards."""
        # `check` compares with `_until`, `admit` with `_seconds`.
        self._until = self._seconds = float("inf")

    def admit(self, size: int, seconds: float) -> None:
        """Raise OffloadToThread if the value takes too long, or ResourceExhaustedError if it exceeds the limit."""
        super().admit(size, seconds)
        if max(size / COPY_RATE, seconds) > self._seconds:
            raise OffloadToThread


class _ThisThread(threading.local):
    work: Work | None = None


_this_thread: Final = _ThisThread()


def current_work() -> Work | None:
    """Return the work of this thread."""
    return _this_thread.work


def doing(work: Work | None, function: Callable[..., R], *args: object) -> R:
    """Call `function(*args)` as a part of `work`."""
    before = _this_thread.work
    _this_thread.work = work
    try:
        return function(*args)
    finally:
        _this_thread.work = before


def checkpoint() -> None:
    """Raise if this thread's work must not continue here. Costs about 100 ns.

    Raises:
        Stopped: the work was asked to stop.
        OffloadToThread: bounded work on an event loop has used up its time.
    """
    work = _this_thread.work
    if work is not None:
        work.check()


def reserve(size: int, seconds: float = 0.0) -> None:
    """Raise unless a value of `size` bytes may be created.

    Args:
        size: Size of the value.
        seconds: Time to compute the value, if that takes longer than to write it.

    Raises:
        ResourceExhaustedError: the value exceeds the limit.
        OffloadToThread: the value takes too long for bounded work on an event loop.
    """
    (_this_thread.work or Work()).admit(size, seconds)


class critical_section:
    """A critical section, `with critical_section():`, for code with effects: see `Work.begin_critical`.

    Checkpoints in it do nothing.
    """

    __slots__ = ("_work",)

    def __enter__(self) -> None:
        self._work = _this_thread.work
        if self._work is not None:
            # If this raises, Python does not call `__exit__`, and the thread keeps its work.
            self._work.begin_critical()
            _this_thread.work = None

    def __exit__(self, *exc_info: object) -> None:
        if self._work is not None:
            self._work.end_critical()
            _this_thread.work = self._work


def blocks(total: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover `total` elements, with a checkpoint before each but the first."""
    for start in range(0, total, size):
        if start:
            checkpoint()
        yield slice(start, min(start + size, total))


def batches(items: Sequence[T] | Iterable[T], size: int = 1024) -> Iterator[T]:
    """Yield the items, with a checkpoint before every `size`-th of them."""
    for number, item in enumerate(items):
        if not (number + 1) % size:
            checkpoint()
        yield item


@contextmanager
def value_limit(limit: int | None) -> Iterator[None]:
    """Limit the size of values to `limit` bytes inside a block; None for no change."""
    if limit is None:
        yield
        return
    with _LIMIT.inside(limit):
        yield


@cache
def largest_value() -> int:
    """Return the default limit of a value in bytes: half of the memory that this process may use.

    A copy of such a value needs the other half. If the memory is unknown, there is no limit.
    """
    found = [_physical_memory(), *_group_limits(), *_own_limits()]
    return min((size for size in found if size is not None), default=2**63) // 2


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None  # Windows


def _group_limits() -> Iterator[int]:
    """Yield the limits of a container's control group."""
    # The file of control groups in version 2, then that of version 1.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        # Version 2 of control groups writes "max" for no limit.
        if text.isdecimal():
            yield int(text)


def _own_limits() -> Iterator[int]:
    """Yield the limits of this process, on its address space and its data segment."""
    try:
        import resource
    except ImportError:
        return  # Windows
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        size, _ = resource.getrlimit(limit)
        if size != resource.RLIM_INFINITY:
            yield size
