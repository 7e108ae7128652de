"""Function calls in a graph: the ops that are calls, the nodes that calls stand for, and the user's own nodes.

A call is *expanded* when it is made: the nodes of the called function are added to the same graph, under the call's
name, and the call's outputs stand for theirs (`Operation.expansion`). The call itself never runs. A graph definition
contains the call instead of its expansion, unless other nodes read its inside, as gradients do; then it contains the
expansion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from aioflow.graph.views import NodeView, TensorView

AnyNode = TypeVar("AnyNode", bound=NodeView)
AnyTensor = TypeVar("AnyTensor", bound=TensorView)
Expander = TypeVar("Expander", bound=Callable[[Any], None])

# The function that expands calls of an op: it sets the call's `expansion` and `finish`.
EXPANDERS: Final[dict[str, Callable[[Any], None]]] = {}


def expander(*op_types: str) -> Callable[[Expander], Expander]:
    """Register the decorated function to expand calls, which are the nodes of these ops."""

    def attach(function: Expander) -> Expander:
        EXPANDERS.update(dict.fromkeys(op_types, function))
        return function

    return attach


def resolved(tensor: AnyTensor) -> AnyTensor:
    """Return the tensor that an output of a call stands for; other tensors stand for themselves."""
    while tensor.op.expansion is not None:
        tensor = tensor.op.expansion[tensor.value_index]
    return tensor


def waited_for(op: AnyNode) -> Iterator[AnyNode]:
    """Yield the nodes that must run for `op` to be complete: for a call, those of its expansion."""
    if op.expansion is None:
        yield op
    else:
        for inner in op.finish:
            yield from waited_for(inner)


def calls_around(op: AnyNode) -> Iterator[AnyNode]:
    """Yield the calls whose expansions contain a node, the innermost first."""
    while op.call is not None:
        op = op.call
        yield op


def visible(operations: Iterable[NodeView]) -> tuple[list[NodeView], set[NodeView]]:
    """Return the nodes of a definition, and the calls that it replaces by their expansions."""
    hidden: dict[NodeView, list[NodeView]] = {}
    shown: dict[NodeView, None] = {}
    opened: set[NodeView] = set()
    waiting: list[NodeView] = []
    ordered = list(operations)
    for op in ordered:
        if op.call is None:
            waiting.append(op)
        else:
            hidden.setdefault(op.call, []).append(op)
    while waiting:
        op = waiting.pop()
        shown[op] = None
        # A node that reads or waits for the inside of a call opens that call, so its expansion becomes visible.
        for source in (*(t.op for t in op.inputs), *op.waits_for):
            for call in calls_around(source):
                if call not in opened:
                    opened.add(call)
                    if call in shown:
                        waiting.extend(hidden.pop(call, ()))
        # The call was opened before it was reached here, so its inner nodes follow now.
        if op in opened:
            waiting.extend(hidden.pop(op, ()))
    return [op for op in ordered if op in shown], opened
