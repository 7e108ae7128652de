"""Device names, whole and partial: `/job:J/replica:R/task:T/device:TYPE:I`, the short `/gpu:0`, and their merging."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from aioflow.errors import InvalidArgumentError

__all__ = ["DeviceSpec"]

_PART: Final = re.compile(
    r"/(?:job:(?P<job>[A-Za-z][\w.\-]*)|replica:(?P<replica>\d+|\*)|task:(?P<task>\d+|\*)"
    r"|device:(?P<type>[A-Za-z]\w*)(?::(?P<index>\d+|\*))?|(?P<short>cpu|gpu|CPU|GPU)(?::(?P<short_index>\d+|\*))?)"
)
_TYPES: Final = frozenset({"type", "short"})
_ENDS: Final = frozenset({"type", "index", "short", "short_index"})  # the last group of a part that names a type


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device name in parts, where None leaves a part open."""

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    @classmethod
    def from_string(cls, name: str) -> DeviceSpec:
        """Parse a whole or partial device name; "" is the spec that leaves everything open.

        Raises:
            InvalidArgumentError: the name does not have that form.
        """
        text = name if not name or name.startswith("/") else "/" + name
        position = 0
        parts: dict[str, str] = {}
        while position < len(text):
            match = _PART.match(text, position)
            if match is None or (parts.keys() & _TYPES and match.lastgroup in _ENDS):
                raise InvalidArgumentError(
                    f"malformed device name {name!r}", expected="/job:J/replica:R/task:T/device:TYPE:I", actual=name
                )
            parts.update({k: v for k, v in match.groupdict().items() if v is not None})
            position = match.end()
        kind = parts.get("type") or parts.get("short")
        index = parts.get("index") or parts.get("short_index")
        return cls(
            parts.get("job"),
            _number(parts.get("replica")),
            _number(parts.get("task")),
            kind.upper() if kind else None,
            _number(index),
        )

    def to_string(self) -> str:
        """The name, with the open parts left out (an open index of a known type is `*`)."""
        pieces = [
            f"/job:{self.job}" if self.job is not None else "",
            f"/replica:{self.replica}" if self.replica is not None else "",
            f"/task:{self.task}" if self.task is not None else "",
        ]
        if self.device_type is not None:
            pieces.append(f"/device:{self.device_type}:{'*' if self.device_index is None else self.device_index}")
        return "".join(pieces)

    def override(self, inner: DeviceSpec) -> DeviceSpec:
        """This spec with every part that `inner` names taken from `inner`: an inner scope wins."""
        return DeviceSpec(
            self.job if inner.job is None else inner.job,
            self.replica if inner.replica is None else inner.replica,
            self.task if inner.task is None else inner.task,
            self.device_type if inner.device_type is None else inner.device_type,
            self.device_index if inner.device_index is None else inner.device_index,
        )

    def matches(self, full: DeviceSpec) -> bool:
        """Whether the whole name `full` satisfies this partial one."""
        pairs = (
            (self.job, full.job),
            (self.replica, full.replica),
            (self.task, full.task),
            (self.device_type, full.device_type),
            (self.device_index, full.device_index),
        )
        return all(wanted is None or wanted == have for wanted, have in pairs)

    def __str__(self) -> str:
        return self.to_string()


def _number(text: str | None) -> int | None:
    return None if text is None or text == "*" else int(text)
