"""Lift loops out of tagged dataflow: a loop whose nodes are all sync becomes one node that is a native Python `while`.

The innermost loops go first, so that a loop of loops ends as one node. What is lifted behaves as the primitive form
does: the condition part runs once more than the body, and only nodes that the last iteration would find dead are in the
body.
Where a frame has another form than `while_loop` gives it, it is left to the propagator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Final

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.kernels.registry import KernelDef
from aioflow.runtime.bind import Argument, BoundNode, kernel_error
from aioflow.runtime.codegen import FIRST_LINE, Form, StrandCode
from aioflow.runtime.step import Step
from aioflow.runtime.units import Unit, constant_values

__all__ = ["LIFTED", "LiftedLoop", "lift_loops"]

LIFTED: Final = "_Loop"


@dataclass(frozen=True, slots=True)
class LiftedLoop(BoundNode):
    """A whole loop as one node. Its callable takes the values that enter and returns those that leave."""

    @property
    def unpacks(self) -> bool:
        """It always returns a tuple."""
        return True


@dataclass(frozen=True, slots=True)
class _Variable:
    """One loop variable, by the names of its nodes."""

    enter: str
    merge: str
    next: str


@dataclass(frozen=True, slots=True)
class _Loop:
    """The parts of a frame that has the form of `while_loop`."""

    frame: str
    variables: tuple[_Variable, ...]
    invariants: tuple[str, ...]  # constant Enters
    predicate: Edge
    switches: tuple[str, ...]
    exits: tuple[str, ...]
    condition: tuple[BoundNode, ...]
    body: tuple[BoundNode, ...]
    members: frozenset[str]


def lift_loops(graph: ClientGraph, bound: Sequence[BoundNode]) -> tuple[ClientGraph, list[BoundNode]]:
    """The graph with every loop that can be lifted as one node, and the bound nodes of that graph."""
    nodes = list(bound)
    refused: set[str] = set()
    while True:
        frames = _innermost_frames(graph, refused)
        if not frames:
            return graph, nodes
        for frame, members in frames.items():
            loop = _recognise(frame, members, graph, nodes)
            if loop is None:
                refused.add(frame)
            else:
                graph, nodes = _replace(loop, graph, nodes)


def _innermost_frames(graph: ClientGraph, refused: set[str]) -> dict[str, set[str]]:
    """For each frame without a frame in it, the names of its nodes, its Enters among them."""
    inside: dict[str, tuple[str, ...]] = {}
    for name, node in graph.nodes.items():
        sources = [s for s in node.predecessors() if s in inside]
        path = _behind(graph.nodes[sources[0]], inside[sources[0]]) if sources else ()
        inside[name] = path
    found: dict[str, set[str]] = {}
    parents: set[str] = set()
    for name, node in graph.nodes.items():
        path = inside[name]
        if node.op == "Enter":
            parents.update(path)
            path = (*path, _frame_key(node, path))
        if path:
            found.setdefault(path[-1], set()).add(name)
    return {k: v for k, v in found.items() if k not in parents and k not in refused}


def _frame_key(enter: Node, path: tuple[str, ...]) -> str:
    return "\0".join((*path[-1:], enter.attrs["frame_name"]))


def _behind(node: Node, path: tuple[str, ...]) -> tuple[str, ...]:
    if node.op == "Enter":
        return (*path, _frame_key(node, path))
    return path[:-1] if node.op == "Exit" else path


def _recognise(frame: str, members: set[str], graph: ClientGraph, bound: Sequence[BoundNode]) -> _Loop | None:
    """The loop's parts, or None where the frame is of another form."""
    by_op: dict[str, list[Node]] = {}
    for name, node in graph.nodes.items():
        if name in members:
            by_op.setdefault(node.op, []).append(node)
    conditions = by_op.get("LoopCond", [])
    variables = _variables(by_op.get("Merge", []), graph)
    kernels = [b for b in bound if b.node.name in members]
    if len(conditions) != 1 or not variables or any(b.kernel.is_async for b in kernels):
        return None
    predicate = Edge(conditions[0].name, 0)
    switches = by_op.get("Switch", [])
    exits = by_op.get("Exit", [])
    invariants = [n.name for n in by_op.get("Enter", []) if n.attrs["is_constant"]]
    regular = (
        all(s.inputs[1] == predicate for s in switches)
        and all(graph.nodes[e.inputs[0].node].op == "Switch" and e.inputs[0].port == 0 for e in exits)
        and len(by_op.get("Enter", [])) == len(variables) + len(invariants)
        and len(by_op.get("NextIteration", [])) == len(variables)
        and not by_op.get("ControlTrigger")
    )
    if not regular:
        return None
    before = _ancestors(conditions[0].name, graph, members)
    guarded = _guarded(graph, members)
    body = [b for b in kernels if b.node.name not in before]
    if any(b.node.name not in guarded for b in body) or _reads_a_side(graph, members, before):
        return None
    return _Loop(
        frame,
        tuple(variables),
        tuple(invariants),
        conditions[0].inputs[0],
        tuple(s.name for s in switches),
        tuple(e.name for e in exits),
        tuple(b for b in kernels if b.node.name in before),
        tuple(body),
        frozenset(members),
    )


