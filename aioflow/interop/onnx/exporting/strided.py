"""`StridedSlice` in its full form: Python's slices with `None`, `...` and numbers among them.

Begins and ends may be known only when the model runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from aioflow.graph.dtypes import bool_, int64
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.values import ModelValue

_FAR = 2**62


@dataclass(slots=True)
class _Plan:
    """The effect of each entry of a slice.

    Attributes:
        entries: Positions in begin, end and strides of the entries that slice an axis.
        axes: Axes of the input that these entries slice.
        dropped: Axes of the input that an index removes.
        added: Positions of new axes in the result.
    """

    entries: list[int] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)


def strided_slice(
    node: ExportedNode, x: ModelValue, begin: ModelValue, end: ModelValue, strides: ModelValue
) -> ModelValue:
    """Return the slice: one Slice node, after which axes are dropped and added."""
    plan = _plan(node, x, _count(node, begin, end, strides))
    if plan.entries:
        x = _sliced(node, x, plan, *(_entries(node, vector, plan) for vector in (begin, end, strides)))
    return node.unsqueezed(node.squeezed(x, plan.dropped), plan.added)


def _sliced(
    node: ExportedNode, x: ModelValue, plan: _Plan, begin: ModelValue, end: ModelValue, strides: ModelValue
) -> ModelValue:
    """Return the input sliced along the axes of the entries."""
    flags = node.const([axis in plan.dropped for axis in plan.axes], bool_)
    zero, far = node.const(0), node.const(_FAR)
    forwards = _of_two(node, "Greater", strides, zero)
    # A masked begin is the first element in the direction of the step, a masked end is beyond the last.
    starts = _chosen(node, _masked(node, plan, "begin_mask"), _chosen(node, forwards, zero, far), begin)
    ends = _chosen(node, _masked(node, plan, "end_mask"), _chosen(node, forwards, far, node.const(-_FAR)), end)
    ends = _chosen(node, _before_first(node, x, plan, starts, forwards), far, ends)
    # A dropped axis is sliced to the one element at its begin. The masks do not apply to it. For begin -1 the end would
    # be 0, which is before the element.
    after = _of_two(node, "Add", begin, node.const(1))
    starts = _chosen(node, flags, begin, starts)
    ends = _chosen(node, flags, _chosen(node, _of_two(node, "Equal", begin, node.const(-1)), far, after), ends)
    steps = _chosen(node, flags, node.const(1), strides)
    if _is_all(steps, 1) and _is_all(starts, 0) and _is_all(ends, _FAR):
        return x
    starts, ends, steps = (_whole(node, plan, v) for v in (starts, ends, steps))
    return node.make("Slice", x, starts, ends, node.const(plan.axes), steps)


def _before_first(
    node: ExportedNode, x: ModelValue, plan: _Plan, starts: ModelValue, forwards: ModelValue
) -> ModelValue:
    """Return flags of the slices that go backward from before the first element.

    `StridedSlice` returns no elements for them. ONNX clamps the start and would return the first one.
    """
    if _is_all(forwards, True) or (starts.constant is not None and bool((starts.constant >= 0).all())):
        return node.const(False, bool_)
    parts = [node.size_of(x, axis) if x.rank is not None else node.const([0]) for axis in plan.axes]
    if x.rank is None:
        sizes = node.make("Gather", node.shape_of(x), node.const(plan.axes))
    elif all(part.constant is not None for part in parts):
        sizes = node.const([int(part.constant[0]) for part in parts if part.constant is not None])
    else:
        sizes = node.joined(parts)
    outside = _of_two(node, "Less", _of_two(node, "Add", starts, sizes), node.const(0))
    return _of_two(node, "And", outside, _inverse(node, forwards))


def _count(node: ExportedNode, *vectors: ModelValue) -> int:
    for vector in vectors:
        if vector.dims is not None and vector.dims[0] is not None:
            return vector.dims[0]
    node.refuse("a slice of a number of axes that is not known")


def _plan(node: ExportedNode, x: ModelValue, count: int) -> _Plan:
    masks = {name: int(node.attr(f"{name}_mask")) for name in ("ellipsis", "new_axis", "shrink_axis")}
    # The ellipsis bit wins over the others, as in TensorFlow.
    new = masks["new_axis"] & ~masks["ellipsis"]
    plan, axis, place = _Plan(), 0, 0
    for i in range(count):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            # Entries after the ellipsis that use up an axis of the input.
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


def _entries(node: ExportedNode, vector: ModelValue, plan: _Plan) -> ModelValue:
    """Return those begins, ends or strides that slice an axis."""
    if vector.constant is not None:
        return node.const(vector.constant.reshape(-1)[plan.entries].astype(np.int64))
    given = node.vector(vector)
    count = vector.dims[0] if vector.dims else None
    return given if plan.entries == list(range(count or 0)) else node.make("Gather", given, node.const(plan.entries))


def _masked(node: ExportedNode, plan: _Plan, mask: str) -> ModelValue:
    bits = int(node.attr(mask))
    return node.const([bool(bits & (1 << i)) for i in plan.entries], bool_)


# -- elementwise work, folded where the operands are constant ----------------------------------------------------------

_FUNCTIONS: Final = {"Add": np.add, "And": np.logical_and, "Equal": np.equal, "Greater": np.greater, "Less": np.less}


def _of_two(node: ExportedNode, op: str, x: ModelValue, y: ModelValue) -> ModelValue:
    if x.constant is not None and y.constant is not None:
        return _as_const(node, _FUNCTIONS[op](x.constant, y.constant))
    return node.make(op, x, y)


def _inverse(node: ExportedNode, flags: ModelValue) -> ModelValue:
    return node.make("Not", flags) if flags.constant is None else _as_const(node, ~flags.constant)


def _chosen(node: ExportedNode, flags: ModelValue, x: ModelValue, y: ModelValue) -> ModelValue:
    if _is_all(flags, False):
        return y
    if flags.constant is not None and x.constant is not None and y.constant is not None:
        return _as_const(node, np.where(flags.constant, x.constant, y.constant))
    return node.make("Where", flags, x, y)


def _as_const(node: ExportedNode, array: npt.ArrayLike) -> ModelValue:
    return node.const(array, bool_ if np.asarray(array).dtype == bool else int64)


def _whole(node: ExportedNode, plan: _Plan, numbers: ModelValue) -> ModelValue:
    """Return one number per axis, also if all are the same."""
    if numbers.constant is None:
        return numbers
    # Folding may leave a scalar, while Slice requires vectors of one length.
    return node.const(np.broadcast_to(numbers.constant, len(plan.axes)))


def _is_all(values: ModelValue, value: int) -> bool:
    return values.constant is not None and bool((values.constant == value).all())
