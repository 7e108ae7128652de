"""Slices, and elements selected by indices.

ONNX counts from the end and clamps like NumPy, and so does TensorFlow in slices. A model may accept indices that
TensorFlow rejects (negative ones in `Gather`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from aioflow.graph import dtypes
from aioflow.graph.dtypes import bool_, int64
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue

_FAR = 2**62  # larger than any size


@exporter("StridedSlice")
def strided(node: ExportedNode, x: ModelValue, begin: ModelValue, end: ModelValue, strides: ModelValue) -> ModelValue:
    """Export a slice with the semantics of Python's, including new and dropped axes."""
    return strided_slice(node, x, begin, end, strides)


@exporter("Slice")
def plain_slice(node: ExportedNode, x: ModelValue, begin: ModelValue, size: ModelValue) -> ModelValue:
    """Export `size` elements of each axis from `begin` on; -1 stands for all remaining ones."""
    start, count = node.vector(begin), node.vector(size)
    if start.constant is not None and count.constant is not None:
        pairs = zip(start.constant.tolist(), count.constant.tolist(), strict=True)
        return node.make("Slice", x, start, node.const([_FAR if n == -1 else b + n for b, n in pairs]))
    rest = node.make("Equal", count, node.const(-1))
    return node.make("Slice", x, start, node.make("Where", rest, node.const(_FAR), node.make("Add", start, count)))


@exporter("Gather")
def gather(node: ExportedNode, x: ModelValue, indices: ModelValue) -> ModelValue:
    """Export rows by index."""
    return node.make("Gather", x, indices, axis=0)


@exporter("GatherV2")
def gather_v2(node: ExportedNode, x: ModelValue, indices: ModelValue, axis: ModelValue) -> ModelValue:
    """Export elements of an axis by index, separately for each position in the batch axes."""
    at = int(node.known(axis, "an axis that is not constant").reshape(-1)[0])
    batch = int(node.attr("batch_dims"))
    if batch == 0:
        return node.make("Gather", x, indices, axis=at)
    rank, own = node.rank(x), node.rank(indices)
    at %= rank
    batch %= own
    if batch == 0:
        return node.make("Gather", x, indices, axis=at)
    # GatherND requires the batch axes first, followed by the gathered axis.
    order = [*range(batch), at, *(a for a in range(batch, rank) if a != at)]
    taken = node.make(
        "GatherND", node.transposed(x, order), node.int64(node.unsqueezed(indices, [own])), batch_dims=batch
    )
    more = own - batch  # axes added by the indices, which now follow the batch axes
    before = at - batch
    back = [
        *range(batch),
        *range(batch + more, batch + more + before),
        *range(batch, batch + more),
        *range(batch + more + before, rank - 1 + more),
    ]
    return node.transposed(taken, back)


@exporter("GatherNd")
def gather_nd(node: ExportedNode, x: ModelValue, indices: ModelValue) -> ModelValue:
    """Export slices by index vectors."""
    _check_policy(node)
    return node.make("GatherND", x, node.int64(indices))


def _check_policy(node: ExportedNode) -> None:
    if node.attr("bad_indices_policy", "") not in ("", "DEFAULT", "ERROR"):
        node.refuse(f"bad_indices_policy={node.attr('bad_indices_policy')!r}")


@exporter("ScatterNd")
def scatter_nd(node: ExportedNode, indices: ModelValue, updates: ModelValue, shape: ModelValue) -> ModelValue:
    """Export updates of a tensor of zeros; updates of the same position add up."""
    _check_policy(node)
    zeros = node.make("Expand", node.const(0, updates.dtype), node.vector(shape))
    return _scattered(node, zeros, indices, updates, "add")


def _updating(op: str, reduction: str | None) -> None:
    @exporter(op)
    def made(node: ExportedNode, x: ModelValue, indices: ModelValue, updates: ModelValue) -> ModelValue:
        _check_policy(node)
        # ONNX's reductions have no subtraction.
        change = node.make("Neg", updates) if node.op == "TensorScatterSub" else updates
        return _scattered(node, x, indices, change, reduction)


_updating("TensorScatterUpdate", None)
_updating("TensorScatterAdd", "add")
_updating("TensorScatterSub", "add")
_updating("TensorScatterMax", "max")
_updating("TensorScatterMin", "min")


def _scattered(
    node: ExportedNode, x: ModelValue, indices: ModelValue, updates: ModelValue, reduction: str | None
) -> ModelValue:
    # ONNX combines no bools or strings.
    if reduction is not None and (x.dtype.is_bool or x.dtype is dtypes.string):
        node.refuse(f"updates of {x.dtype.name} that are combined")
    return node.make("ScatterND", x, node.int64(indices), updates, reduction=reduction)


