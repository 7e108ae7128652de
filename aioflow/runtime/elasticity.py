"""Which strands may turn out to be far longer than the last time: those with a kernel whose work follows from values.

`fill(n, 0)` takes nothing for a small n and seconds for a large one, and the sizes of the step's inputs do not tell.
Such a strand is tried on the event loop all the same, and begun again in a thread where a kernel claims too much. That
cannot be done where something before the kernel has had an effect.
"""

from __future__ import annotations

from aioflow.compiler.ir import Edge
from aioflow.graph.opdef import traits_of
from aioflow.kernels.convert import Handle
from aioflow.runtime.bind import BoundNode, LiftedLoop
from aioflow.runtime.units import Unit

__all__ = ["begins_again", "elastic_nodes"]


def elastic_nodes(unit: Unit) -> tuple[int, ...]:
    """The positions of the nodes whose work follows from values that are known only in the step."""
    settled: set[Edge] = set()  # those that follow from shapes and constants
    own = {b.node.name for b in unit.nodes}
    outside = set(unit.inputs)
    found: list[int] = []
    for position, b in enumerate(unit.nodes):
        known = all(e in settled if e.node in own else e not in outside for e in b.node.inputs)
        traits = traits_of(b.node.op)
        if traits.only_shapes or (known and not traits.effect.is_stateful):
            settled.update(Edge(b.node.name, port) for port in range(len(b.node.outputs)))
        if b.kernel.elastic and any(e not in settled and (e.node in own or e in outside) for e in _telling(b)):
            found.append(position)
    return tuple(found)


def _telling(bound: BoundNode) -> list[Edge]:
    """The inputs whose values the work follows from: shapes and counts, which are taken in host memory, or the data."""
    on_host = [e for a in bound.arguments if not isinstance(a.convert, Handle | None) for e in a.sources]
    return on_host or list(bound.node.inputs)


def begins_again(unit: Unit, elastic: tuple[int, ...]) -> bool:
    """Whether the strand can be left at each of these nodes, and begun again. (How long a loop takes cannot be told
    from the last time either, and what it does in its iterations cannot be done twice.)
    """
    if any(isinstance(b, LiftedLoop) for b in unit.nodes):
        return False
    return not any(b.has_effects for b in unit.nodes[: max(elastic, default=0)])
