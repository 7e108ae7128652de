"""Allocation of results that are sent to another cluster task, in memory that a task on the same host can map.

Mapping such memory saves a copy. This module knows nothing about the other task and does not depend on it. If no
process that could map the memory is connected, results are written to ordinary memory.
"""

from __future__ import annotations

from aioflow.compiler.ir import Edge
from aioflow.graph.boundary import SEND
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.graph.shapes import num_elements
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.registry import HOST, KernelBody
from aioflow.memory.segments import SHARED
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.tasks import Task


def sent_away(task: Task) -> frozenset[Edge]:
    """Return the values in host memory that `task` sends to other cluster tasks."""
    sends = [bound.node for bound in task.nodes if bound.node.op == SEND]
    return frozenset(edge for node in sends if _leaves(node.attrs) for edge in node.inputs)


def _leaves(attrs: Attrs) -> bool:
    here, there = attrs["send_device"], attrs["recv_device"]
    return DeviceSpec.from_string(here).device_type == HOST and task_of(here) != task_of(there)


def room_to_send(bound: BoundNode, leaving: frozenset[Edge]) -> KernelBody | None:
    """Return a function that allocates the result of a node in shared memory, or returns its argument instead.

    Returns:
        The function, or None if the result is not sent, is small, or its size is unknown.
    """
    if not bound.kernel.takes_out or len(bound.node.outputs) != 1 or Edge(bound.node.name, 0) not in leaving:
        return None
    dims, dtype = bound.node.outputs[0].dims, bound.node.outputs[0].dtype
    count = num_elements(dims)
    if dims is None or count is None or count * dtype.size < SHARED.smallest or dtype.np_dtype.hasobject:
        return None
    shape, np_dtype = tuple(int(size) for size in dims if size is not None), dtype.np_dtype

    def room(other: Value = None) -> Value:
        # Checked in every step: a process that can map the memory may connect or leave at any time.
        made = SHARED.empty(shape, np_dtype) if SHARED.importers else None
        return other if made is None else made

    return room
