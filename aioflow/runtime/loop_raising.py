"""Loop raising: a loop whose nodes are all sync becomes one node that is a native Python `while`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from aioflow.compiler.control_flow import LoopFrame, LoopVariableNodes, in_order, loop_variable, loops_of
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.concurrency.stopping import current_work
from aioflow.graph.traits import Role
from aioflow.kernels.registry import KernelDef
from aioflow.memory.values import Value
from aioflow.runtime.bind import Argument, BoundNode, RaisedLoop, kernel_error, rebound
from aioflow.runtime.branches import Guards, NotRaisableError, scheduled
from aioflow.runtime.codegen import PARAMETERS, CodeVariant, Line, NodeWriter, compiled, failed_node, text_of
from aioflow.runtime.executor import StepWork
from aioflow.runtime.functions import cut
from aioflow.runtime.liveness import analyse, is_small
from aioflow.runtime.step import Probe, Step
from aioflow.runtime.tasks import Task, constant_values

# ── the generated code of a loop ──────────────────────────────────────────────────────────────────────────────────────
#
# Each iteration drops the values that it computed, at the latest when its loop variables have been passed on.


class _Unstoppable:
    """A step that is never stopped, and the work for it."""

    requested = False
    probe = None

    def begin_critical(self) -> None:
        """Do nothing: this work has no critical sections."""

    end_critical = begin_critical


UNSTOPPABLE: Final = _Unstoppable()


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The computation of a loop.

    Attributes:
        variables: The values with which an iteration begins.
        following: The values that it passes to the next iteration, in the same order.
        invariants: The values that are the same in all iterations.
        leaving: The values that the loop returns.
        predicate: The value that decides whether the body runs.
        condition: The nodes that run before the predicate is tested.
        body: The nodes that run if the predicate holds.
    """

    variables: tuple[Edge, ...]
    following: tuple[Edge, ...]
    invariants: tuple[Edge, ...]
    leaving: tuple[Edge, ...]
    predicate: Edge
    condition: tuple[BoundNode, ...]
    body: tuple[BoundNode, ...]


