"""The variables that a run changes, derived from the graph. They tell training runs from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aioflow.graph.dtypes import resource
from aioflow.graph.graph import Graph, GraphKeys, Operation
from aioflow.graph.traits import Effect
from aioflow.ops.variables.variable import Variable
from aioflow.session.fetches import FetchMapper


def trains_without(step: Variable, fetches: object) -> Variable | None:
    """Return a trainable variable that a run of `fetches` changes without changing `step`, or None.

    Gradients that another process applies change nothing here; nor do evaluation runs.
    """
    graph: Graph = step.graph
    asked = FetchMapper(graph, fetches)
    changed = set(_changed([*(tensor.op for tensor in asked.tensors), *asked.targets]))
    if step.handle.op in changed:
        return None
    trainable = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    return next((variable for variable in trainable if variable.handle.op in changed), None)


def _changed(ends: Iterable[Operation]) -> Iterator[Operation]:
    """Yield the nodes from which the changed handles come, for all changing nodes among `ends` and their ancestors."""
    for op in _reached(ends, lambda op: [*(tensor.op for tensor in op.inputs), *op.waits_for]):
        if op.op_def.traits.effect is Effect.CHANGES:
            # A handle may have passed through other nodes, such as Identity, since the node that made it.
            yield from _reached([op], lambda op: [tensor.op for tensor in op.inputs if tensor.dtype is resource])


def _reached(ends: Iterable[Operation], sources: Callable[[Operation], Iterable[Operation]]) -> list[Operation]:
    found = dict.fromkeys(ends)
    waiting = list(found)
    while waiting:
        new = [op for op in sources(waiting.pop()) if op not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)
