"""Runs of nodes in a strand that become one call, where their kernels can be joined (`kernels/joinable.py`).

Only the last value of a run may be read by other nodes, or any values if the run consists of small nodes. All other
values are then unobservable. The text of the nodes is kept: it runs if the call returns None, which requests separate
computation, and in the form with a probe.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from aioflow.compiler.ir import Edge
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect
from aioflow.kernels import joinable
from aioflow.kernels.joinable import ConstantArgument, Joinable, JoinedMember, Joiner, MemberArgument, body_alone
from aioflow.kernels.registry import KernelBody
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.tasks import Task


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A run of nodes as one call.

    Attributes:
        nodes: The positions of the nodes.
        inputs: The values that they read from outside, except constants.
        outputs: The values that are read outside.
        call: Function from the inputs to the outputs, or to None if the nodes must be computed separately.
    """

    nodes: range
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    call: joinable.JoinedBody


def shortcuts(task: Task, constants: Mapping[Edge, Value]) -> list[Shortcut]:
    """Return the runs of a task that become one call, in order."""
    nodes = task.nodes
    if not any(isinstance(b.call, Joinable) for b in nodes):
        return []
    ends = _ends(task)
    may_be = [_may_be_member(b, constants, ends) for b in nodes]
    found: dict[int, Shortcut] = {}
    for is_small in (False, True):
        joiners = [_joiner(b, is_small) if may else None for b, may in zip(nodes, may_be, strict=True)]
        for run in _small_runs(joiners) if is_small else _runs(nodes, joiners, may_be, ends):
            made = _joined(nodes, run, joiners[run.start], constants, ends)
            if made is not None:
                found[run.start] = made
                may_be[run.start : run.stop] = [False] * len(run)
    return [found[start] for start in sorted(found)]


def _joiner(b: BoundNode, is_small: bool) -> Joiner | None:
    return b.call.join if isinstance(b.call, Joinable) and b.call.is_small == is_small else None


def _small_runs(joiners: Sequence[Joiner | None]) -> Iterator[range]:
    """Yield the longest runs of adjacent nodes with one joiner."""
    for join, adjacent in groupby(range(len(joiners)), joiners.__getitem__):
        positions = list(adjacent)
        if join is not None:
            yield range(positions[0], positions[-1] + 1)


def _runs(
    nodes: Sequence[BoundNode], joiners: Sequence[Joiner | None], may_be: Sequence[bool], ends: Mapping[Edge, float]
) -> Iterator[range]:
    """Yield the longest runs that begin and end with joinable nodes and have one value that is read later."""
    if any(joiners):
        for is_run, positions in groupby(range(len(nodes)), may_be.__getitem__):
            if is_run:
                yield from _within(nodes, joiners, ends, list(positions))


def _within(
    nodes: Sequence[BoundNode],
    joiners: Sequence[Joiner | None],
    ends: Mapping[Edge, float],
    positions: Sequence[int],
) -> Iterator[range]:
    """Yield the longest runs among adjacent possible members, in linear time."""
    lasts = [position for position in positions if joiners[position] is not None]
    # For each of `lasts`, the first node of the longest run that ends there and has only one value that is read later.
    starts: list[int] = []
    # Values by the positions (made at, read last at). A run must not contain one that is read after the run.
    open_values: list[tuple[int, float]] = []
    for position in positions:
        while open_values and open_values[-1][1] <= position:
            open_values.pop()
        if joiners[position] is not None:
            starts.append(open_values[-1][0] + 1 if open_values else positions[0])
        open_values.append((position, ends.get(Edge(nodes[position].node.name, 0), -1.0)))
    earliest = list(accumulate(reversed(starts), min))[::-1]  # the minimum over each node and those after it
    behind = 0
    for start in lasts:
        last = lasts[bisect_right(earliest, start) - 1]
        if start >= behind and last > start:
            yield range(start, last + 1)
            behind = last + 1


def _ends(task: Task) -> dict[Edge, float]:
    """Return the position of the last read of each value."""
    ends: dict[Edge, float] = {edge: position for position, b in enumerate(task.nodes) for edge in b.reads}
    return ends | dict.fromkeys(task.outputs, math.inf)


def _may_be_member(b: BoundNode, constants: Mapping[Edge, Value], ends: Mapping[Edge, float]) -> bool:
    """Return whether a node only computes an array from others, so that it may be computed twice or not at all.

    Of several outputs only the first may be read.
    """
    kernel, node = b.kernel, b.node
    if type(b) is not BoundNode or b.guard or b.claims or not node.outputs:
        return False
    if any(Edge(node.name, port) in ends for port in range(1, len(node.outputs))):
        return False
    if traits_of(node.op).effect is not Effect.NONE or node.outputs[0].dtype.np_dtype.hasobject:
        return False
    if kernel.is_async or kernel.retains or kernel.sends or kernel.takes_step or kernel.elastic or kernel.takes:
        return False
    # A converter's result is known in advance only for a constant.
    return all(e in constants for a in b.arguments if a.convert is not None for e in a.sources)


def _joined(
    nodes: Sequence[BoundNode],
    run: range,
    join: Joiner | None,
    constants: Mapping[Edge, Value],
    ends: Mapping[Edge, float],
) -> Shortcut | None:
    members = nodes[run.start : run.stop]
    own = {b.node.name for b in members}
    reads = dict.fromkeys(e for b in members for e in b.node.inputs if e.node not in own and e not in constants)
    made = [Edge(b.node.name, 0) for b in members]
    outputs = [i for i, edge in enumerate(made) if ends.get(edge, -1) >= run.stop]
    if join is None or not outputs:
        return None
    numbers = {edge: number for number, edge in enumerate((*reads, *made))}
    call = join([_member(b, join, numbers, constants) for b in members], len(reads), outputs)
    return None if call is None else Shortcut(run, tuple(reads), tuple(made[i] for i in outputs), call)


def _member(b: BoundNode, join: Joiner, numbers: Mapping[Edge, int], constants: Mapping[Edge, Value]) -> JoinedMember:
    arguments: list[MemberArgument] = []
    for argument in b.arguments:
        items: list[int | ConstantArgument] = []
        for edge in argument.sources:
            if edge not in constants:
                items.append(numbers[edge])
            else:
                value = constants[edge]
                items.append(ConstantArgument(value if argument.convert is None else argument.convert(value)))
        arguments.append(tuple(items) if argument.is_sequence else items[0])
    part = b.call.part if isinstance(b.call, Joinable) and b.call.join is join else None
    call = body_alone(b.call)
    call = _first_of(call) if b.unpacks else call
    return JoinedMember(call, part, tuple(arguments), b.kernel.fresh, b.kernel.takes_out)


def _first_of(call: KernelBody) -> KernelBody:
    """Return a function that returns the first of several outputs."""
    return lambda *args: call(*args)[0]
