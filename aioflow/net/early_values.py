"""The memory of values that arrived before they were requested, by source and in total.

Messages overtake each other, so such a value is kept even if its step has not started yet. It may never be requested,
so the memory is bounded: if a limit is exceeded, the largest step of the largest source is given up.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final

from aioflow.errors import ResourceExhaustedError
from aioflow.memory.values import Value
from aioflow.net.limits import Limits
from aioflow.net.tensor_format import bytes_of

_EACH: Final = 1024  # bytes of a value besides its elements: its key, table entries, the array object


class _Brought:
    """The values of one source: bytes by step."""

    __slots__ = ("steps", "total")

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.total = 0


class EarlyValues:
    """The counts of early values. A source is any hashable key; None stands for this process.

    Attributes:
        total: Bytes of all early values.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sources: dict[Hashable, _Brought] = {}
        self.total = 0

    def add(self, source: Hashable, step: int, edge: str, tag: str, value: Value) -> None:
        """Count a value that is kept for a step."""
        size = size_of(edge, tag, value)
        brought = self._sources.setdefault(source, _Brought())
        brought.steps[step] = brought.steps.get(step, 0) + size
        brought.total += size
        self.total += size

    def remove(self, step: int) -> None:
        """Remove a step that has ended or whose values are dropped."""
        # Several sources may have sent values for one step.
        for source, brought in list(self._sources.items()):
            size = brought.steps.pop(step, 0)
            brought.total -= size
            self.total -= size
            if not brought.steps:
                del self._sources[source]

    def correct(self, step: int, size: int) -> None:
        """Lower each source's count of a step to at most `size` bytes: its other values have been requested."""
        for brought in self._sources.values():
            gone = max(0, brought.steps.get(step, 0) - size)
            if gone:
                brought.steps[step] -= gone
                brought.total -= gone
                self.total -= gone

    def bytes_of(self, step: int) -> int:
        """Return the bytes counted for a step."""
        return sum(brought.steps.get(step, 0) for brought in self._sources.values())

    def steps_of(self, source: Hashable) -> list[int]:
        """Return the steps that a source has sent values for."""
        brought = self._sources.get(source)
        return [] if brought is None else list(brought.steps)

    def excess(self, source: Hashable) -> tuple[int, ResourceExhaustedError] | None:
        """Return a step to give up and the reason, after `source` has sent a value; None if all limits hold."""
        brought, limits = self._sources.get(source), self._limits
        # Values of this process itself count only towards the total.
        if brought is not None and source is not None and brought.total > limits.early_bytes:
            return _largest(brought), _error("bytes of one connection", limits.early_bytes, brought.total)
        if self.total > limits.all_early_bytes:
            most = max(self._sources.values(), key=lambda brought: brought.total)
            return _largest(most), _error("bytes of all connections", limits.all_early_bytes, self.total)
        return None

    def excess_of_steps(self, steps: Collection[int], most: int) -> tuple[int, ResourceExhaustedError]:
        """Return a step to give up and the reason, if there are too many.

        It is the first step of the source that has sent values for the most steps.
        """
        found = max(([step for step in brought.steps if step in steps] for brought in self._sources.values()), key=len)
        return found[0], _error("steps", most, len(steps))


def _largest(brought: _Brought) -> int:
    # The largest step frees the most room for one failure.
    return max(brought.steps, key=brought.steps.__getitem__)


def _error(whose: str, limit: int, actual: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"values for the step arrived before they were requested, and were dropped: too many {whose}",
        expected=f"at most {limit}",
        actual=actual,
    )


def size_of(edge: str, tag: str, value: Value) -> int:
    """Return the bytes that a kept value takes; strings count with their contents."""
    return _EACH + len(edge) + len(tag) + bytes_of(value)