def _variables(merges: Sequence[Node], graph: ClientGraph) -> list[_Variable] | None:
    found: list[_Variable] = []
    for merge in merges:
        ops = [graph.nodes[e.node].op for e in merge.inputs]
        if ops != ["Enter", "NextIteration"] or merge.control:
            return None
        found.append(_Variable(merge.inputs[0].node, merge.name, merge.inputs[1].node))
    return found


def _ancestors(name: str, graph: ClientGraph, members: set[str]) -> set[str]:
    """The nodes of the frame that one needs in the same iteration."""
    found: set[str] = set()
    stack = [name]
    while stack:
        current = stack.pop()
        if current in found or current not in members or graph.nodes[current].op == "NextIteration":
            continue
        found.add(current)
        stack.extend(graph.nodes[current].predecessors())
    return found


def _guarded(graph: ClientGraph, members: set[str]) -> set[str]:
    """The nodes that are dead once the predicate is false."""
    found: set[str] = set()
    for name, node in graph.nodes.items():
        if name not in members or node.op == "Merge":
            continue
        taken = any(graph.nodes[e.node].op == "Switch" and e.port == 1 for e in node.inputs)
        if taken or any(source in found for source in node.predecessors()):
            found.add(name)
    return found


def _reads_a_side(graph: ClientGraph, members: set[str], before: set[str]) -> bool:
    """Whether something reads what a loop of the usual form hides: a false side, or a Merge's second output."""
    for name, node in graph.nodes.items():
        if name not in members:
            continue
        for edge in node.inputs:
            op = graph.nodes[edge.node].op if edge.node in members else ""
            if (op == "Switch" and edge.port == 0 and node.op != "Exit") or (op == "Merge" and edge.port == 1):
                return True
    return any(graph.nodes[name].op in ("Switch", "NextIteration") for name in before)


def _replace(loop: _Loop, graph: ClientGraph, bound: Sequence[BoundNode]) -> tuple[ClientGraph, list[BoundNode]]:
    """The graph with the members of the loop replaced by one node, where the first Exit was."""
    entering = [*(v.enter for v in loop.variables), *loop.invariants]
    name = f"{loop.exits[0] if loop.exits else entering[0]}/lifted"
    control = dict.fromkeys(c for m in loop.members for c in graph.nodes[m].control if c not in loop.members)
    node = Node(
        name,
        LIFTED,
        tuple(graph.nodes[e].inputs[0] for e in entering),
        tuple(control),
        {},
        tuple(graph.nodes[e].outputs[0] for e in loop.exits),
        graph.nodes[entering[0]].device,
        graph.nodes[entering[0]].source,
    )
    call = _generate(loop, graph, bound)
    kernel = KernelDef(LIFTED, lambda binding: call, takes_stop=True)
    lifted = LiftedLoop(node, kernel, call, tuple(Argument((e,), False, None) for e in node.inputs))
    renamed = {Edge(e, 0): Edge(name, i) for i, e in enumerate(loop.exits)}
    nodes: dict[str, Node] = {}
    for old in graph.nodes.values():
        if old.name not in loop.members:
            nodes[old.name] = _renamed(old, renamed, loop.members, name)
    nodes[name] = node
    ordered = _in_order(nodes)
    kept = {b.node.name: b for b in bound if b.node.name not in loop.members} | {name: lifted}
    rebound = [_rebound(kept[n.name], n) for n in ordered.values() if n.name in kept]
    return ClientGraph(ordered, graph.feeds, graph.fetches), rebound


def _renamed(node: Node, renamed: Mapping[Edge, Edge], members: frozenset[str], name: str) -> Node:
    if not any(source in members for source in node.predecessors()):
        return node
    inputs = tuple(renamed.get(e, e) for e in node.inputs)
    control = dict.fromkeys(name if c in members else c for c in node.control)
    return replace(node, inputs=inputs, control=tuple(control))


def _rebound(bound: BoundNode, node: Node) -> BoundNode:
    """The bound node with its edges as they are now."""
    if bound.node is node:
        return bound
    arguments: list[Argument] = []
    position = 0
    for argument in bound.arguments:
        count = len(argument.sources)
        arguments.append(replace(argument, sources=node.inputs[position : position + count]))
        position += count
    return replace(bound, node=node, arguments=tuple(arguments))


