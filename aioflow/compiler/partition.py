"""Stage 5: cut the placed graph into one subgraph a device, grouped by the task that owns it.

There is one device so far, so the cut has no edges to carry over; a plan for several is refused rather than run wrong.
"""

from __future__ import annotations

from aioflow.compiler.ir import ClientGraph, Part, Plan
from aioflow.errors import UnimplementedError
from aioflow.graph.device_spec import DeviceSpec

__all__ = ["partition"]


def partition(graph: ClientGraph) -> Plan:
    """The plan for a placed graph.

    Raises:
        UnimplementedError: the nodes are on more than one device.
    """
    devices = list(dict.fromkeys(node.device for node in graph.nodes.values())) or [""]
    if len(devices) > 1:
        raise UnimplementedError("a step on several devices", expected="one device", actual=devices)
    spec = DeviceSpec.from_string(devices[0])
    task = DeviceSpec(spec.job, spec.replica, spec.task).to_string()
    return Plan({task: Part(task, {devices[0]: graph})}, graph.feeds, graph.fetches)