class LoopCode:
    """The function of a loop. Its arguments are the variables, the invariants, and `step`, the running step or None.

    `take` accepts the values in a list, which it empties. A value without another holder is then freed as soon as the
    loop has consumed it.
    """

    def __init__(self, parts: LoopParts, graph: ClientGraph, constants: Mapping[Edge, Value]) -> None:
        self._parts = parts
        self._graph = graph
        self._constants = constants
        nodes = (*parts.condition, *parts.body)
        inputs = (*parts.variables, *parts.invariants)
        outputs = tuple(e for e in dict.fromkeys(parts.following) if e not in constants)
        self._task = Task(nodes, False, inputs, outputs, ())
        tested = len(parts.condition)
        ends = (parts.predicate, *parts.leaving)
        # The predicate and the leaving values are read when the nodes of the condition have run. Invariants are read in
        # every iteration, so they outlive all nodes, also those that leave the loop.
        read = dict.fromkeys(ends, tested) | dict.fromkeys(parts.invariants, len(nodes) + 1)
        lifetimes = analyse(self._task, graph, frozenset(), read)
        names = {e: f"m{i}" for i, e in enumerate(parts.variables)}
        names |= {e: f"i{i}" for i, e in enumerate(parts.invariants)}
        self._sections = {"tests": range(tested), "body": range(tested, len(nodes))}
        self._cuts = cut(self._task, list(self._sections.values()), ends)
        self._writer = NodeWriter(self._task, graph, constants, lifetimes, names, self._cuts, ends)
        self._compiled: dict[CodeVariant, Callable[..., tuple[Value, ...]]] = {}

    @property
    def kept(self) -> frozenset[int]:
        """The positions of the inputs that a node may hold beyond the loop."""
        kept = _kept_inputs(self._task, tuple(zip(self._parts.variables, self._parts.following, strict=True)))
        return frozenset(i for i, e in enumerate(self._task.inputs) if e in kept)

    def __call__(self, *values: Value, step: Step | None = None) -> tuple[Value, ...]:
        """Run the loop. Every error is attached to the node that raised it."""
        return self.take(list(values), step)

    def take(self, values: list[Value], step: Step | None) -> tuple[Value, ...]:
        """Run the loop with the values of the list, which is emptied."""
        try:
            here = current_work()
            work = here if isinstance(here, StepWork) else UNSTOPPABLE
            if step is not None and step.probe is not None:
                return self._function(CodeVariant.PROBED)(values, self._reporter(step.probe), step, work)
            return self._function(CodeVariant.LOOP)(values, step or UNSTOPPABLE, work)
        except Exception as error:
            failed = failed_node(error, self._compiled.values(), self._task.nodes)
            if failed is None:
                raise
            failure = kernel_error(error, failed.node)
            raise failure from failure.__cause__

    def source(self, form: CodeVariant) -> str:
        """Return the Python text of a form."""
        parts = [lines for group in self._functions(form).values() for lines in group]
        return "\n".join(text_of(lines) for lines in (*parts, self._main(form)))

    def _function(self, form: CodeVariant) -> Callable[..., tuple[Value, ...]]:
        found = self._compiled.get(form)
        if found is None:
            main, parts = self._main(form), self._functions(form)
            found = self._compiled[form] = compiled(main, "loop", self._writer.scope, self._task.nodes, parts)
        return found

    def _functions(self, form: CodeVariant) -> dict[str, list[list[Line]]]:
        """Return the functions that the loop is divided into."""
        if self._cuts is None:
            return {}
        every = zip(self._sections.items(), self._cuts.sections, strict=True)
        return {name: [self._writer.function(name, form, piece) for piece in pieces] for (name, _), pieces in every}

    def _main(self, form: CodeVariant) -> list[Line]:
        parts, writer = self._parts, self._writer
        return [
            Line(f"def loop({', '.join(('values', *PARAMETERS[form]))}):"),
            Line(f"    {self._taken()}"),
            Line("    values.clear()"),
            Line("    while True:"),
            *self._section("tests", form),
            Line(f"        if not {writer.name(parts.predicate)}:"),
            Line(f"            return ({''.join(f'{writer.name(e)}, ' for e in parts.leaving)})"),
            # Once per iteration: the lines of the form `loop` check for a stop only before nodes with effects.
            Line("        if step.requested: step.halt()"),
            *self._section("body", form),
            *self._pass_on(),
        ]

    def _taken(self) -> str:
        """Return the statement that binds the initial values to names."""
        if self._cuts is None:
            # The trailing comma also unpacks a list of one value.
            return f"{''.join(f'{self._writer.name(e)}, ' for e in self._task.inputs)} = values"
        self._writer.scope["blank"] = [None] * (len(self._cuts.slots) - len(self._task.inputs))
        return "s = [*blank, *values]"

    def _section(self, name: str, form: CodeVariant) -> list[Line]:
        """Return the lines of the nodes before or after the predicate test."""
        if self._cuts is None:
            nodes = self._sections[name]
            return list(self._writer.lines(form, nodes.start, nodes.stop, 2))
        call = f"part({', '.join(('s', *PARAMETERS[form]))})"
        return [Line(f"        for part in {name}:"), Line(f"            {call}")]

    def _pass_on(self) -> list[Line]:
        """Return the lines that pass this iteration's values to the next one and drop all other references to them."""
        parts, writer = self._parts, self._writer
        changed = [(v, f) for v, f in zip(parts.variables, parts.following, strict=True) if v != f]
        lines = []
        if changed:
            # A single tuple assignment, because a variable may receive the old value of another one.
            targets = ", ".join(writer.name(v) for v, _ in changed)
            lines.append(Line(f"        {targets} = {', '.join(writer.name(f) for _, f in changed)}"))
        made = [e for e in self._task.outputs if e not in self._task.inputs and not is_small(e, self._graph)]
        if made:
            lines.append(Line(f"        {''.join(f'{writer.name(e)} = ' for e in made)}None"))
        return lines

    def _reporter(self, probe: Probe) -> Callable[[int, Sequence[Value]], None]:
        report = probe.begin()

        def after_node(index: int, outputs: Sequence[Value]) -> None:
            node = self._task.nodes[index]
            if not isinstance(node, RaisedLoop):  # a raised loop has reported its nodes one by one
                report(node, outputs)

        return after_node


