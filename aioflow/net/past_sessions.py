"""The closed sessions of this process, for workers that may not know yet that they are closed.

The message that closes a session may be lost, or may take longer than the next session takes to connect. A step of the
first session that still runs would then be applied after the second has restored a checkpoint, and be counted twice. So
each new connection lists the sessions of its process that have ended since the previous one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

_REMEMBERED: Final = 64  # session numbers per address


class PastSessions:
    """Numbers of closed sessions, by the addresses of the workers they were connected to."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[int, None]] = {}

    def add(self, address: str, number: int) -> None:
        """Record that a session has ended and will not connect again."""
        numbers = self._numbers.setdefault(address, {})
        numbers[number] = None
        if len(numbers) > _REMEMBERED:
            del numbers[next(iter(numbers))]

    def at(self, address: str) -> list[int]:
        """Return the closed sessions that the worker at an address has not been told of."""
        return list(self._numbers.get(address, ()))

    def told(self, address: str, numbers: list[int]) -> None:
        """Remove numbers that the worker at the address has acknowledged."""
        left = self._numbers.get(address, {})
        for number in numbers:
            left.pop(number, None)
        if not left:
            self._numbers.pop(address, None)


_PROCESS: Final = PastSessions()
_SIMULATED: Final[WeakKeyDictionary[object, PastSessions]] = WeakKeyDictionary()


def past_sessions() -> PastSessions:
    """Return the closed sessions of this process, or of the simulated process that is running."""
    process: object = None
    with suppress(RuntimeError):  # no event loop is running
        process = getattr(asyncio.get_running_loop(), "process", None)
    return _PROCESS if process is None else _SIMULATED.setdefault(process, PastSessions())
