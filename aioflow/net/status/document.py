"""The status of a server as JSON text for the wire. Unknown fields, which later releases may add, are ignored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import DataLossError
from aioflow.memory.values import Array
from aioflow.net.status.server import Activity, RunningStep, ServerStatus

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