def _in_order(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """The nodes in topological order; the back edges of loops that are left do not count."""
    order: dict[str, Node] = {}
    visited: set[str] = set()
    for root in nodes:
        stack = [(root, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order[name] = nodes[name]
            elif name not in visited:
                visited.add(name)
                stack.append((name, True))
                node = nodes[name]
                back = node.op == "Merge"
                sources = [s for s in node.predecessors() if not (back and nodes[s].op == "NextIteration")]
                stack.extend((s, False) for s in reversed(sources) if s not in visited)
    return order


def _generate(loop: _Loop, graph: ClientGraph, bound: Sequence[BoundNode]) -> Callable[..., tuple[Any, ...]]:
    """The loop as a Python function of the values that enter, and of `stop`, the step or None."""
    constants = constant_values([b for b in bound if b.node.name in loop.members])
    resolved = _Resolver(loop, graph)
    condition = [resolved.rewire(b) for b in loop.condition if Edge(b.node.name, 0) not in constants]
    body = [resolved.rewire(b) for b in loop.body if Edge(b.node.name, 0) not in constants]
    nexts = [resolved(graph.nodes[v.next].inputs[0]) for v in loop.variables]
    leaving = [resolved(Edge(graph.nodes[e].inputs[0].node, 0)) for e in loop.exits]
    predicate = resolved(loop.predicate)
    writer = _Writer(graph, constants, loop)
    reads = [predicate, *(e for b in body for e in b.node.inputs), *nexts, *leaving]
    test = writer.part("test", condition, reads)
    step = writer.part("body", body, nexts)
    variables = "".join(f"m{i}, " for i in range(len(loop.variables)))
    parameters = variables + "".join(f"i{i}, " for i in range(len(loop.invariants)))
    source = f"""
def loop({parameters}stop=None):
    while True:
        {test}
        if not {writer.name(predicate)}:
            return ({"".join(writer.name(e) + ", " for e in leaving)})
        if stop is not None and stop.requested:
            stop.halt()
        {step}
        {variables}= {"".join(writer.name(e) + ", " for e in nexts)}
"""
    exec(compile(source, "<aioflow loop>", "exec"), writer.scope)
    return _explained(writer.scope["loop"], writer.nodes)


class _Resolver:
    """Sees what an edge carries through the nodes that only steer."""

    def __init__(self, loop: _Loop, graph: ClientGraph) -> None:
        self._carries = {s: graph.nodes[s].inputs[0] for s in loop.switches}
        self._carries |= {n: loop.predicate for n in loop.members if graph.nodes[n].op == "LoopCond"}

    def __call__(self, edge: Edge) -> Edge:
        while edge.node in self._carries:
            edge = self._carries[edge.node]
        return edge

    def rewire(self, bound: BoundNode) -> BoundNode:
        """The node, reading what its edges carry."""
        return _rebound(bound, replace(bound.node, inputs=tuple(self(e) for e in bound.node.inputs)))


class _Writer:
    """Names the values in the text of a loop, and holds what the text refers to."""

    def __init__(self, graph: ClientGraph, constants: Mapping[Edge, Any], loop: _Loop) -> None:
        self.scope: dict[str, Any] = {}
        self.nodes: dict[CodeType, Sequence[BoundNode]] = {}
        self._graph = graph
        self._constants = constants
        self._names = {Edge(v.merge, 0): f"m{i}" for i, v in enumerate(loop.variables)}
        self._names |= {Edge(e, 0): f"i{i}" for i, e in enumerate(loop.invariants)}

    def part(self, name: str, nodes: Sequence[BoundNode], reads: Sequence[Edge]) -> str:
        """A statement that runs a strand over `nodes` and names those of its values that are read."""
        if not nodes:
            return "pass"
        own = {b.node.name for b in nodes}
        outputs = tuple(dict.fromkeys(e for e in reads if e.node in own))
        known = self._constants
        inputs = tuple(dict.fromkeys(e for b in nodes for e in b.node.inputs if e.node not in own and e not in known))
        call = f"{name}({', '.join(self._names[e] for e in inputs)})"
        # What comes in may be held by whoever is outside the loop, so a kernel that keeps it gets a copy.
        code = StrandCode(Unit(tuple(nodes), False, inputs, outputs, ()), self._graph, known, frozenset(inputs))
        self.scope[name] = code.function(Form.FAST)
        self.nodes[self.scope[name].__code__] = nodes
        self._names |= {edge: f"{name}_{i}" for i, edge in enumerate(outputs)}
        return f"{''.join(self._names[e] + ', ' for e in outputs)}= {call}" if outputs else call

    def name(self, edge: Edge) -> str:
        """The name of a value."""
        if edge in self._constants and edge not in self._names:
            self._names[edge] = f"c{len(self.scope)}"
            self.scope[self._names[edge]] = self._constants[edge]
        return self._names[edge]


def _explained(
    loop: Callable[..., tuple[Any, ...]], nodes: Mapping[CodeType, Sequence[BoundNode]]
) -> Callable[..., tuple[Any, ...]]:
    """The loop, with every error attached to the node that raised it."""

    def call(*values: Any, stop: Step | None = None) -> tuple[Any, ...]:
        try:
            return loop(*values, stop=stop)
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code not in nodes:
                trace = trace.tb_next
            if trace is None:
                raise
            failed = nodes[trace.tb_frame.f_code][trace.tb_lineno - FIRST_LINE]
            failure = kernel_error(error, failed.node)
            raise failure from failure.__cause__

    return call
