"""The status of a server as plain data, for its status page, and as JSON text for the wire."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import DataLossError
from aioflow.memory.values import Array


@dataclass(frozen=True, slots=True)
class RunningStep:
    """A running step.

    Attributes:
        id: Identifier of the step for all its workers; 0 for a step that only this worker runs.
        seconds: Time since its part here began.
        waiting: The async nodes that are being awaited, each with what it waits for.
    """

    id: int
    seconds: float
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of a server.

    Attributes:
        connections: Number of connections from clients and other tasks.
        parts: Number of registered parts of plans.
        running: Number of running steps.
        begun, failed, refused: Numbers of steps since the server started. Stopped steps count as failed; steps that
            arrive while the server drains are refused.
        early_bytes: Bytes of values that arrived before they were requested.
        memory: Peak memory of the process in bytes; 0 where the system does not report it.
        steps: The first hundred running steps.
        queues: The first hundred objects that steps may wait for (queues, barriers …), each with a description of its
            state.
    """

    connections: int = 0
    parts: int = 0
    running: int = 0
    begun: int = 0
    failed: int = 0
    refused: int = 0
    early_bytes: int = 0
    memory: int = 0
    steps: tuple[RunningStep, ...] = ()
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a server.

    Attributes:
        task: Full name of the task.
        target: Target of a session on the server.
        state: "begins", "serves", "drains" (refuses new steps) or "ended".
        seconds: Time since the server was created.
        devices: Full names of the devices.
        activity: The activity of the server.
        lag: Delay of the event loop in seconds at the time of the request; None if not measured.
    """

    task: str
    target: str
    state: str
    seconds: float
    devices: tuple[str, ...]
    activity: Activity
    lag: float | None = None

    @property
    def is_ready(self) -> bool:
        """True if the server accepts steps."""
        return self.state == "serves"


# ── JSON text for the wire: unknown fields, which later releases may add, are ignored ─────────────────────────────────


_NUMBER: Final = (int, float)
_STATUS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "task": str,
    "target": str,
    "state": str,
    "seconds": _NUMBER,
    "devices": list,
    "activity": dict,
}
_STEP: Final[Mapping[str, type | tuple[type, ...]]] = {"id": int, "seconds": _NUMBER, "waiting": list}


def pack_status(status: ServerStatus) -> list[Array]:
    """Return the status as one tensor: a string of one element."""
    text = np.empty(1, object)
    text[0] = json.dumps(dataclasses.asdict(status)).encode()
    return [text]


def unpack_status(tensors: Sequence[Array]) -> ServerStatus:
    """Return the status packed by `pack_status`. Raises DataLossError."""
    if len(tensors) != 1 or tensors[0].dtype != object or tensors[0].size != 1:
        raise DataLossError("a malformed status", expected="one string")
    try:
        document = json.loads(tensors[0].reshape(-1)[0])
    except (ValueError, RecursionError) as error:
        raise DataLossError("a malformed status", expected="JSON", actual=str(error)) from error
    known = _fields(document, _STATUS)
    activity = known.pop("activity")
    # Earlier releases may not send all counters.
    counts = {
        field.name: activity.get(field.name, 0)
        for field in dataclasses.fields(Activity)
        if field.name not in ("steps", "queues")
    }
    steps = [RunningStep(**_with_texts(_fields(step, _STEP), "waiting")) for step in activity.get("steps", [])]
    queues = tuple(map(str, activity.get("queues", [])))
    for name, value in counts.items():
        if not isinstance(value, _NUMBER):
            raise DataLossError(f"a malformed status: {name!r}", expected="a number", actual=brief(value))
    lag = document.get("lag")
    return ServerStatus(
        **_with_texts(known, "devices"),
        activity=Activity(**counts, steps=tuple(steps), queues=queues),
        lag=lag if isinstance(lag, _NUMBER) else None,
    )


def _fields(document: object, kinds: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise DataLossError("a malformed status", expected="a map", actual=brief(document))
    for name, kind in kinds.items():
        if not isinstance(document.get(name), kind):
            raise DataLossError(f"a malformed status: {name!r}", expected=kind, actual=brief(document.get(name)))
    return {name: document[name] for name in kinds}


def _with_texts(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {**fields, name: tuple(map(str, fields[name]))}


# ── measurements of this process: its peak memory and the lag of its event loop ───────────────────────────────────────


_SAMPLES: Final = 5
_SLEEP: Final = 0.002  # seconds


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes, or 0 where the system does not report it."""
    try:
        import resource  # does not exist on Windows
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes, other systems KiB.
    return most if sys.platform == "darwin" else most << 10


async def loop_lag() -> float:
    """Return the largest delay of the event loop, in seconds, over several short sleeps."""
    longest = 0.0
    for _ in range(_SAMPLES):
        due = monotonic() + _SLEEP  # the loop's own clock may have a resolution of milliseconds
        await asyncio.sleep(_SLEEP)
        longest = max(longest, monotonic() - due)
    return longest
