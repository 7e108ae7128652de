"""Code generation of a raised loop as one Python function: a `while` around the lines of its nodes.

Each iteration drops the values that it computed, at the latest when its loop variables have been passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.concurrency.stopping import current_work
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode, RaisedLoop, kernel_error
from aioflow.runtime.codegen import PARAMETERS, CodeVariant, Line, NodeWriter, compiled, failed_node, text_of
from aioflow.runtime.executor import StepWork
from aioflow.runtime.functions import cut
from aioflow.runtime.liveness import analyse, is_small
from aioflow.runtime.step import Probe, Step
from aioflow.runtime.tasks import Task


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
