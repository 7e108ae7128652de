"""A queue by priority: here its first component is the priority, which the published definition leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aioflow.graph.dtypes import int64

__all__ = ["with_priority", "without_priority"]

_OP: Final = "PriorityQueue"  # and its second version


def with_priority(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node as they are here."""
    made = dict(attrs)
    if op.startswith(_OP):
        if isinstance(attrs.get("component_types", ()), tuple):
            made["component_types"] = (int64, *attrs.get("component_types", ()))
        if isinstance(attrs.get("shapes"), tuple) and attrs["shapes"]:
            made["shapes"] = ((), *attrs["shapes"])
    return made


def without_priority(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node as they are published."""
    made = dict(attrs)
    if op.startswith(_OP):
        for key in ("component_types", "shapes"):
            if isinstance(attrs.get(key), tuple):
                made[key] = attrs[key][1:]
    return made
