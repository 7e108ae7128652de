"""Stage 5b: small values that go from one task to another at the same time share a message.

A message costs both tasks some 50 µs of Python, as much as copying a megabyte; a model's biases, counters and the like
are a few hundred bytes each. So the values are joined into one before a Send and cut apart behind its Recv, by ordinary
nodes. What read a value finds it under the name that its Recv had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Plan
from aioflow.compiler.timeline import NodeSeconds, known_bytes
from aioflow.graph.boundary import BOUNDARY, RECV, SEND
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.graph.dtypes import int32, int64
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import num_elements
from aioflow.kernels.registry import KERNELS

__all__ = ["PackOptions", "pack_sends", "waits_for_others"]

_OPAQUE: Final = ("string", "resource", "variant")

_Key: TypeAlias = tuple[str, str, int]  # where values go, their dtype, and what they wait for


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What shares a message.

    Attributes:
        most_bytes: Larger values have one of their own.
        most_seconds: How long the first value of a message may be kept back for the last to be made.
    """

    most_bytes: int = 1 << 15
    most_seconds: float = 1e-4


@dataclass(frozen=True, slots=True)
class _Pack:
    """The Sends that become one."""

    name: str
    sends: tuple[Node, ...]
    specs: tuple[OutputSpec, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many elements each value has."""
        return tuple(num_elements(spec.dims) or 0 for spec in self.specs)


def pack_sends(plan: Plan, seconds: NodeSeconds, options: PackOptions | None = None) -> Plan:
    """The plan in which small values that are made together on one task, for another, go together.

    No two values share a message unless the same Recvs, and the same nodes that may wait for what others do, come
    before both. So none is kept back for one that depends on what its own reader does: whatever comes before one value
    of a message comes before the others in the plan as it was, and a circle of messages would have been one of nodes.
    Left alone are values within loops and those that may be dead, and those whose size is not known.

    Args:
        seconds: How long a node takes.
    """
    if len(plan.parts) < 2:
        return plan
    chosen = options or PackOptions()
    packs = [p for device, graph in plan.by_device() for p in _packs(device, graph, seconds, chosen)]
    if not packs:
        return plan
    leaves: dict[str, dict[str, list[Node]]] = defaultdict(dict)  # what comes in the place of a node, by device
    for pack in packs:
        here, there = (pack.sends[0].attrs[end] for end in ("send_device", "recv_device"))
        leaves[here].update({send.name: [] for send in pack.sends[:-1]})
        leaves[here][pack.sends[-1].name] = list(_joining(pack))
        leaves[there].update(_parting(pack, dict(plan.by_device())[there]))
    return plan.changed(lambda device, graph: _rewritten(graph, leaves[device]))


# -- which ----------------------------------------------------------------------------------------------------------


def _packs(device: str, graph: ClientGraph, seconds: NodeSeconds, options: PackOptions) -> Iterator[_Pack]:
    before = _waits(device, graph)
    made: dict[_Key, list[tuple[float, Node, OutputSpec]]] = defaultdict(list)
    elapsed = 0.0
    for node in graph.nodes.values():
        if node.op not in (SEND, RECV, *BOUNDARY, "Const"):
            elapsed += seconds(node)
        if node.op != SEND or node.attrs["maybe_dead"] or node.control or not _leaves(node):
            continue
        spec = graph.spec(node.inputs[0])
        size = None if spec.dtype.name in _OPAQUE else known_bytes(spec)
        if size is not None and size <= options.most_bytes:
            key = (node.attrs["recv_device"], spec.dtype.name, before[node.name])
            made[key].append((elapsed, node, spec))
    for found in made.values():
        for together in _near(found, options.most_seconds):
            if len(together) > 1:
                sends, specs = zip(*((node, spec) for _, node, spec in together), strict=True)
                yield _Pack(f"pack_{sends[0].attrs['tensor_name']}", sends, specs)


def _leaves(send: Node) -> bool:
    """Whether it is for another task."""
    return task_of(send.attrs["send_device"]) != task_of(send.attrs["recv_device"])


def _near(
    found: Sequence[tuple[float, Node, OutputSpec]], most_seconds: float
) -> Iterator[list[tuple[float, Node, OutputSpec]]]:
    """Runs of values, each of which is made soon after the first of its run."""
    run = [found[0]]
    for item in found[1:]:
        if item[0] - run[0][0] > most_seconds:
            yield run
            run = []
        run.append(item)
    yield run


def _waits(device: str, graph: ClientGraph) -> dict[str, int]:
    """For each node which nodes that wait for others come before it, as bits."""
    kind = DeviceSpec.from_string(device).device_type or "CPU"
    found: dict[str, int] = {}
    for number, node in enumerate(graph.nodes.values()):
        bits = 1 << number if waits_for_others(node, kind) else 0
        for source in node.predecessors():
            bits |= found.get(source, 0)  # but for the edge that closes a loop
        found[node.name] = bits
    return found


def waits_for_others(node: Node, kind: str) -> bool:
    """Return whether the node waits for what others do, on that kind of device."""
    if node.op in (SEND, *BOUNDARY) or traits_of(node.op).steers:
        return False
    if node.op == RECV:
        return True
    kernel = KERNELS.find(node.op, kind, node.attrs)
    return kernel is not None and kernel.is_async


# -- writing it into the plan -----------------------------------------------------------------------------------------


def _joining(pack: _Pack) -> Iterator[Node]:
    """What sends the values as one."""
    device, dtype = pack.sends[0].attrs["send_device"], pack.specs[0].dtype
    flat = []
    for number, (send, spec) in enumerate(zip(pack.sends, pack.specs, strict=True)):
        flat.append(send.inputs[0])
        if len(spec.dims or ()) != 1:
            name = f"{pack.name}/flat_{number}"
            yield from _reshaped(name, send.inputs[0], OutputSpec(dtype, (pack.lengths[number],)), device)
            flat[-1] = Edge(name, 0)
    axis = _constant(f"{pack.name}/axis", np.zeros((), np.int32), device)
    whole = OutputSpec(dtype, (sum(pack.lengths),))
    attrs = {"N": len(flat), "T": dtype, "Tidx": int32}
    yield axis
    yield Node(f"{pack.name}/joined", "ConcatV2", (*flat, Edge(axis.name, 0)), (), attrs, (whole,), device)
    last = pack.sends[-1]
    attrs = {**last.attrs, "tensor_name": pack.name}
    yield replace(last, name=f"{pack.name}/_send", inputs=(Edge(f"{pack.name}/joined", 0),), attrs=attrs)


def _parting(pack: _Pack, graph: ClientGraph) -> dict[str, list[Node]]:
    """What comes in the place of each Recv: the first brings what all are cut from."""
    device, dtype = pack.sends[0].attrs["recv_device"], pack.specs[0].dtype
    names = {send.attrs["tensor_name"]: number for number, send in enumerate(pack.sends)}
    recvs = {
        names[node.attrs["tensor_name"]]: node
        for node in graph.nodes.values()
        if node.op == RECV and node.attrs["tensor_name"] in names
    }
    whole = OutputSpec(dtype, (sum(pack.lengths),))
    first = next(iter(recvs.values()))
    attrs = {**first.attrs, "tensor_name": pack.name, "shape": whole.dims}
    recv = replace(first, name=f"{pack.name}/_recv", attrs=attrs, outputs=(whole,))
    sizes = _constant(f"{pack.name}/sizes", np.array(pack.lengths, np.int64), device)
    axis = _constant(f"{pack.name}/axis", np.zeros((), np.int32), device)
    inputs = tuple(Edge(node.name, 0) for node in (recv, sizes, axis))
    attrs = {"num_split": len(names), "T": dtype, "Tlen": int64}
    parts = tuple(OutputSpec(dtype, (length,)) for length in pack.lengths)
    parted = Node(f"{pack.name}/parted", "SplitV", inputs, (), attrs, parts, device)
    found = {}
    for number, node in recvs.items():
        found[node.name] = list(_reshaped(node.name, Edge(parted.name, number), node.outputs[0], device, node))
    found[first.name][:0] = (recv, sizes, axis, parted)
    return found


def _reshaped(name: str, edge: Edge, spec: OutputSpec, device: str, origin: Node | None = None) -> Iterator[Node]:
    shape = _constant(f"{name}/shape", np.array(spec.dims, np.int32).reshape(-1), device)
    yield shape
    attrs: Mapping[str, Any] = {"T": spec.dtype, "Tshape": int32}
    source = None if origin is None else origin.source
    yield Node(name, "Reshape", (edge, Edge(shape.name, 0)), (), attrs, (spec,), device, source)


def _constant(name: str, value: np.ndarray[Any, Any], device: str) -> Node:
    dtype = int32 if value.dtype == np.int32 else int64
    return Node(name, "Const", (), (), {"value": value, "dtype": dtype}, (OutputSpec(dtype, value.shape),), device)


def _rewritten(graph: ClientGraph, places: Mapping[str, Sequence[Node]]) -> ClientGraph:
    nodes = [new for node in graph.nodes.values() for new in places.get(node.name, (node,))]
    return replace(graph, nodes={node.name: node for node in nodes})
