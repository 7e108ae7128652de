"""Stage 5: partition the placed graph into one subgraph per device, grouped by owning task (whitepaper, 3.2.2).

An edge between devices becomes a Send and a Recv, one pair for each value and destination. A control edge becomes a
pair that carries an empty tensor, unless a value of the same node crosses to that device too. Feeds, constants and loop
invariants are not sent but exist on every device that reads them.

A loop with nodes on several devices gets a control loop on each device that receives in it. The control loop has no
count of its own: it runs as long as the original loop's condition holds, and runs every Recv once per iteration
(whitepaper, 4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from aioflow.compiler.control_flow import LoopFrame, frames_behind, in_order, is_back_edge, may_be_dead
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Part, Plan
from aioflow.compiler.place.colocation import is_everywhere
from aioflow.errors import InvalidArgumentError
from aioflow.graph.boundary import ARG, RECV, RETVAL, SEND
from aioflow.graph.device_spec import task_of
from aioflow.graph.dtypes import float32, int32
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Role
from aioflow.ops.transfer import COMPRESSIONS

# Returns whether a node and its inputs are also computed on the second device instead of being sent there.
Recompute: TypeAlias = Callable[[ClientGraph, Node, str], bool]


def edge_of(node: str) -> str:
    """Return the edge that the Send or Recv with this name belongs to."""
    return node.rpartition("/")[0]


def partition(
    graph: ClientGraph, compression: str = "", recompute: Recompute | None = None, asked: frozenset[str] = frozenset()
) -> Plan:
    """Return the plan for a placed graph.

    Args:
        graph: The placed graph.
        compression: How float32 values cross between devices; "" for unchanged.
        recompute: Whether a stateless node whose inputs are feeds, constants and such nodes is computed on a device
            that reads it instead of being sent there; by default everything is sent.
        asked: Nodes for which the user requested a device: they exist on that device only.

    Raises:
        InvalidArgumentError: a loop on several devices has no condition.
    """
    devices = list(dict.fromkeys(node.device for node in graph.nodes.values())) or [""]
    if len(devices) == 1:
        subgraphs = {devices[0]: graph}
    else:
        subgraphs = _Cut(_with_loops_together(graph), compression, recompute, asked).subgraphs()
    tasks: dict[str, dict[str, ClientGraph]] = {}
    for device, subgraph in subgraphs.items():
        tasks.setdefault(task_of(device), {})[device] = subgraph
    return Plan({task: Part(task, parts) for task, parts in tasks.items()}, graph.feeds, graph.fetches)


class _Cut:
    """The state of partitioning one graph."""

    def __init__(
        self, graph: ClientGraph, compression: str, recompute: Recompute | None, asked: frozenset[str]
    ) -> None:
        self._graph = graph
        self._compression = compression
        self._recompute = recompute
        self._repeatable = _repeatable(graph) - asked if recompute is not None else frozenset()
        self._behind = frames_behind(graph)
        self._dead = may_be_dead(graph)
        self._nodes: dict[str, dict[str, Node]] = {}  # of each device, by name
        self._received: dict[tuple[Edge, str], str] = {}  # the Recv of a value on a device
        self._signalled: dict[tuple[str, str], str] = {}  # the local node that stands for a remote one in control edges
        self._edges = 0
        # A value of each node that crosses to a device, which can then stand for a control edge. Outputs of a Switch
        # cannot: the Switch itself is alive where one of its outputs is dead.
        self._crossing = {
            (edge.node, node.device): edge
            for node in graph.nodes.values()
            for edge in node.inputs
            if graph.nodes[edge.node].role is not Role.SWITCH
        }
        self._clocks: dict[tuple[LoopFrame, str], str] = {}  # the Merge of the control loop on a device

    def subgraphs(self) -> dict[str, ClientGraph]:
        for node in self._graph.nodes.values():
            # The others come to a device together with their first reader there.
            if not is_everywhere(node):
                self._put(node)
        # Feeds are numbered, so those without a reader stay too.
        unused = [n for n in self._graph.nodes.values() if n.op == ARG and not self._is_on_some_device(n.name)]
        for node in unused:
            self._nodes.setdefault(node.device, {})[node.name] = node
        return {device: self._subgraph(nodes) for device, nodes in self._nodes.items() if nodes}

    def _subgraph(self, nodes: dict[str, Node]) -> ClientGraph:
        targets = tuple(name for name in self._graph.targets if name in nodes)
        return replace(self._graph, nodes=in_order(nodes, _followers(nodes)), targets=targets)

    def _is_on_some_device(self, name: str) -> bool:
        return any(name in nodes for nodes in self._nodes.values())

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _put(self, node: Node) -> None:
        """Put a node on its device, together with the nodes that bring its inputs there."""
        device = node.device
        inputs = tuple(self._read(edge, device) for edge in node.inputs)
        control = dict.fromkeys(name for c in node.control for name in self._wait(c, device))
        self._nodes.setdefault(device, {})[node.name] = replace(node, inputs=inputs, control=tuple(control))

    def _read(self, edge: Edge, device: str) -> Edge:
        """Return the edge that a node on `device` reads for an output of the whole graph."""
        source = self._graph.nodes[edge.node]
        if is_everywhere(source):
            if source.name not in self._nodes.setdefault(device, {}):
                self._put(replace(source, device=device))
            return edge
        if source.device == device:
            return edge
        if source.name in self._nodes.get(device, {}):
            return edge  # a copy made for an earlier reader
        again = self._recompute
        if again is not None and source.name in self._repeatable and again(self._graph, source, device):
            self._put(replace(source, device=device))
            return edge
        return Edge(self._receive(edge, device), 0)

    def _wait(self, name: str, device: str) -> tuple[str, ...]:
        """Return the nodes that a node on `device` waits for in place of a node of the whole graph."""
        source = self._graph.nodes[name]
        if is_everywhere(source):
            # A loop invariant exists when the loop begins, everything else from the start of the step.
            return (self._read(Edge(name, 0), device).node,) if source.role is Role.ENTER else ()
        if source.device == device:
            return (name,)
        if (name, device) not in self._signalled:
            self._signalled[name, device] = self._signal(source, device)
        return (self._signalled[name, device],)

    # -- edges between devices ---------------------------------------------------------------------------------------

    def _signal(self, source: Node, device: str) -> str:
        """Return a node on `device` that finishes after `source` on another device has finished."""
        if (source.name, device) in self._crossing:
            return self._receive(self._crossing[source.name, device], device)
        empty = np.zeros((0,), np.float32)
        token = f"{source.name}/_token"
        spec = OutputSpec(float32, (0,))
        self._nodes.setdefault(source.device, {})[token] = Node(
            token,
            "Const",
            (),
            (source.name,),
            {"value": empty, "dtype": float32},
            (spec,),
            source.device,
            source.source,
        )
        # A Switch that runs is alive itself, even if one of its outputs is dead.
        dead = Edge(source.name, 0) in self._dead and source.role is not Role.SWITCH
        edge = Edge(token, 0)
        return self._transfer(self._new_edge(edge), edge, spec, source, device, dead)

    def _receive(self, edge: Edge, device: str) -> str:
        key = (edge, device)
        if key not in self._received:
            name = self._new_edge(edge)
            # Registered before the transfer is made: a loop's condition is received inside the control loop that it
            # drives.
            self._received[key] = f"{name}/_recv"
            source = self._graph.nodes[edge.node]
            self._transfer(name, edge, self._graph.spec(edge), source, device, edge in self._dead)
        return self._received[key]

    def _new_edge(self, edge: Edge) -> str:
        self._edges += 1
        return f"edge_{self._edges}_{edge.node}:{edge.port}"

    def _transfer(self, name: str, edge: Edge, spec: OutputSpec, source: Node, device: str, dead: bool) -> str:
        """Add a Send of `edge`, which `source` makes, and its Recv on `device`; return the received node's name."""
        frame = self._behind[source.name]
        common: dict[str, object] = {
            "tensor_name": name,
            "send_device": source.device,
            "recv_device": device,
            "maybe_dead": dead or frame is not None,
        }
        # A control token is not a value of `source`, so it is never compressed.
        compression = source.attrs.get("_compression", self._compression) if edge.node == source.name else ""
        wire = spec
        if compression and spec.dtype is float32:
            dtype, truncates = COMPRESSIONS[compression]
            wire = OutputSpec(dtype, spec.dims)
            edge = self._cast(f"{name}/_compress", edge, spec, wire, source.device, truncates)
        send = Node(f"{name}/_send", SEND, (edge,), (), {"T": wire.dtype, **common}, (), source.device, source.source)
        attrs = {"tensor_type": wire.dtype, "shape": spec.dims, **common}
        # Within a loop, the local control loop triggers the Recv once per iteration.
        clock = () if frame is None else (self._clock(frame, device),)
        arrives = f"{name}/_recv" if wire is spec else f"{name}/_wire"
        recv = Node(arrives, RECV, (), clock, attrs, (wire,), device, source.source)
        self._nodes.setdefault(source.device, {})[send.name] = send
        self._nodes.setdefault(device, {})[recv.name] = recv
        if wire is not spec:
            self._cast(f"{name}/_recv", Edge(arrives, 0), wire, spec, device)
        return f"{name}/_recv"

    def _cast(
        self, name: str, edge: Edge, given: OutputSpec, wanted: OutputSpec, device: str, truncates: bool = False
    ) -> Edge:
        attrs = {"SrcT": given.dtype, "DstT": wanted.dtype, "Truncate": truncates}
        self._nodes.setdefault(device, {})[name] = Node(name, "Cast", (edge,), (), attrs, (wanted,), device)
        return Edge(name, 0)

    # -- loops on several devices ------------------------------------------------------------------------------------

    def _clock(self, frame: LoopFrame, device: str) -> str:
        """Return the Merge of a frame's control loop on a device, which runs once per iteration there."""
        key = (frame, device)
        if key not in self._clocks:
            # Registered before it is made: the condition is received inside the control loop that it drives.
            self._clocks[key] = f"_clock_{len(self._clocks)}/merge"
            self._make_clock(frame, device, self._clocks[key].removesuffix("/merge"))
        return self._clocks[key]

    def _make_clock(self, frame: LoopFrame, device: str, name: str) -> None:
        if not frame.condition:
            raise InvalidArgumentError(
                f"the loop of frame {frame.name!r} is on several devices and has no condition",
                expected="a LoopCond",
                actual="none",
            )
        outer = () if frame.parent is None else (self._clock(frame.parent, device),)
        entering = {
            "T": int32,
            "frame_name": frame.name,
            "is_constant": False,
            "parallel_iterations": frame.parallel_iterations,
        }
        source = self._graph.nodes[frame.condition].source
        count = OutputSpec(int32, ())

        def put(
            part: str, op: str, inputs: tuple[Edge, ...], attrs: Attrs, outputs: int = 1, control: tuple[str, ...] = ()
        ) -> Edge:
            specs = (count,) * outputs
            node = Node(f"{name}/{part}", op, inputs, control, attrs, specs, device, source)
            self._nodes.setdefault(device, {})[node.name] = node
            return Edge(node.name, 0)

        # In an inner loop, the start value is needed again in each iteration of the outer loop.
        one = put("start", "Const", (), {"value": np.zeros((), np.int32), "dtype": int32}, control=outer)
        enter = put("enter", "Enter", (one,), entering)
        # The Merge and the NextIteration read each other; the name of the latter is known in advance.
        merge = put("merge", "Merge", (enter, Edge(f"{name}/next", 0)), {"T": int32, "N": 2}, 2)
        condition = self._read(Edge(frame.condition, 0), device)
        switch = put("switch", "Switch", (merge, condition), {"T": int32}, 2)
        put("next", "NextIteration", (Edge(switch.node, 1),), {"T": int32})


