"""Insertion of copies between host and device into the subgraph of a device with its own memory.

Feeds, received values, fetches and sent values are in host memory. A value is copied to the device once, however many
kernels read it there. Arguments that a kernel reads in host memory are not copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.graph.boundary import ARG, RECV, RETVAL, SEND
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.graph.opdef import OPS
from aioflow.graph.signature.arguments import per_argument
from aioflow.kernels.registry import KERNELS
from aioflow.ops.transfer import LEND, SHARE, TO_DEVICE, TO_HOST

_COMING: Final = (ARG, RECV)
_GOING: Final = (RETVAL, SEND)


def with_host_copies(graph: ClientGraph, device_type: str, fetch_to_host: bool = True) -> ClientGraph:
    """Return the subgraph with the copies that a device of this type needs.

    Args:
        graph: The subgraph.
        device_type: The type of the device.
        fetch_to_host: `SessionConfig.fetch_to_host`.
    """
    nodes: dict[str, Node] = {}
    for node in graph.nodes.values():
        if node.op in _GOING:
            node = _going(node, graph, nodes, _way_out(node, device_type, fetch_to_host))
        elif node.op not in _COMING:
            node = _reading(node, graph, nodes, device_type)
        nodes[node.name] = node
    return replace(graph, nodes=nodes)


def _way_out(node: Node, device_type: str, fetch_to_host: bool) -> str:
    """Return the op that transfers the input of a Send or a fetch off the device."""
    if node.op != SEND:
        return TO_HOST if fetch_to_host else SHARE
    here, there = (node.attrs[end] for end in ("send_device", "recv_device"))
    # Between devices of one type in one process the value need not pass through host memory.
    alike = task_of(here) == task_of(there) and DeviceSpec.from_string(there).device_type == device_type
    return LEND if alike else TO_HOST


def _going(node: Node, graph: ClientGraph, nodes: dict[str, Node], way: str) -> Node:
    (edge,) = node.inputs
    if _is_on_host(edge, graph):
        return node
    copy = f"{edge.node}:{edge.port}/{way}"
    if copy not in nodes:
        nodes[copy] = _copy(copy, way, edge, graph.spec(edge), node)
    return replace(node, inputs=(Edge(copy, 0),))


def _reading(node: Node, graph: ClientGraph, nodes: dict[str, Node], device_type: str) -> Node:
    if not any(graph.nodes[edge.node].op in _COMING for edge in node.inputs):
        return node
    inputs = list(node.inputs)
    in_host_memory = _host_inputs(node, device_type)
    for position, edge in enumerate(node.inputs):
        source = graph.nodes[edge.node]
        if source.op not in _COMING or position in in_host_memory or not _has_memory(graph.spec(edge)):
            continue
        # A feed or Recv has one output, so its name identifies the value.
        copy = f"{edge.node}/_to_device"
        if copy not in nodes:
            nodes[copy] = _copy(copy, TO_DEVICE, edge, graph.spec(edge), source)
        inputs[position] = Edge(copy, 0)
    return replace(node, inputs=tuple(inputs))


def _is_on_host(edge: Edge, graph: ClientGraph) -> bool:
    return graph.nodes[edge.node].op in _COMING or not _has_memory(graph.spec(edge))


def _has_memory(spec: OutputSpec) -> bool:
    """Return whether the value is numeric; strings and handles are Python objects and stay on the host."""
    return not spec.dtype.np_dtype.hasobject


def _copy(name: str, op: str, edge: Edge, spec: OutputSpec, near: Node) -> Node:
    return Node(name, op, (edge,), (), {"T": spec.dtype}, (spec,), near.device, near.source)


def _host_inputs(node: Node, device_type: str) -> frozenset[int]:
    """Return the positions of the inputs that the kernel reads in host memory."""
    kernel = KERNELS.find(node.op, device_type, node.attrs)
    if kernel is None or not kernel.host:
        return frozenset()
    every = per_argument(OPS.get(node.op).inputs, node.attrs, range(len(node.inputs)))
    return frozenset(at for arg, positions in every if arg.name in kernel.host for at in positions)
