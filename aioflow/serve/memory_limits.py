"""Limits on the memory of a service: a budget for all its requests, and a limit by the operating system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aioflow.errors import ResourceExhaustedError

# ── the budget of requests that are being read or answered ────────────────────────────────────────────────────────────


class RequestAdmission:
    """A counter of the bytes of all requests that are being read or answered, with a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.bytes = 0

    @contextmanager
    def holding(self) -> Iterator[HeldBytes]:
        """Open the account of one request. Leaving the block releases its bytes."""
        held = HeldBytes(self)
        try:
            yield held
        finally:
            # Everything that the request has taken is released at once, whatever it raised in between.
            self.bytes -= held.bytes

    def check(self, more: int) -> None:
        """Raise ResourceExhaustedError if `more` bytes exceed the limit."""
        # While nothing is held, any size passes: `Limits.body_bytes` bounds a single request.
        if self.bytes and self.bytes + more > self._limit:
            error = ResourceExhaustedError(
                "too much is being read and answered", expected=f"at most {self._limit} bytes", actual=self.bytes
            )
            error.retry_after = 1.0
            raise error


class HeldBytes:
    """The bytes of one request."""

    __slots__ = ("_admission", "bytes")

    def __init__(self, admission: RequestAdmission) -> None:
        self._admission = admission
        self.bytes = 0

    def take(self, count: int) -> None:
        """Reserve bytes of the request's body. Raises ResourceExhaustedError."""
        self._admission.check(count)
        self.add(count)

    def add(self, count: int) -> None:
        """Count bytes of the answer, without a check."""
        self._admission.bytes += count
        self.bytes += count


# ── a limit by the operating system, as a backstop for everything outside the budgets ─────────────────────────────────
#
# An allocation over the limit fails with a MemoryError. Without the limit, the kernel's out-of-memory killer would end
# this process. Read-only file mappings, such as weights, do not count.


_STACK: Final = 8 << 20  # bytes, if the system has no limit on the stack
_UNIT: Final = 1024


def keep_within(budget: int) -> None:
    """Limit this process to `budget` bytes beyond its present use, plus the stacks of its threads.

    The system counts stacks at full size although little of them is used. Does nothing if the system has no such limit.
    """
    used = _data_bytes()
    if used is None:
        return
    # Missing on Windows, which has no /proc/self/status either, so `used` is None there.
    import resource

    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    threads = 2 * (os.cpu_count() or 1) + 16
    margin = threads * (_STACK if stack == resource.RLIM_INFINITY else stack)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + budget + margin
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _data_bytes() -> int | None:
    """Return the size of this process's writable memory as counted by the system, or None if unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(found[0]) * _UNIT if found else None
