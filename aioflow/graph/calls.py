"""Calls of functions in a graph: which ops are calls, what their nodes stand for, and which nodes are the user's own.

A call is *expanded* when it is made: the nodes of what it calls are put into the same graph, under its name, and its
outputs stand for theirs (`Operation.expansion`). The call itself never runs. A definition of the graph has the call and
not its expansion, unless other nodes read what is inside, as gradients do: then it has the expansion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aioflow.graph.operation import Operation
    from aioflow.graph.tensor import Tensor

__all__ = ["EXPANDERS", "calls_around", "expander", "resolved", "visible", "waited_for"]

# What makes the nodes that a call stands for, by op: it sets the call's `expansion` and `finish`.
EXPANDERS: Final[dict[str, Callable[[Operation], None]]] = {}


def expander(*op_types: str) -> Callable[[Callable[[Operation], None]], Callable[[Operation], None]]:
    """Declare that nodes of these ops are calls, which the function expands."""

    def attach(function: Callable[[Operation], None]) -> Callable[[Operation], None]:
        EXPANDERS.update(dict.fromkeys(op_types, function))
        return function

    return attach


def resolved(tensor: Tensor) -> Tensor:
    """What an output of a call stands for; every other tensor stands for itself."""
    while tensor.op.expansion is not None:
        tensor = tensor.op.expansion[tensor.value_index]
    return tensor


def waited_for(op: Operation) -> Iterator[Operation]:
    """The nodes that have run when `op` has: of a call, those that it expands to."""
    if op.expansion is None:
        yield op
    else:
        for inner in op.finish:
            yield from waited_for(inner)


def calls_around(op: Operation) -> Iterator[Operation]:
    """The calls whose expansions a node is in, the innermost first."""
    while op.call is not None:
        op = op.call
        yield op


def visible(operations: Iterable[Operation]) -> tuple[list[Operation], set[Operation]]:
    """The nodes that a definition has, and those calls among them in whose place it has their expansions."""
    hidden: dict[Operation, list[Operation]] = {}
    shown: dict[Operation, None] = {}
    opened: set[Operation] = set()
    waiting: list[Operation] = []
    ordered = list(operations)
    for op in ordered:
        if op.call is None:
            waiting.append(op)
        else:
            hidden.setdefault(op.call, []).append(op)
    while waiting:
        op = waiting.pop()
        shown[op] = None
        for source in (*(t.op for t in op.inputs), *op.waits_for):
            for call in calls_around(source):
                if call not in opened:
                    opened.add(call)
                    if call in shown:
                        waiting.extend(hidden.pop(call, ()))
        if op in opened:
            waiting.extend(hidden.pop(op, ()))
    return [op for op in ordered if op in shown], opened
