"""How much memory values take that came before their steps: by the connections that brought them, and in all.

Such a value is kept for a while, since messages overtake each other. But nobody has asked for it yet, and perhaps
nobody will: so what is kept is bounded, and where it is too much, a step is given up of whoever has most.
"""

from __future__ import annotations

from typing import Any, Final

from aioflow.errors import ResourceExhaustedError
from aioflow.net.limits import Limits

__all__ = ["EarlyValues"]

_STEPS: Final = 1024
_EACH: Final = 1024  # bytes that a value takes beside its elements: its key, the places in tables, the array object
_STRING: Final = 48  # bytes that a byte string takes beside its content


class _Brought:
    """What one source has brought: bytes by step, the oldest first."""

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
        size = _EACH + len(edge) + len(tag) + _size(value)
        brought = self._sources.setdefault(source, _Brought())
        brought.steps[step] = brought.steps.get(step, 0) + size
        brought.total += size
        self.total += size

    def remove(self, step: int) -> None:
        """The values of a step are wanted, or are dropped."""
        for source, brought in list(self._sources.items()):
            size = brought.steps.pop(step, 0)
            brought.total -= size
            self.total -= size
            if not brought.steps:
                del self._sources[source]

    def steps_of(self, source: Any) -> list[int]:
        """The steps that a source has brought values for."""
        brought = self._sources.get(source)
        return [] if brought is None else list(brought.steps)

    def excess(self, source: Any) -> tuple[int, ResourceExhaustedError] | None:
        """A step to give up, and why, after a source has brought something; None where all is within the limits."""
        brought, limits = self._sources.get(source), self._limits
        if brought is not None and source is not None and brought.total > limits.early_bytes:
            return _oldest(brought), _error("of one connection", limits.early_bytes, brought.total)
        if self.total > limits.all_early_bytes:
            most = max(self._sources.values(), key=lambda brought: brought.total)
            return _oldest(most), _error("of all connections", limits.all_early_bytes, self.total)
        if brought is not None and sum(len(brought.steps) for brought in self._sources.values()) > _STEPS:
            most = max(self._sources.values(), key=lambda brought: len(brought.steps))
            return _oldest(most), _error("of so many steps", _STEPS, len(most.steps))
        return None


def _oldest(brought: _Brought) -> int:
    return next(iter(brought.steps))


def _error(whose: str, limit: int, actual: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"values for the step came before it, and were dropped: there were too many {whose}",
        expected=f"at most {limit}",
        actual=actual,
    )


def _size(value: Any) -> int:
    """Bytes of a value, of strings with their contents."""
    size = int(getattr(value, "nbytes", 0))
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        size += sum(_STRING + len(item) for item in value.flat if isinstance(item, bytes))
    return size
