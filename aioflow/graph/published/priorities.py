"""Conversion of priority queues: in aioflow the first component is the priority; the published definition omits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aioflow.graph.dtypes import int64

# Also the prefix of PriorityQueueV2.
_OP: Final = "PriorityQueue"


def with_priority(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node in aioflow's form."""
    made = dict(attrs)
    if op.startswith(_OP):
        if isinstance(attrs.get("component_types", ()), tuple):
            made["component_types"] = (int64, *attrs.get("component_types", ()))
        if isinstance(attrs.get("shapes"), tuple) and attrs["shapes"]:
            made["shapes"] = ((), *attrs["shapes"])
    return made


def without_priority(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node in the published form."""
    made = dict(attrs)
    if op.startswith(_OP):
        for key in ("component_types", "shapes"):
            if isinstance(attrs.get(key), tuple):
                made[key] = attrs[key][1:]
    return made