def _kept_inputs(task: Task, carried: Sequence[tuple[Edge, Edge]]) -> set[Edge]:
    """Return the inputs of a loop whose memory a node keeps in any iteration."""
    shares: dict[Edge, frozenset[Edge]] = {e: frozenset((e,)) for e in task.inputs}
    kept: set[Edge] = set()
    for b in task.nodes:
        inputs = [e for a in b.arguments if a.passes for e in a.sources]
        shared = frozenset[Edge]() if b.kernel.fresh else frozenset(s for e in inputs for s in shares.get(e, ()))
        shares.update((Edge(b.node.name, port), shared) for port in range(len(b.node.outputs)))
        for edge in b.keeps:
            kept |= shares.get(edge, frozenset())
    while True:
        # If a variable is kept, so is the value that the iteration before passed on to it. Repeat until nothing is
        # added.
        more = {s for variable, following in carried if variable in kept for s in shares.get(following, ())}
        if more <= kept:
            return kept
        kept |= more


# ── raising ───────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# The innermost loops are raised first, so that a nested loop also becomes one node. A raised loop behaves like the
# primitive form: nodes that are alive when the predicate is false run once more than the body. Branches inside become
# predicates. A frame of another form than `while_loop` makes is left to the propagator.


LIFTED: Final = "/Loop"  # no op can have this name, and no definition is looked up
_Path: TypeAlias = tuple[str, ...]  # see `LoopFrame.path`


