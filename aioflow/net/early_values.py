"""How much memory values take that nobody has asked for yet: by the connections that brought them, and in all.

Such a value is kept, since messages overtake each other, be its step begun or not. But perhaps nobody will ask for it:
so what is kept is bounded, and where it is too much, the step that has most is given up, of whoever has most.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from aioflow.errors import ResourceExhaustedError
from aioflow.net.limits import Limits
from aioflow.net.tensor_format import bytes_of

__all__ = ["EarlyValues", "size_of"]

_EACH: Final = 1024  # bytes that a value takes beside its elements: its key, the places in tables, the array object


class _Brought:
    """What one source has brought: bytes by step."""

    __slots__ = ("steps", "total")

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.total = 0


class EarlyValues:
    """Counts them. A source is whatever can be a key: None stands for this process itself.

    Attributes:
        total: Bytes of all.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sources: dict[Any, _Brought] = {}
        self.total = 0

    def add(self, source: Any, step: int, edge: str, tag: str, value: Any) -> None:
        """A value is kept for a step."""
        size = size_of(edge, tag, value)
        brought = self._sources.setdefault(source, _Brought())
        brought.steps[step] = brought.steps.get(step, 0) + size
        brought.total += size
        self.total += size

    def remove(self, step: int) -> None:
        """The step has ended, or its values are dropped."""
        for source, brought in list(self._sources.items()):
            size = brought.steps.pop(step, 0)
            brought.total -= size
            self.total -= size
            if not brought.steps:
                del self._sources[source]

    def correct(self, step: int, size: int) -> None:
        """No more than so many bytes are kept for a step: the others have been asked for."""
        for brought in self._sources.values():
            gone = max(0, brought.steps.get(step, 0) - size)
            if gone:
                brought.steps[step] -= gone
                brought.total -= gone
                self.total -= gone

    def bytes_of(self, step: int) -> int:
        """What is counted for a step."""
        return sum(brought.steps.get(step, 0) for brought in self._sources.values())

    def steps_of(self, source: Any) -> list[int]:
        """The steps that a source has brought values for."""
        brought = self._sources.get(source)
        return [] if brought is None else list(brought.steps)

    def excess(self, source: Any) -> tuple[int, ResourceExhaustedError] | None:
        """A step to give up, and why, after a source has brought something; None where all is within the limits."""
        brought, limits = self._sources.get(source), self._limits
        if brought is not None and source is not None and brought.total > limits.early_bytes:
            return _largest(brought), _error("bytes of one connection", limits.early_bytes, brought.total)
        if self.total > limits.all_early_bytes:
            most = max(self._sources.values(), key=lambda brought: brought.total)
            return _largest(most), _error("bytes of all connections", limits.all_early_bytes, self.total)
        return None

    def excess_of_steps(self, steps: Collection[int], most: int) -> tuple[int, ResourceExhaustedError]:
        """One of too many steps to give up, and why: the first one of the source that has brought most of them."""
        found = max(([step for step in brought.steps if step in steps] for brought in self._sources.values()), key=len)
        return found[0], _error("steps", most, len(steps))


def _largest(brought: _Brought) -> int:
    return max(brought.steps, key=brought.steps.__getitem__)


def _error(whose: str, limit: int, actual: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"values for the step came before they were asked for, and were dropped: too many {whose}",
        expected=f"at most {limit}",
        actual=actual,
    )


def size_of(edge: str, tag: str, value: Any) -> int:
    """Bytes that a kept value takes, of strings with their contents."""
    return _EACH + len(edge) + len(tag) + bytes_of(value)