def _with_loops_together(graph: ClientGraph) -> ClientGraph:
    """Return the placed graph with the control-flow nodes of loops moved to the devices where they must be.

    A loop variable's Enter, Merge and NextIteration are on one device, because an edge between devices carries a value
    either in every iteration or never. A Switch is on the device of its data and an Exit on that of its Switch, which
    avoids sending dead values.
    """
    devices = {name: node.device for name, node in graph.nodes.items()}
    for node in graph.nodes.values():
        if node.role is Role.MERGE:
            _place_variable(graph, node, devices)
        elif node.role in (Role.SWITCH, Role.EXIT) and not is_everywhere(graph.nodes[node.inputs[0].node]):
            devices[node.name] = devices[node.inputs[0].node]
    # A second pass, because the sources of fetches may just have been moved.
    for node in graph.nodes.values():
        if node.op == RETVAL:
            devices[node.name] = devices[node.inputs[0].node]
    moved = {
        n: node if node.device == devices[n] else replace(node, device=devices[n]) for n, node in graph.nodes.items()
    }
    return replace(graph, nodes=moved)


def _place_variable(graph: ClientGraph, merge: Node, devices: dict[str, str]) -> None:
    sources = [graph.nodes[edge.node] for edge in merge.inputs]
    if any(is_back_edge(merge, source) for source in sources):
        for source in sources:
            devices[source.name] = devices[merge.name]


def _repeatable(graph: ClientGraph) -> frozenset[str]:
    """Return the names of nodes without effects that depend on feeds and constants alone, so that copies are equal."""
    found: set[str] = set()
    for node in graph.nodes.values():
        traits = traits_of(node.op)
        if node.control or traits.is_control_flow or node.op == RETVAL:
            continue
        if traits.is_replicated or (not OPS.get(node.op).stateful and all(e.node in found for e in node.inputs)):
            found.add(node.name)
    # Replicated nodes exist on every device anyway.
    return frozenset(name for name in found if not traits_of(graph.nodes[name].op).is_replicated)


def _followers(nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """Return for each node the Sends of its values, which come directly behind it to start as early as possible."""
    sends: dict[str, list[str]] = {}
    for node in nodes.values():
        if node.op == SEND:
            sent = nodes[node.inputs[0].node]
            source = sent.inputs[0].node if sent.name.endswith("/_compress") else sent.name
            sends.setdefault(source, []).append(node.name)
    return sends
