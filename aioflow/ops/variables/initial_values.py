"""Initial values that depend on other variables.

All initializers of a model run in one step, in no particular order. An initial value that reads another variable must
therefore not read its plain value: it uses the value if one exists, else that variable's own initial value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor

_LOOPS: Final = frozenset({"Enter", "RefEnter", "NextIteration", "RefNextIteration", "Merge", "RefMerge"})


def guarded(initial: Tensor) -> Tensor:
    """Return a copy of `initial` that reads the `initialized_value` of variables.

    Return `initial` itself if it reads none, or depends on a loop or a conditional (a Merge).
    """
    order = _upstream(initial.op)
    # A loop is a cycle, which copies in topological order cannot reproduce.
    if not any(op.type == "ReadVariableOp" for op in order) or any(op.type in _LOOPS for op in order):
        return initial
    replaced: dict[Tensor, Tensor] = {}
    for op in order:
        if op.type == "ReadVariableOp":
            safe = _initialized_value(op)
            if safe is not None:
                replaced[op.outputs[0]] = safe
        elif any(t in replaced for t in op.inputs):
            # Only nodes that depend on a variable are copied; the others are shared.
            copy = _copy(op, [replaced.get(t, t) for t in op.inputs])
            replaced.update(zip(op.outputs, copy.outputs, strict=True))
    return replaced.get(initial, initial)


def _upstream(root: Operation) -> Sequence[Operation]:
    """Return `root` and all nodes upstream of its inputs, each after the nodes that it reads."""
    order: list[Operation] = []
    # An explicit stack: a graph may be deeper than Python's recursion limit.
    seen: set[Operation] = set()
    stack: list[tuple[Operation, bool]] = [(root, False)]
    while stack:
        op, done = stack.pop()
        if done:
            order.append(op)
        elif op not in seen:
            seen.add(op)
            stack.append((op, True))
            stack.extend((t.op, False) for t in op.inputs)
    return order


def _initialized_value(read: Operation) -> Tensor | None:
    variable = _variable_of(read.graph, read.inputs[0])
    if variable is None:
        return None
    result: Tensor = variable.initialized_value()
    return result


def _variable_of(graph: Graph, handle: Tensor) -> Any:
    for key in (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES):
        for variable in graph.get_collection(key):
            if getattr(variable, "handle", None) is handle:
                return variable
    return None


def _copy(op: Operation, inputs: list[Tensor]) -> Operation:
    """Return a copy of a node with other inputs, under the current name scope."""
    specs = [(t.dtype, t.dims) for t in op.outputs]
    name = op.name.rpartition("/")[2]
    return op.graph.create_op(
        op.type,
        inputs,
        op.attrs,
        specs,
        name=name,
        control_inputs=op.waits_for,
        device=op.device,
        source=op.source,
    )
