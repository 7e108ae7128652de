"""`StridedSlice` in its full form: Python's slices with `None`, `...` and numbers among them, of which begins and ends
may be known only when the model runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import bool_
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.values import Value

__all__ = ["strided_slice"]

_FAR = 2**62


@dataclass(slots=True)
class _Plan:
    """What the entries of a slice say.

    Attributes:
        entries: Places in begin, end and strides, of those that slice an axis; `axes` has these axes.
        dropped: Those axes of the input that become none.
        added: Places in the result of new axes.
    """

    entries: list[int] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)


def strided_slice(node: Node, x: Value, begin: Value, end: Value, strides: Value) -> Value:
    """The slice: one Slice, then axes are dropped and added."""
    count = _count(node, begin, end, strides)
    plan = _plan(node, x, count)
    if plan.entries:
        if strides.constant is None:
            return _by_fed_strides(node, x, begin, end, strides, plan)
        steps = strides.constant.reshape(-1).astype(np.int64)
        starts = _bounds(node, begin, plan, steps, "begin_mask", first=True)
        ends = _bounds(node, end, plan, steps, "end_mask", first=False)
        starts, ends = _of_dropped(node, plan, starts, ends, begin)
        steps = np.array([1 if a in plan.dropped else steps[e] for e, a in zip(plan.entries, plan.axes, strict=True)])
        nothing = all(steps == 1) and _is_all(starts, 0) and _is_all(ends, _FAR)
        if not nothing:
            x = node.make("Slice", x, starts, ends, node.const(plan.axes), node.const(steps))
    return node.unsqueezed(node.squeezed(x, plan.dropped), plan.added)


def _by_fed_strides(node: Node, x: Value, begin: Value, end: Value, strides: Value, plan: _Plan) -> Value:
    """A slice whose direction is known only when the model runs: it must say itself where it begins and ends."""
    if plan.dropped or plan.added or int(node.attr("begin_mask")) or int(node.attr("end_mask")):
        node.refuse("strides that are not constant")
    return node.make("Slice", x, node.vector(begin), node.vector(end), node.const(plan.axes), node.vector(strides))


def _is_all(bounds: Value, value: int) -> bool:
    return bounds.constant is not None and bool((bounds.constant == value).all())


def _count(node: Node, *vectors: Value) -> int:
    for vector in vectors:
        if vector.dims is not None and vector.dims[0] is not None:
            return vector.dims[0]
    node.refuse("a slice of a number of axes that is not known")


def _plan(node: Node, x: Value, count: int) -> _Plan:
    masks = {name: int(node.attr(f"{name}_mask")) for name in ("ellipsis", "new_axis", "shrink_axis")}
    new = masks["new_axis"] & ~masks["ellipsis"]
    plan, axis, place = _Plan(), 0, 0
    for i in range(count):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            later = sum(not new & (1 << j) for j in range(i + 1, count))
            if i + 1 == count:
                break
            skipped = node.rank(x) - axis - later
            axis += skipped
            place += skipped
        elif new & bit:
            plan.added.append(place)
            place += 1
        else:
            plan.entries.append(i)
            plan.axes.append(axis)
            if masks["shrink_axis"] & bit:
                plan.dropped.append(axis)
            else:
                place += 1
            axis += 1
    return plan


def _bounds(node: Node, given: Value, plan: _Plan, steps: Array, mask: str, first: bool) -> Value:
    """Where slices begin or end; what is masked begins and ends with the axis."""
    bits = int(node.attr(mask))
    masked = np.array([bool(bits & (1 << i)) for i in plan.entries])
    forwards = steps[plan.entries] > 0
    outermost = np.where(forwards == first, 0 if first else -_FAR, _FAR)
    if not first:
        outermost = np.where(forwards, _FAR, -_FAR)
    if given.constant is not None:
        values = given.constant.reshape(-1)[plan.entries].astype(np.int64)
        return node.const(np.where(masked, outermost, values))
    vector = node.vector(given)
    if plan.entries != list(range(given.dims[0] if given.dims and given.dims[0] is not None else -1)):
        vector = node.make("Gather", vector, node.const(plan.entries))
    if not masked.any():
        return vector
    return node.make("Where", _flags(node, masked), node.const(outermost), vector)


def _of_dropped(node: Node, plan: _Plan, starts: Value, ends: Value, begin: Value) -> tuple[Value, Value]:
    """An axis that is dropped is cut to the one element where it begins, whatever the masks say."""
    flags = np.array([axis in plan.dropped for axis in plan.axes])
    if not flags.any():
        return starts, ends
    if begin.constant is not None:
        own = begin.constant.reshape(-1)[plan.entries].astype(np.int64)
        after = np.where(own == -1, _FAR, own + 1)
        first = node.make("Where", _flags(node, flags), node.const(own), starts)
        if starts.constant is not None:
            first = node.const(np.where(flags, own, starts.constant))
        if ends.constant is not None:
            return first, node.const(np.where(flags, after, ends.constant))
        return first, node.make("Where", _flags(node, flags), node.const(after), ends)
    given = node.make("Gather", node.vector(begin), node.const(plan.entries))
    last = node.make("Equal", given, node.const(-1))
    beyond = node.make("Where", last, node.const(_FAR), node.make("Add", given, node.const(1)))
    which = _flags(node, flags)
    return node.make("Where", which, given, starts), node.make("Where", which, beyond, ends)


def _flags(node: Node, flags: Array) -> Value:
    return node.const(flags, bool_)
