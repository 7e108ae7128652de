"""Strands with data-dependent cost: the work of a kernel depends on values, so the last run does not predict the next.

`fill(n, 0)` takes almost no time for a small n and seconds for a large one, and the sizes of the step's inputs do not
show which. Such a strand is still tried on the event loop first. When a kernel requests too much there, the strand is
restarted in a thread. This is impossible if a node before that kernel has had an effect.
"""

from __future__ import annotations

from aioflow.compiler.ir import Edge
from aioflow.graph.opdef import traits_of
from aioflow.kernels.convert import ResourceConverter
from aioflow.runtime.bind import BoundNode, RaisedLoop
from aioflow.runtime.tasks import Task


def elastic_nodes(task: Task) -> tuple[int, ...]:
    """Return the positions of the nodes whose work depends on values that are known only in the step."""
    fixed: set[Edge] = set()  # values that follow from shapes and constants
    own = {b.node.name for b in task.nodes}
    outside = set(task.inputs)
    found: list[int] = []
    for position, b in enumerate(task.nodes):
        known = all(e in fixed if e.node in own else e not in outside for e in b.node.inputs)
        traits = traits_of(b.node.op)
        if traits.only_shapes or (known and not traits.effect.is_stateful):
            fixed.update(Edge(b.node.name, port) for port in range(len(b.node.outputs)))
        if b.kernel.elastic and any(e not in fixed and (e.node in own or e in outside) for e in _telling(b)):
            found.append(position)
    return tuple(found)


def _telling(bound: BoundNode) -> list[Edge]:
    """Return the inputs that determine the work: shapes and counts, which are host values, or else the data."""
    on_host = [e for a in bound.arguments if not isinstance(a.convert, ResourceConverter | None) for e in a.sources]
    return on_host or list(bound.node.inputs)


def begins_again(task: Task, elastic: tuple[int, ...]) -> bool:
    """Return whether the strand can be abandoned at each of these nodes and restarted."""
    # The duration of a loop cannot be predicted either, and the effects of its iterations must not happen twice.
    if any(isinstance(b, RaisedLoop) for b in task.nodes):
        return False
    return not any(b.has_effects for b in task.nodes[: max(elastic, default=0)])
