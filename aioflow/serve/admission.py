"""How much memory the requests take together that are being read or answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aioflow.errors import ResourceExhaustedError

__all__ = ["Admission", "Held"]


class Admission:
    """How many bytes the requests have that are being read or answered."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.bytes = 0

    @contextmanager
    def holding(self) -> Iterator[Held]:
        """A block in which a request is read and answered."""
        held = Held(self)
        try:
            yield held
        finally:
            self.bytes -= held.bytes

    def check(self, more: int) -> None:
        """Raise ResourceExhaustedError where so much more is too much."""
        if self.bytes and self.bytes + more > self._limit:
            error = ResourceExhaustedError(
                "too much is being read and answered", expected=f"at most {self._limit} bytes", actual=self.bytes
            )
            error.retry_after = 1.0
            raise error


class Held:
    """What one request has."""

    __slots__ = ("_admission", "bytes")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.bytes = 0

    def take(self, count: int) -> None:
        """So much has come. Raises ResourceExhaustedError."""
        self._admission.check(count)
        self.add(count)

    def add(self, count: int) -> None:
        """So much is to go out."""
        self._admission.bytes += count
        self.bytes += count
