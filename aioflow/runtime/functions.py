"""Where the text of a strand is cut into functions.

Python compiles a text in one piece and lets no other thread run meanwhile: some 30 µs for a node. So no function has
more than some dozens of nodes, and each is compiled by itself. What one makes and another one reads has a place in a
list that all of them get: it is called `s[3]` in the text where it would be `v7`, and is dropped as early as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.compiler.ir import Edge
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.branches import common_depth
from aioflow.runtime.units import Unit

__all__ = ["MANY_ITEMS", "Cuts", "cut", "takes_long"]

_LONGEST: Final = 128  # names in the text of one of several functions, which are compiled in some 2 ms
_ALONE: Final = 256  # in one that is alone: to go from one to the next costs a short strand more than a long one
MANY_ITEMS: Final = 32  # inputs of a node that are not written down one by one


@dataclass(frozen=True, slots=True)
class Cuts:
    """A unit in functions.

    Attributes:
        sections: For each section of the unit its functions, each by the positions of its nodes.
        slots: The places of values in the list: first the unit's outputs, in order; last its inputs.
    """

    sections: tuple[tuple[range, ...], ...]
    slots: Mapping[Edge, int]


def cut(unit: Unit, sections: Sequence[range], shared: Sequence[Edge] = (), always: bool = False) -> Cuts | None:
    """The functions of a unit, or None where it is short enough for one.

    Args:
        sections: Positions of nodes that never share a function: all of the unit's nodes.
        shared: Values that are read outside of all functions, besides the unit's inputs and outputs.
        always: However short it is.
    """
    if not always and _names(unit) <= _ALONE:
        return None
    pieces = tuple(tuple(_pieces(unit.nodes, section)) for section in sections)
    given = dict.fromkeys(unit.inputs)
    crossing = _crossing(unit.nodes, [piece for section in pieces for piece in section])
    made = [e for e in dict.fromkeys((*unit.outputs, *shared, *crossing)) if e not in given]
    return Cuts(pieces, {edge: slot for slot, edge in enumerate((*made, *given))})


def takes_long(unit: Unit) -> bool:
    """Whether to compile it takes longer than it may hold up an event loop."""
    return _names(unit) > _LONGEST


def _names(unit: Unit) -> int:
    """About how many names there are in the text of a unit."""
    inside = sum(2 + len(b.node.inputs) + len(b.node.outputs) for b in unit.nodes)
    return inside + len(unit.inputs) + len(unit.outputs)


def _pieces(nodes: Sequence[BoundNode], section: range) -> Iterator[range]:
    """Cut a section, and no branch that fits into a function."""
    start = position = section.start
    names = 0
    while position < section.stop:
        node = nodes[position].node
        names += 2 + min(len(node.inputs), MANY_ITEMS) + len(node.outputs)
        position += 1
        if names > _LONGEST and position - 1 > start:
            position = _best(nodes, start, position - 1)
            yield range(start, position)
            start, names = position, 0
    if start < section.stop:
        yield range(start, section.stop)


def _best(nodes: Sequence[BoundNode], start: int, last: int) -> int:
    """Where a function that begins at `start` and ends at `last` at the latest is cut through the fewest branches."""
    return min(range(last, start, -1), key=lambda at: common_depth(nodes[at - 1].guard, nodes[at].guard))


def _crossing(nodes: Sequence[BoundNode], pieces: Sequence[range]) -> dict[Edge, None]:
    """The values that are made in one function and read in another, and those that a node reads many of."""
    home = {nodes[position].node.name: number for number, piece in enumerate(pieces) for position in piece}
    found: dict[Edge, None] = {}
    for number, piece in enumerate(pieces):
        for position in piece:
            reads = nodes[position].reads
            many = len(reads) > MANY_ITEMS
            found.update((e, None) for e in reads if e.node in home and (many or home[e.node] != number))
    return found
