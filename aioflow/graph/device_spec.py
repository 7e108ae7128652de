"""Full and partial device names: `/job:J/replica:R/task:T/device:TYPE:I`, the short `/gpu:0`, and merging.

CPU, GPU and TPU are accepted in any case and stored in capitals; other types are stored as they are written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from aioflow.errors import InvalidArgumentError

_PART: Final = re.compile(
    r"/(?:job:(?P<job>[A-Za-z][\w.\-]*|\*)|replica:(?P<replica>\d+|\*)|task:(?P<task>\d+|\*)"
    r"|device:(?P<type>[A-Za-z]\w*|\*)(?::(?P<index>\d+|\*))?"
    r"|(?P<short>(?i:cpu|gpu|tpu))(?::(?P<short_index>\d+|\*))?)"
)
_SHOUTED: Final = frozenset({"CPU", "GPU", "TPU"})
_TYPES: Final = frozenset({"type", "short"})
_ENDS: Final = frozenset({"type", "index", "short", "short_index"})  # the last group of a part with a type


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A parsed device name, in which None leaves a part open.

    Attributes:
        job: The job's name.
        replica: The number of the replica.
        task: The number of the task.
        device_type: The type, such as "CPU".
        device_index: The index among the devices of that type in a task.
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.device_type is not None and self.device_type.upper() in _SHOUTED:
            object.__setattr__(self, "device_type", self.device_type.upper())

    @classmethod
    def from_string(cls, name: str) -> DeviceSpec:
        """Parse a full or partial device name. A `*` leaves a part open, and "" leaves all parts open.

        Raises:
            InvalidArgumentError: the name is malformed.
        """
        return _parsed(name)

    def replace(self, **parts: Any) -> DeviceSpec:
        """Return a copy with these parts replaced."""
        return replace(self, **parts)

    def to_string(self) -> str:
        """Return the name without open parts. If only one of device type and index is open, it becomes `*`."""
        pieces = [
            f"/job:{self.job}" if self.job is not None else "",
            f"/replica:{self.replica}" if self.replica is not None else "",
            f"/task:{self.task}" if self.task is not None else "",
        ]
        if self.device_type is not None or self.device_index is not None:
            index = "*" if self.device_index is None else self.device_index
            pieces.append(f"/device:{self.device_type or '*'}:{index}")
        return "".join(pieces)

    def override(self, inner: DeviceSpec) -> DeviceSpec:
        """Return this spec with every part that `inner` defines taken from `inner`: the inner scope has precedence."""
        return DeviceSpec(
            self.job if inner.job is None else inner.job,
            self.replica if inner.replica is None else inner.replica,
            self.task if inner.task is None else inner.task,
            self.device_type if inner.device_type is None else inner.device_type,
            self.device_index if inner.device_index is None else inner.device_index,
        )

    def make_merged_spec(self, dev: DeviceSpec) -> DeviceSpec:
        """Return the same as `override`, under TensorFlow's name."""
        return self.override(dev)

    def conflict(self, other: DeviceSpec) -> str | None:
        """Return the name of the first part in which the two differ, or None if one device can satisfy both.

        The parts are "job", "replica", "task", "device_type" and "device_index", in this order.
        """
        for part in _PARTS:
            mine, theirs = getattr(self, part), getattr(other, part)
            if mine is not None and theirs is not None and mine != theirs:
                return part
        return None

    def matches(self, full: DeviceSpec) -> bool:
        """Return whether the full name `full` satisfies this partial one."""
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


_PARTS: Final = ("job", "replica", "task", "device_type", "device_index")


@lru_cache(maxsize=4096)  # a graph has thousands of nodes and few distinct names
def _parsed(name: str) -> DeviceSpec:
    text = name if not name or name.startswith("/") else "/" + name
    position = 0
    parts: dict[str, str] = {}
    while position < len(text):
        match = _PART.match(text, position)
        # A second type would silently replace the first.
        if match is None or (parts.keys() & _TYPES and match.lastgroup in _ENDS):
            raise InvalidArgumentError(
                f"malformed device name {name!r}", expected="/job:J/replica:R/task:T/device:TYPE:I", actual=name
            )
        parts.update({k: v for k, v in match.groupdict().items() if v is not None})
        position = match.end()
    kind = parts.get("type") or parts.get("short")
    return DeviceSpec(
        _name(parts.get("job")),
        _number(parts.get("replica")),
        _number(parts.get("task")),
        _name(kind),
        _number(parts.get("index") or parts.get("short_index")),
    )


def _name(text: str | None) -> str | None:
    return None if text == "*" else text


def _number(text: str | None) -> int | None:
    return None if text is None or text == "*" else int(text)


def task_of(device: str) -> str:
    """Return the name of the task that owns the device with this full name.

    Raises:
        InvalidArgumentError: the name is malformed.
    """
    spec = DeviceSpec.from_string(device)
    return DeviceSpec(spec.job, spec.replica, spec.task).to_string()
