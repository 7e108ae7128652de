"""A limit on the memory of all requests that are being read or answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aioflow.errors import ResourceExhaustedError


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
