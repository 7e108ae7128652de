"""Stage 4: give every node a device. With one device of each kind the first feasible one is the answer.

A device is feasible when its name fits the node's (partial) request and a kernel exists for its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.place.cluster import ClusterView
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import CONTROL_FLOW
from aioflow.kernels.registry import KERNELS

__all__ = ["place"]


def place(graph: ClientGraph, cluster: ClusterView) -> ClientGraph:
    """The same graph with a full device name on every node.

    Raises:
        InvalidArgumentError: no device satisfies a node's request.
        UnimplementedError: no device has a kernel for a node.
    """
    specs = [DeviceSpec.from_string(d) for d in cluster.devices]
    placed: dict[str, Node] = {}
    for node in graph.nodes.values():
        if node.op in ("_Arg", "_Retval"):
            device = cluster.devices[0]
        else:
            device = _device_for(node, specs, cluster)
        placed[node.name] = replace(node, device=device)
    return replace(graph, nodes=placed)


def _device_for(node: Node, specs: Sequence[DeviceSpec], cluster: ClusterView) -> str:
    wanted = DeviceSpec.from_string(node.device)
    named = [s for s in specs if wanted.matches(s)]
    if not named and not cluster.allow_soft_placement:
        raise InvalidArgumentError(
            f"cannot assign a device for operation {node.name}: {node.device} does not exist here",
            expected=f"one of {list(cluster.devices)}, or SessionConfig(allow_soft_placement=True)",
            actual=node.device,
        ).at(node.name, node.op, node.source)
    for spec in [*named, *(specs if cluster.allow_soft_placement else ())]:
        if node.op in CONTROL_FLOW or KERNELS.find(node.op, spec.device_type or "", node.attrs) is not None:
            return spec.to_string()
    try:
        KERNELS.get(node.op, (named or list(specs))[0].device_type or "", node.attrs)
    except UnimplementedError as error:
        raise error.at(node.name, node.op, node.source) from None
    return specs[0].to_string()
