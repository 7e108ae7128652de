"""Stage 5b: pack small values that go from one task to another at the same time into one message.

A message costs both tasks some 50 µs of Python, as much as copying a megabyte. A model's biases, counters and the like
are a few hundred bytes each. So ordinary nodes join the values before one Send and split them after its Recv. Readers
find each value under the name of its former Recv.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Plan
from aioflow.compiler.timeline import INSTANT, NodeSeconds, known_bytes
from aioflow.graph.boundary import BOUNDARY, RECV, SEND
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.graph.dtypes import int32, int64
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import num_elements
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.registry import KERNELS
from aioflow.memory.values import Array

_OPAQUE: Final = ("string", "resource", "variant")

_Key: TypeAlias = tuple[str, str, int]  # destination device, dtype, and the set of nodes waited for


@dataclass(frozen=True, slots=True)
class PackOptions:
    """The limits for packing.

    Attributes:
        most_bytes: Larger values are sent by themselves.
        most_seconds: How long the first value of a message may be held back until the last one is computed.
    """

    most_bytes: int = 1 << 15
    most_seconds: float = 1e-4


@dataclass(frozen=True, slots=True)
class _Pack:
    """The Sends that are packed into one."""

    name: str
    sends: tuple[Node, ...]
    specs: tuple[OutputSpec, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of elements of each value."""
        return tuple(num_elements(spec.dims) or 0 for spec in self.specs)


def pack_sends(plan: Plan, seconds: NodeSeconds, options: PackOptions | None = None) -> Plan:
    """Return the plan with small values packed that one task computes for another at about the same time.

    Values within loops, values that may be dead and values of unknown size are not packed.

    Args:
        plan: The partitioned step.
        seconds: Returns how long a node takes.
        options: The limits; None for the defaults.
    """
    if len(plan.parts) < 2:
        return plan
    chosen = options or PackOptions()
    # Two values share a message only if the same Recvs, and the same other nodes that may wait for other tasks, come
    # before both. Otherwise a value could be held back for one that depends on what its own reader does. A cycle of
    # messages would then be a cycle of nodes in the original plan, so packing cannot deadlock.
    packs = [p for device, graph in plan.by_device() for p in _packs(device, graph, seconds, chosen)]
    if not packs:
        return plan
    leaves: dict[str, dict[str, list[Node]]] = defaultdict(dict)  # by device: the nodes that replace a node
    for pack in packs:
        here, there = (pack.sends[0].attrs[end] for end in ("send_device", "recv_device"))
        leaves[here].update({send.name: [] for send in pack.sends[:-1]})
        leaves[here][pack.sends[-1].name] = list(_joining(pack))
        leaves[there].update(_parting(pack, dict(plan.by_device())[there]))
    return plan.changed(lambda device, graph: _rewritten(graph, leaves[device]))


# ── selection ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _packs(device: str, graph: ClientGraph, seconds: NodeSeconds, options: PackOptions) -> Iterator[_Pack]:
    before = _waits(device, graph)
    made: dict[_Key, list[tuple[float, Node, OutputSpec]]] = defaultdict(list)
    # Estimated seconds from the start of the step until each value exists.
    elapsed = 0.0
    for node in graph.nodes.values():
        if node.role not in INSTANT:
            elapsed += seconds(node)
        # `maybe_dead` is also set for each Send inside a loop.
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
    """Return whether the Send goes to another task."""
    return task_of(send.attrs["send_device"]) != task_of(send.attrs["recv_device"])


def _near(
    found: Sequence[tuple[float, Node, OutputSpec]], most_seconds: float
) -> Iterator[list[tuple[float, Node, OutputSpec]]]:
    """Split values into runs whose members are all computed soon after the first of the run."""
    run = [found[0]]
    for item in found[1:]:
        if item[0] - run[0][0] > most_seconds:
            yield run
            run = []
        run.append(item)
    yield run


def _waits(device: str, graph: ClientGraph) -> dict[str, int]:
    """Return for each node a bit set of the waiting nodes that come before it."""
    kind = DeviceSpec.from_string(device).device_type or "CPU"
    found: dict[str, int] = {}
    for number, node in enumerate(graph.nodes.values()):
        # An integer as a set: a union is one `|`, and equal sets are equal keys.
        bits = 1 << number if waits_for_others(node, kind) else 0
        for source in node.predecessors():
            bits |= found.get(source, 0)  # absent for the edge that closes a loop
        found[node.name] = bits
    return found


def waits_for_others(node: Node, kind: str) -> bool:
    """Return whether the node waits for other tasks or clients, on a device of that kind."""
    if node.op in (SEND, *BOUNDARY) or traits_of(node.op).is_control_flow:
        return False
    if node.op == RECV:
        return True
    kernel = KERNELS.find(node.op, kind, node.attrs)
    return kernel is not None and kernel.is_async


# ── rewriting the plan ────────────────────────────────────────────────────────────────────────────────────────────────


def _joining(pack: _Pack) -> Iterator[Node]:
    """Yield the nodes that send the values as one."""
    device, dtype = pack.sends[0].attrs["send_device"], pack.specs[0].dtype
    flat = []
    for number, (send, spec) in enumerate(zip(pack.sends, pack.specs, strict=True)):
        # ConcatV2 needs vectors, so values of any other rank are reshaped first.
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
    # The packed Send takes the place of the last one, where all values exist.
    last = pack.sends[-1]
    attrs = {**last.attrs, "tensor_name": pack.name}
    yield replace(last, name=f"{pack.name}/_send", inputs=(Edge(f"{pack.name}/joined", 0),), attrs=attrs)


def _parting(pack: _Pack, graph: ClientGraph) -> dict[str, list[Node]]:
    """Return the nodes that replace each Recv; those of the first include the packed Recv and its split."""
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
    # The first former Recv in the graph's order has to be preceded by the packed Recv and its split.
    found[first.name][:0] = (recv, sizes, axis, parted)
    return found


def _reshaped(name: str, edge: Edge, spec: OutputSpec, device: str, origin: Node | None = None) -> Iterator[Node]:
    shape = _constant(f"{name}/shape", np.array(spec.dims, np.int32).reshape(-1), device)
    yield shape
    attrs: Attrs = {"T": spec.dtype, "Tshape": int32}
    source = None if origin is None else origin.source
    yield Node(name, "Reshape", (edge, Edge(shape.name, 0)), (), attrs, (spec,), device, source)


def _constant(name: str, value: Array, device: str) -> Node:
    dtype = int32 if value.dtype == np.int32 else int64
    return Node(name, "Const", (), (), {"value": value, "dtype": dtype}, (OutputSpec(dtype, value.shape),), device)


def _rewritten(graph: ClientGraph, places: Mapping[str, Sequence[Node]]) -> ClientGraph:
    nodes = [new for node in graph.nodes.values() for new in places.get(node.name, (node,))]
    return replace(graph, nodes={node.name: node for node in nodes})
