"""Branches and loops as they are stored with a graph: `CondContextDef` and `WhileContextDef` messages.

The message of a loop lists the nodes inside. The loop variables and invariants are found in these nodes, not read from
the message, so a loop that a gradient has enlarged since it was stored is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.static_value import constant_value
from aioflow.ops.control.contexts import CondContext, ControlFlowContext, LoopVariable, WhileContext
from aioflow.protos import Message, message

# The collections that contexts are stored in, and their messages.
CONTEXTS: Final[Mapping[str, str]] = {"cond_context": "CondContextDef", "while_context": "WhileContextDef"}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def take_up_contexts(graph: Graph, conds: Iterable[Message], loops: Iterable[Message], scope: str) -> None:
    """Put nodes of the graph into the branches and loops that messages describe.

    Args:
        graph: The graph.
        conds: The branches, `CondContextDef` messages.
        loops: The loops, `WhileContextDef` messages.
        scope: Prefix of the stored names in the graph: "" or a name that ends with "/".

    Raises:
        NotFoundError: a branch or loop refers to a name that the graph does not have (UnknownNameError).
        InvalidArgumentError: the named nodes do not form a branch or a loop.
    """
    reader = _Reader(graph, scope)
    reader.read(conds, loops, None)
    reader.finish()


class _Reader:
    def __init__(self, graph: Graph, scope: str) -> None:
        self._graph = graph
        self._scope = scope
        self._nodes = {op.name: op for op in graph.get_operations()}
        self._loops: dict[WhileContext, list[Operation]] = {}

    def read(self, conds: Iterable[Message], loops: Iterable[Message], outer: ControlFlowContext | None) -> None:
        """Read contexts, then those nested in them, so that each node ends up in its innermost context."""
        alone: dict[tuple[str, int], CondContext] = {}
        for stored in conds:
            if stored.branch not in (0, 1):
                raise InvalidArgumentError("a cond has two branches", expected="0 or 1", actual=stored.branch)
            side = CondContext(self._tensor(stored.pred_name), self._tensor(stored.pivot_name).op, stored.branch)
            self._place(side, stored, outer)
            # The two branches are separate messages; the predicate's name brings them together.
            other = alone.pop((stored.pred_name, 1 - stored.branch), None)
            if other is None:
                alone[stored.pred_name, stored.branch] = side
            else:
                side.other, other.other = other, side
        if alone:
            raise InvalidArgumentError("a branch is stored without the other one", actual=sorted(alone))
        for stored in loops:
            # Protobuf has 0 for a missing field; 10 is the default of `while_loop`.
            loop = WhileContext(
                self._graph,
                stored.context_name,
                stored.parallel_iterations or 10,
                stored.back_prop,
                stored.swap_memory,
            )
            loop.maximum_iterations = self._maximum(stored.maximum_iterations_name)
            self._loops[loop] = []
            self._place(loop, stored, outer)

    def _place(self, context: ControlFlowContext, stored: Message, outer: ControlFlowContext | None) -> None:
        context.outer = outer
        # `values` lists the outside tensors, too.
        outside = set(stored.values_def.external_values)
        # A name is that of a tensor, or of a node without outputs.
        for name in dict.fromkeys(
            value.partition(":")[0] for value in stored.values_def.values if value not in outside
        ):
            op = self._nodes.get(self._scope + name)
            if op is not None:
                op.control_flow_context = context
        nested = stored.nested_contexts
        self.read(
            [each.cond_ctxt for each in nested if each.HasField("cond_ctxt")],
            [each.while_ctxt for each in nested if each.HasField("while_ctxt")],
            context,
        )

    def _tensor(self, name: str) -> Tensor:
        return self._graph.get_tensor_by_name(self._scope + name)

    def _maximum(self, name: str) -> Tensor | None:
        """Return the upper bound of a loop, or None if it has none or `input_map` has replaced it."""
        is_here = bool(name) and self._scope + name.partition(":")[0] in self._nodes
        return self._tensor(name) if is_here else None

    def finish(self) -> None:
        """Set the loop variables and invariants of each loop."""
        if not self._loops:
            return
        readers: dict[Tensor, list[Operation]] = {}
        for op in self._nodes.values():
            for tensor in op.inputs:
                readers.setdefault(tensor, []).append(op)
            if op.control_flow_context in self._loops:
                self._loops[op.control_flow_context].append(op)
        for loop, inside in self._loops.items():
            _complete(loop, inside, readers)


def _complete(loop: WhileContext, inside: Iterable[Operation], readers: Mapping[Tensor, list[Operation]]) -> None:
    decided = [op.outputs[0] for op in inside if op.type == "LoopCond"]
    if len(decided) != 1:
        raise _no_loop(loop, "one LoopCond", len(decided))
    loop.condition = decided[0]
    loop.invariants += [op.outputs[0] for op in inside if op.type == "Enter" and op.attrs["is_constant"]]
    loop.variables += [_variable(loop, op, readers) for op in inside if op.type == "Merge" and _goes_round(op)]
    if not loop.variables:
        raise _no_loop(loop, "a value that it carries", "none")
    first = loop.variables[0]
    if not _counts(first):
        loop.maximum_iterations = None  # gradients take the first variable of a limited loop as its count
    loop.name = first.enter.op.attrs["frame_name"]
    loop.pivot = first.inside.op
    # TensorFlow stores the Exits of a loop among the nodes inside.
    for variable in loop.variables:
        variable.exit.op.control_flow_context = loop.outer


def _goes_round(merge: Operation) -> bool:
    return [tensor.op.type for tensor in merge.inputs] == ["Enter", "NextIteration"]


def _variable(loop: WhileContext, merge: Operation, readers: Mapping[Tensor, list[Operation]]) -> LoopVariable:
    def reader(tensor: Tensor, op_type: str) -> Operation | None:
        return next((op for op in readers.get(tensor, ()) if op.type == op_type and op.inputs[0] is tensor), None)

    found = LoopVariable(merge.inputs[0])
    found.merge = merge.outputs[0]
    found.following = merge.inputs[1].op.inputs[0]
    switch = reader(found.merge, "Switch")
    leaving = None if switch is None else reader(switch.outputs[0], "Exit")
    if switch is None or leaving is None:
        raise _no_loop(loop, "a Switch and an Exit for each value", f"none for {merge.name!r}")
    # The body may also read the Switch itself.
    kept = reader(switch.outputs[1], "Identity")
    found.leaving = switch.outputs[0]
    found.inside = switch.outputs[1] if kept is None else kept.outputs[0]
    found.exit = leaving.outputs[0]
    return found


def _counts(variable: LoopVariable) -> bool:
    """Return whether a loop variable counts iterations: it starts as 0, and 1 is added in each."""
    start, step = variable.enter.op.inputs[0], variable.following.op
    return (
        _is_number(start, 0)
        and step.type in ("Add", "AddV2")
        and step.inputs[0] is variable.inside
        and _is_number(step.inputs[1], 1)
    )


def _is_number(tensor: Tensor, number: int) -> bool:
    value = constant_value(tensor)
    return value is not None and value.ndim == 0 and bool(value == number)


def _no_loop(loop: WhileContext, expected: str, actual: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"{loop.name!r} is no loop", expected=expected, actual=actual)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def context_defs(operations: Iterable[Operation], nodes: set[str]) -> dict[str, list[Message]]:
    """Return the messages of the branches and loops that nodes are in, by collection.

    The message of a context contains those of the contexts nested in it. `nodes` has the names of the nodes to store.
    """
    inside: dict[ControlFlowContext, list[Operation]] = {}
    for op in operations:
        context = op.control_flow_context if op.name in nodes else None
        # Go outwards: a node is inside every context around it.
        while context is not None:
            inside.setdefault(context, []).append(op)
            context = context.outer
    # A branch without nodes of its own is stored with the other one.
    for context in list(inside):
        if isinstance(context, CondContext):
            inside.setdefault(context.other, [])
    kept = sorted((c for c in inside if _is_whole(c, nodes)), key=lambda c: -getattr(c, "branch", 0))
    made = {key: list[Message]() for key in CONTEXTS}
    for context in kept:
        if context.outer is None:
            made[_key(context)].append(_written(context, kept, inside))
    return {key: found for key, found in made.items() if found}


def _is_whole(context: Any, nodes: set[str]) -> bool:
    if not context.is_loop:
        return {context.pred.op.name, context.pivot.name, context.other.pivot.name} <= nodes
    return all({v.enter.op.name, v.merge.op.name, v.exit.op.name} <= nodes for v in context.variables)


def _key(context: ControlFlowContext) -> str:
    return "cond_context" if isinstance(context, CondContext) else "while_context"


def _written(
    context: ControlFlowContext, kept: list[ControlFlowContext], inside: Mapping[ControlFlowContext, list[Operation]]
) -> Message:
    made = message(CONTEXTS[_key(context)])()
    pivot = made.pivot_name = _pivot(context)
    if isinstance(context, CondContext):
        made.context_name = f"{pivot.partition(':')[0]}/{context.branch}"
        made.pred_name, made.branch = context.pred.name, context.branch
    else:
        _write_loop(made, context)
    _write_values(made.values_def, context, inside[context])
    for each in kept:
        if each.outer is context:
            field = "cond_ctxt" if isinstance(each, CondContext) else "while_ctxt"
            getattr(made.nested_contexts.add(), field).CopyFrom(_written(each, kept, inside))
    return made


def _pivot(context: Any) -> str:
    return str((context.condition if context.is_loop else context.pivot.outputs[0]).name)


def _write_loop(made: Message, loop: Any) -> None:
    first = loop.variables[0]
    made.context_name = loop.name
    made.parallel_iterations = loop.parallel_iterations
    made.back_prop, made.swap_memory = loop.back_prop, loop.swap_memory
    made.pivot_for_pred_name, made.pivot_for_body_name = first.merge.name, first.inside.name
    made.loop_enter_names.extend(v.enter.name for v in loop.variables)
    made.loop_exit_names.extend(v.exit.name for v in loop.variables)
    if loop.maximum_iterations is not None:
        made.maximum_iterations_name = loop.maximum_iterations.name


def _write_values(made: Message, context: ControlFlowContext, inside: Iterable[Operation]) -> None:
    names: list[str] = []
    for op in inside:
        names += [tensor.name for tensor in op.outputs] or [op.name]
        if op.control_flow_context is not context:
            continue
        if isinstance(context, CondContext) and op.type == "Switch":
            made.external_values[op.inputs[0].name] = op.outputs[context.branch].name
        elif op.type == "Enter" and op.attrs["is_constant"]:
            made.external_values[op.inputs[0].name] = op.outputs[0].name
    # TensorFlow counts the Exits of a loop among the nodes inside.
    exits = [] if isinstance(context, CondContext) else list(_exits(context))
    made.values.extend(dict.fromkeys([*names, *exits, *made.external_values]))


def _exits(loop: Any) -> Iterable[str]:
    return (variable.exit.name for variable in loop.variables)
