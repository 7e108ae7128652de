"""Results that go to another task are written where a task of the same host can map them, and need no copy then.

Nothing is known of the other task here, and nothing depends on it: memory of that kind is memory. Where no process that
could map it is connected, results go where they always do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.compiler.ir import Edge
from aioflow.graph.boundary import SEND
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.graph.shapes import num_elements
from aioflow.kernels.registry import HOST
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.units import Unit
from aioflow.work.segments import SHARED

__all__ = ["room_to_send", "sent_away"]


def sent_away(unit: Unit) -> frozenset[Edge]:
    """The values in host memory that a unit sends to other tasks."""
    sends = [bound.node for bound in unit.nodes if bound.node.op == SEND]
    return frozenset(edge for node in sends if _leaves(node.attrs) for edge in node.inputs)


def _leaves(attrs: Any) -> bool:
    here, there = attrs["send_device"], attrs["recv_device"]
    return DeviceSpec.from_string(here).device_type == HOST and task_of(here) != task_of(there)


def room_to_send(bound: BoundNode, leaving: frozenset[Edge]) -> Callable[..., Any] | None:
    """What makes the array for a node's result, or returns its argument where there is none; None where the result
    does not leave, or is small or of a size that is not known.
    """
    if not bound.kernel.takes_out or len(bound.node.outputs) != 1 or Edge(bound.node.name, 0) not in leaving:
        return None
    dims, dtype = bound.node.outputs[0].dims, bound.node.outputs[0].dtype
    count = num_elements(dims)
    if dims is None or count is None or count * dtype.size < SHARED.smallest or dtype.np_dtype.hasobject:
        return None
    shape, np_dtype = tuple(int(size) for size in dims if size is not None), dtype.np_dtype

    def room(other: Any = None) -> Any:
        made = SHARED.empty(shape, np_dtype) if SHARED.borrowers else None
        return other if made is None else made

    return room
