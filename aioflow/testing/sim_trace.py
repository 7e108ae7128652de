"""The events of a simulation, in order: a hash that tells whether two runs were the same, and a readable story."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final

_ROUTINE: Final = frozenset({"bytes", "end of file"})  # kinds that each message causes
_LINES: Final = 400


class Trace:
    """Events by the virtual clock. Labels never contain memory addresses.

    Args:
        clock: Function that returns the virtual seconds.

    Attributes:
        count: Number of events.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hash = hashlib.sha256()
        # The hash covers all events; the text only the last ones.
        self._lines: deque[str] = deque(maxlen=_LINES)
        self.count = 0

    def add(self, host: str, kind: str, label: object = "") -> None:
        """Record an event."""
        self.count += 1
        # Nine digits: nanoseconds of virtual time.
        line = f"{self._clock():.9f} {self.count} {host} {kind} {label}"
        self._hash.update(line.encode())
        if kind not in _ROUTINE:
            self._lines.append(line)

    @property
    def digest(self) -> str:
        """The SHA-256 of all events."""
        return self._hash.hexdigest()

    def story(self) -> str:
        """Return the latest 400 events as text, without arrivals of bytes and of ends of files."""
        return "\n".join(self._lines)
