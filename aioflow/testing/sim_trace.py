"""What happened in a simulation, in order: its hash tells whether two runs were the same, its story what went on."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["Trace"]

_ROUTINE: Final = frozenset({"bytes", "end of file"})  # what every message brings
_LINES: Final = 400


class Trace:
    """Events by the virtual clock. Labels never depend on where an object is in memory.

    Args:
        clock: Gives the virtual seconds.

    Attributes:
        count: How many events there were.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hash = hashlib.sha256()
        self._lines: deque[str] = deque(maxlen=_LINES)
        self.count = 0

    def add(self, host: str, kind: str, label: object = "") -> None:
        """Something has happened."""
        self.count += 1
        line = f"{self._clock():.9f} {self.count} {host} {kind} {label}"
        self._hash.update(line.encode())
        if kind not in _ROUTINE:
            self._lines.append(line)

    @property
    def digest(self) -> str:
        """The SHA-256 of all that has happened."""
        return self._hash.hexdigest()

    def story(self) -> str:
        """The events, the latest 400 of them, without those that only say that bytes have arrived."""
        return "\n".join(self._lines)