@exporter("Where")
def where(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the indices of the true elements, one row each."""
    given = x if x.dtype.is_bool else node.cast(x, dtypes.bool_)
    # NonZero has one row per axis, TensorFlow one per element.
    return node.make("Transpose", node.make("NonZero", given), perm=[1, 0])


@exporter("LowerBound", "UpperBound")
def bound(node: ExportedNode, ordered: ModelValue, values: ModelValue) -> ModelValue:
    """Export the number of elements in each ordered row that are less than a value, or for UpperBound not greater."""
    # [rows, values, 1] against [rows, 1, elements]: each value is compared with all elements of its row.
    columns, own = node.unsqueezed(values, [2]), node.unsqueezed(ordered, [1])
    before = node.make("Less" if node.op == "LowerBound" else "LessOrEqual", own, columns)
    return node.make("ReduceSum", node.int64(before), node.const([2]), keepdims=0)


@exporter("UnravelIndex")
def unravel_index(node: ExportedNode, indices: ModelValue, dims: ModelValue) -> ModelValue:
    """Export the positions of flat indices along each axis, one row per axis."""
    sizes = node.vector(dims)
    # ONNX has no cumulative product: sum the logarithms in float64, and round.
    whole = node.make(
        "CumSum", node.make("Log", node.cast(sizes, dtypes.float64)), node.const(0), exclusive=1, reverse=1
    )
    steps = node.int64(node.make("Round", node.make("Exp", whole)))
    flat = node.int64(indices)
    if node.rank(indices) == 0:
        return node.make("Mod", node.make("Div", flat, steps), sizes)
    columns = [node.unsqueezed(v, [1]) for v in (steps, sizes)]
    return node.make("Mod", node.make("Div", node.unsqueezed(flat, [0]), columns[0]), columns[1])


@exporter("SparseToDense")
def sparse_to_dense(
    node: ExportedNode, indices: ModelValue, shape: ModelValue, values: ModelValue, default: ModelValue
) -> ModelValue:
    """Export a tensor with values at given positions and a default value elsewhere."""
    if indices.rank is None or values.rank is None:
        node.refuse("indices of unknown rank")
    places = node.reshaped(indices, [-1, 1]) if indices.rank < 2 else indices
    blank = node.make("Expand", node.scalar(default), node.vector(shape))
    count = node.make("Shape", places, start=0, end=1)
    # A single value may stand for all positions.
    updates = node.make("Expand", values, count)
    return node.make("ScatterND", blank, node.int64(places), updates)


@exporter("OneHot")
def one_hot(node: ExportedNode, indices: ModelValue, depth: ModelValue, on: ModelValue, off: ModelValue) -> ModelValue:
    """Export a tensor with one value at each index and another elsewhere; an index out of range sets no element."""
    rank = node.rank(indices)
    axis = int(node.attr("axis"))
    axis = rank if axis == -1 else axis
    places = node.make("Range", node.const(0), node.int64(node.scalar(depth)), node.const(1))
    # Not ONNX's OneHot: it counts negative indices from the end.
    shaped = node.unsqueezed(places, [a for a in range(rank + 1) if a != axis])
    chosen = node.make("Equal", node.make("Unsqueeze", node.int64(indices), node.const([axis])), shaped)
    return node.make("Where", chosen, node.scalar(on), node.scalar(off))


@exporter("Reverse", "ReverseV2")
def reverse(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export a reversal along axes, given as a list, or as a bool vector that is true for them."""
    known = node.known(axes, "axes that are not constant").reshape(-1)
    chosen = [i for i, flag in enumerate(known) if flag] if axes.dtype.is_bool else [int(a) for a in known]
    return _reversed(node, x, chosen)


def _reversed(node: ExportedNode, x: ModelValue, axes: list[int]) -> ModelValue:
    if not axes:
        return x
    # With step -1, only an end far below zero includes element 0.
    ones = [node.const([n] * len(axes)) for n in (-1, -_FAR)]
    return node.make("Slice", x, *ones, node.const(axes), node.const([-1] * len(axes)))


@exporter("ReverseSequence")
def reverse_sequence(node: ExportedNode, x: ModelValue, lengths: ModelValue) -> ModelValue:
    """Export the reversal of the first elements of every sequence."""
    time, batch, rank = int(node.attr("seq_dim")), int(node.attr("batch_dim")), node.rank(x)
    time, batch = time % rank, batch % rank
    # ONNX requires these two axes to be the first two, in either order.
    order = [time, batch, *(a for a in range(rank) if a not in (time, batch))]
    moved = node.transposed(x, order) if {time, batch} != {0, 1} else x
    if moved is not x:
        time, batch = 0, 1
    made = node.make("ReverseSequence", moved, node.int64(lengths), time_axis=time, batch_axis=batch)
    return made if moved is x else node.transposed(made.of(moved.dims), [order.index(a) for a in range(rank)])


@exporter("Roll")
def roll(node: ExportedNode, x: ModelValue, shift: ModelValue, axis: ModelValue) -> ModelValue:
    """Export a cyclic shift along axes."""
    shifts = node.known(shift, "a shift that is not constant").reshape(-1)
    axes = node.known(axis, "an axis that is not constant").reshape(-1)
    for by, at in zip(shifts, axes, strict=True):
        place = int(at) % node.rank(x)
        size = None if x.dims is None else x.dims[place]
        cut = -int(by) if size is None else -int(by) % max(size, 1)
        if size is None and cut:
            count = node.size_of(x, place)
            # ONNX's Mod has the sign of the divisor, so the start is within the axis; Max keeps an empty axis from a
            # division by 0.
            start = node.make("Mod", node.const([cut]), node.make("Max", count, node.const([1])))
        else:
            start = node.const([cut])
        at_axis = node.const([place])
        # A shift by n moves the last n elements to the front.
        tail = node.make("Slice", x, start, node.const([_FAR]), at_axis)
        head = node.make("Slice", x, node.const([0]), start, at_axis)
        x = node.make("Concat", tail, head, axis=place).of(x.dims)
    return x


# ── `StridedSlice` in its full form: Python's slices with `None`, `...` and numbers among them ────────────────────────
#
# Begins and ends may be known only when the model runs.


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


# ── elementwise work, folded where the operands are constant ──────────────────────────────────────────────────────────

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