@dataclass(frozen=True, slots=True)
class _Frame:
    """The nodes, by name, of a frame that has the form of `while_loop`."""

    variables: tuple[LoopVariableNodes, ...]
    invariants: tuple[str, ...]  # constant Enters
    switches: tuple[str, ...]  # those of the loop itself, not of branches inside
    exits: tuple[str, ...]
    members: tuple[str, ...]  # in topological order


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop that can be raised: the name of its single node, its frame, its computation, and its bound nodes."""

    name: str
    frame: _Frame
    parts: LoopParts
    bound: Sequence[BoundNode]


def raise_loops(graph: ClientGraph, bound: Sequence[BoundNode]) -> tuple[ClientGraph, list[BoundNode]]:
    """Return the graph with every loop that can be raised as one node, and the bound nodes of that graph."""
    nodes = list(bound)
    refused: set[_Path] = set()
    # Raising the innermost loops turns the loops around them into innermost ones.
    while frames := _innermost_frames(graph, refused):
        loops: list[_Loop] = []
        for key, (members, kernels) in _with_kernels(frames, nodes).items():
            frame = _recognise(members, graph)
            parts = None if frame is None else _parts(frame, graph, kernels)
            if frame is None or parts is None:
                # The loops around a refused frame never become innermost, so they stay in primitive form, too.
                refused.add(key)
            else:
                loops.append(_Loop(_name(frame), frame, parts, kernels))
        if loops:
            graph, nodes = _replace(loops, graph, nodes)
    return graph, nodes


def _with_kernels(
    frames: Mapping[_Path, Sequence[str]], bound: Sequence[BoundNode]
) -> dict[_Path, tuple[Sequence[str], list[BoundNode]]]:
    """Return for each frame the names of its nodes, and the bound nodes in it."""
    found: dict[_Path, tuple[Sequence[str], list[BoundNode]]] = {key: (members, []) for key, members in frames.items()}
    frame_of = {name: key for key, members in frames.items() for name in members}
    for b in bound:
        key = frame_of.get(b.node.name)
        if key is not None:
            found[key][1].append(b)
    return found


def _innermost_frames(graph: ClientGraph, refused: Collection[_Path]) -> dict[_Path, list[str]]:
    """Return for each innermost loop, by its path, the names of its nodes in order, including its Enters."""
    found: dict[LoopFrame, list[str]] = {}
    for name, frame in loops_of(graph).items():
        if frame is not None:
            found.setdefault(frame, []).append(name)
    parents = {frame.parent for frame in found}
    inner = {frame.path: members for frame, members in found.items() if frame not in parents}
    return {path: members for path, members in inner.items() if path not in refused}


def _recognise(members: Sequence[str], graph: ClientGraph) -> _Frame | None:
    """Return the control-flow nodes of the loop, or None if the frame has another form."""
    by_role: dict[Role, list[Node]] = {}
    for name in members:
        by_role.setdefault(graph.nodes[name].role, []).append(graph.nodes[name])
    conditions = by_role.get(Role.LOOP_CONDITION, [])
    variables = _variables(by_role.get(Role.MERGE, []), graph)
    # A ControlTrigger also runs if its inputs are dead, which predicates cannot express.
    if len(conditions) != 1 or not variables or by_role.get(Role.TRIGGER):
        return None
    switches = [s for s in by_role.get(Role.SWITCH, []) if s.inputs[1] == Edge(conditions[0].name, 0)]
    invariants = [n.name for n in by_role.get(Role.ENTER, []) if n.attrs["is_constant"]]
    # The index that a Merge returns as its second output has no counterpart in a `while`.
    merges = {v.merge for v in variables}
    regular = (
        switches
        and len(by_role.get(Role.ENTER, [])) == len(variables) + len(invariants)
        and len(by_role.get(Role.NEXT, [])) == len(variables)
        and not any(e.node in merges and e.port for name in members for e in graph.nodes[name].inputs)
    )
    if not regular:
        return None
    exits, taken = ([node.name for node in found] for found in (by_role.get(Role.EXIT, []), switches))
    return _Frame(tuple(variables), tuple(invariants), tuple(taken), tuple(exits), tuple(members))


def _variables(merges: Sequence[Node], graph: ClientGraph) -> list[LoopVariableNodes] | None:
    """Return the loop variables, ignoring the Merges of branches; None if the frame has another form."""
    found: list[LoopVariableNodes] = []
    for merge in merges:
        variable = loop_variable(graph, merge)
        if variable is not None and not merge.control:
            found.append(variable)
        # A Merge that is neither a loop variable nor the end of a branch.
        elif any(graph.nodes[e.node].role in (Role.ENTER, Role.NEXT) for e in merge.inputs):
            return None
    return found


def _parts(frame: _Frame, graph: ClientGraph, kernels: Sequence[BoundNode]) -> LoopParts | None:
    """Return the computation of the loop, or None if it does not have the form that `while_loop` makes."""
    entering = frozenset((*frame.invariants, *(v.enter for v in frame.variables), *(v.merge for v in frame.variables)))
    try:
        guards = Guards(graph, frame.members, entering)
    except NotRaisableError:
        return None
    tests = {guards.predicate(graph.nodes[s]) for s in frame.switches}
    (predicate,) = tests if len(tests) == 1 else (None,)
    # A `while` cannot await, and a Send in a loop needs the tag of its iteration, which only the propagator has.
    if predicate is None or any(b.kernel.is_async or b.kernel.sends for b in kernels):
        return None
    taken, left = (predicate, True), (predicate, False)
    position = {name: i for i, name in enumerate(frame.members)}
    nodes = sorted([*guards.rewired(kernels), *guards.made()], key=lambda b: position[b.node.name])
    # Nodes that do not depend on the predicate run before it is tested, and so once more than the body.
    condition = [b for b in nodes if taken not in b.guard]
    body = [replace(b, guard=tuple(atom for atom in b.guard if atom != taken)) for b in nodes if taken in b.guard]
    late = {b.node.name for b in body}
    # The loop predicate alone decides about NextIterations and Exits, no node runs only at the end, and the condition
    # does not read the body.
    regular = (
        all(guards.of(Edge(v.next, 0)) == (taken,) for v in frame.variables)
        and all(guards.of(graph.nodes[e].inputs[0]) == (left,) for e in frame.exits)
        and not any(left in b.guard for b in nodes)
        and not any(e.node in late for b in condition for e in b.reads)
    )
    if not regular:
        return None
    return LoopParts(
        tuple(Edge(v.merge, 0) for v in frame.variables),
        tuple(guards.value(graph.nodes[v.next].inputs[0]) for v in frame.variables),
        tuple(Edge(e, 0) for e in frame.invariants),
        tuple(guards.value(graph.nodes[e].inputs[0]) for e in frame.exits),
        predicate,
        *_computing(condition, body),
    )


def _computing(
    condition: Sequence[BoundNode], body: Sequence[BoundNode]
) -> tuple[tuple[BoundNode, ...], tuple[BoundNode, ...]]:
    """Return the nodes in execution order, without constants, which become globals of the code."""
    first, second = ([b for b in scheduled(part) if b.node.role is not Role.CONSTANT] for part in (condition, body))
    return tuple(first), tuple(second)


def _name(frame: _Frame) -> str:
    return f"{frame.exits[0] if frame.exits else frame.variables[0].enter}/lifted"


def _replace(
    loops: Sequence[_Loop], graph: ClientGraph, bound: Sequence[BoundNode]
) -> tuple[ClientGraph, list[BoundNode]]:
    """Return the graph with the members of each loop replaced by one node, and its bound nodes."""
    inside = {member: loop.name for loop in loops for member in loop.frame.members}
    renamed = {Edge(e, 0): Edge(loop.name, i) for loop in loops for i, e in enumerate(loop.frame.exits)}
    kept = {b.node.name: b for b in bound if b.node.name not in inside}
    kept.update((loop.name, _lifted(loop, graph)) for loop in loops)
    whole = [n for n in graph.nodes.values() if n.name not in inside] + [kept[loop.name].node for loop in loops]
    nodes = in_order({n.name: _renamed(n, renamed, inside) for n in whole})
    return replace(graph, nodes=nodes), [rebound(kept[n.name], n) for n in nodes.values() if n.name in kept]


def _lifted(loop: _Loop, graph: ClientGraph) -> RaisedLoop:
    """Return the single node of a loop, which reads the values that enter the loop."""
    frame = loop.frame
    members = frozenset(frame.members)
    entering = [*(v.enter for v in frame.variables), *frame.invariants]
    control = dict.fromkeys(c for m in frame.members for c in graph.nodes[m].control if c not in members)
    node = Node(
        loop.name,
        LIFTED,
        tuple(graph.nodes[e].inputs[0] for e in entering),
        tuple(control),
        {},
        tuple(graph.nodes[e].outputs[0] for e in frame.exits),
        graph.nodes[entering[0]].device,
        graph.nodes[entering[0]].source,
    )
    code = LoopCode(loop.parts, graph, constant_values(loop.bound))
    kept = code.kept
    kernel = KernelDef(LIFTED, lambda binding: code, retains=bool(kept), takes_step=True)
    return RaisedLoop(node, kernel, code, tuple(Argument((e,), False, None) for e in node.inputs), (), kept)


def _renamed(node: Node, renamed: Mapping[Edge, Edge], inside: Mapping[str, str]) -> Node:
    """Return the node with its edges redirected to the nodes that replace loops."""
    if not any(source in inside for source in node.predecessors()):
        return node
    inputs = tuple(renamed.get(e, e) for e in node.inputs)
    control = dict.fromkeys(inside.get(c, c) for c in node.control)
    return replace(node, inputs=inputs, control=tuple(control))
