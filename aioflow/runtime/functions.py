"""Division of a strand's text into functions.

Python compiles a text in one call during which no other thread runs, about 30 µs per node. So no function has more than
some dozens of nodes, and each is compiled separately. A value that crosses functions has a slot in a list that all of
them receive. Its name in the text is `s[3]` instead of `v7`, and it is dropped at the same point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.compiler.ir import Edge
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.branches import common_depth
from aioflow.runtime.tasks import Task

_LONGEST: Final = 128  # names per function if there are several; such a function compiles in about 2 ms
# Names in a single function: the calls of several functions cost a short strand relatively more than a long one.
_ALONE: Final = 256
MANY_ITEMS: Final = 32  # inputs of a node that are not written out one by one


@dataclass(frozen=True, slots=True)
class Cuts:
    """A task divided into functions.

    Attributes:
        sections: For each section of the task its functions, each as the positions of its nodes.
        slots: The slots of values in the list: first the task's outputs, in order; last its inputs.
    """

    sections: tuple[tuple[range, ...], ...]
    slots: Mapping[Edge, int]


def cut(task: Task, sections: Sequence[range], shared: Sequence[Edge] = (), always: bool = False) -> Cuts | None:
    """Return the functions of a task, or None if it is short enough for one.

    Args:
        task: The task.
        sections: Ranges of positions, together all nodes of the task; a function never spans two of them.
        shared: Values that are read outside of all functions, besides the task's inputs and outputs.
        always: Whether to divide a task that is short enough for one function, too.
    """
    if not always and _names(task) <= _ALONE:
        return None
    pieces = tuple(tuple(_pieces(task.nodes, section)) for section in sections)
    given = dict.fromkeys(task.inputs)
    crossing = _crossing(task.nodes, [piece for section in pieces for piece in section])
    made = [e for e in dict.fromkeys((*task.outputs, *shared, *crossing)) if e not in given]
    return Cuts(pieces, {edge: slot for slot, edge in enumerate((*made, *given))})


def takes_long(task: Task) -> bool:
    """Return whether compiling the task takes longer than an event loop may be blocked."""
    return _names(task) > _LONGEST


def _names(task: Task) -> int:
    """Return the approximate number of names in the text of a task."""
    inside = sum(2 + len(b.node.inputs) + len(b.node.outputs) for b in task.nodes)
    return inside + len(task.inputs) + len(task.outputs)


def _pieces(nodes: Sequence[BoundNode], section: range) -> Iterator[range]:
    """Yield the functions of a section, without splitting a branch that fits into one function."""
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
    """Return the end of a function from `start` to at most `last` that splits the fewest branches."""
    return min(range(last, start, -1), key=lambda at: common_depth(nodes[at - 1].guard, nodes[at].guard))


def _crossing(nodes: Sequence[BoundNode], pieces: Sequence[range]) -> dict[Edge, None]:
    """Return the values that are read in another function than computed in, and those of nodes with many inputs."""
    home = {nodes[position].node.name: number for number, piece in enumerate(pieces) for position in piece}
    found: dict[Edge, None] = {}
    for number, piece in enumerate(pieces):
        for position in piece:
            reads = nodes[position].reads
            many = len(reads) > MANY_ITEMS
            found.update((e, None) for e in reads if e.node in home and (many or home[e.node] != number))
    return found
