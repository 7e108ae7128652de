"""The sessions of this process that have ended, for workers that may not have heard of it.

What a session says when it is closed may be lost, or be on its way for longer than the next session takes to connect. A
step of the first that is still running would then be applied after the second has restored a checkpoint, and counted
twice. So whoever connects says which sessions of its process have ended since the last one did.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

__all__ = ["PastSessions", "past_sessions"]

_REMEMBERED: Final = 64  # of an address


class PastSessions:
    """Their numbers, by the addresses of the workers that they had connections to."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[int, None]] = {}

    def add(self, address: str, number: int) -> None:
        """A session has ended, and will not connect again."""
        numbers = self._numbers.setdefault(address, {})
        numbers[number] = None
        if len(numbers) > _REMEMBERED:
            del numbers[next(iter(numbers))]

    def at(self, address: str) -> list[int]:
        """Those of which a worker has to be told."""
        return list(self._numbers.get(address, ()))

    def told(self, address: str, numbers: list[int]) -> None:
        """It knows of these."""
        left = self._numbers.get(address, {})
        for number in numbers:
            left.pop(number, None)
        if not left:
            self._numbers.pop(address, None)


_PROCESS: Final = PastSessions()
_SIMULATED: Final[WeakKeyDictionary[object, PastSessions]] = WeakKeyDictionary()


def past_sessions() -> PastSessions:
    """Those of this process, or of the simulated one that runs."""
    process: object = None
    with suppress(RuntimeError):  # no loop is running here
        process = getattr(asyncio.get_running_loop(), "process", None)
    return _PROCESS if process is None else _SIMULATED.setdefault(process, PastSessions())
