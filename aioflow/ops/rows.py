"""Rules that propagate batch rows through ops: see `graph.rows`.

An op definition names its rule, such as `rows=rows.reduced()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from aioflow.graph.rows import (
    FIXED,
    NO_RANK,
    OPEN,
    OTHER,
    SIZED,
    Count,
    Open,
    RowContext,
    RowDependence,
    RowRule,
    Rows,
    aligned,
    as_value,
    each_element,
    passed,
)
from aioflow.memory.values import Array
from aioflow.ops.array.strided import spelled_out, strided_index
from aioflow.ops.linalg.einsum import parse_equation

__all__ = [
    "apart_from",
    "batch_norm",
    "broadcast",
    "by_segments",
    "by_values",
    "chosen",
    "concatenated",
    "counted",
    "each_element",
    "einsum",
    "examples",
    "expanded",
    "filled",
    "first_axes",
    "first_axis",
    "fixed",
    "gathered",
    "gathered_nd",
    "last_axes",
    "like",
    "looked_up",
    "matrix_product",
    "matrix_products",
    "mixed",
    "of_shapes",
    "of_size",
    "one_hot",
    "packed",
    "padded",
    "partitioned",
    "passed",
    "reduced",
    "reshaped",
    "reversed_parts",
    "sliced",
    "split_along",
    "squeezed",
    "strided",
    "tiled",
    "transposed",
    "transposed_convolution",
    "unpacked",
]

_MIXES: Final = "computes with several rows"
_SEVERAL: Final = "has several inputs with rows"
_OPEN_AXES: Final = "works along axes that are unknown before the step runs"


def _first_axis(ctx: RowContext) -> Rows:
    found = ctx.alone()
    if found is None:
        return ctx.unknown("has rows in an input other than the first")
    return ctx.unknown("has rows along an axis other than the first") if found.axis else found


def _first_axes(ctx: RowContext) -> Rows:
    found = ctx.inputs[0]
    same = ctx.rows == [0, 1] and ctx.inputs[1] == found and not found.axis and found.each is not None
    return found if same else ctx.unknown("does not have the rows of all its inputs along their first axis")


def _fixed(ctx: RowContext) -> Rows:
    return ctx.inputs[-1] if ctx.inputs[-1].kind is RowDependence.SIZED and ctx.rank(-1) in (None, 0) else FIXED


def _mixed(ctx: RowContext) -> Rows:
    return ctx.refuted(_MIXES)


def _by_segments(ctx: RowContext) -> Rows:
    """Apply the rule of SegmentSum, which sums along the first axis."""
    found = ctx.alone()
    return found if found is not None and found.axis else _mixed(ctx)


def _counted(ctx: RowContext) -> Rows:
    """Apply the rule of DenseBincount, which counts each row of a matrix or a whole vector.

    Weights have the shape of the first input, or are empty.
    """
    found, weights = ctx.inputs[0], ctx.dims(2)
    if not found.is_rows or found.axis or ctx.rank(0) != 2:
        return _mixed(ctx)
    alone = ctx.rows == [0] and weights is not None and 0 in weights
    together = ctx.rows == [0, 2] and ctx.inputs[2] == found and found.each is not None
    return found if alone or together else ctx.unknown("has weights whose shape differs or is unknown")


def _partitioned(ctx: RowContext) -> Rows:
    """Apply the rule of DynamicPartition."""
    # Unknown rather than refuted: DynamicStitch may put the parts together to rows again.
    return ctx.unknown("returns parts whose sizes depend on values")


def _by_values(ctx: RowContext) -> Rows:
    return ctx.refuted("returns a result whose size depends on values")


def _chosen(ctx: RowContext) -> Rows | list[Rows]:
    """Apply the rule of Select, whose condition may be a vector with one element per row."""
    if len(ctx.rows) == len(ctx.inputs) and all(ctx.inputs[i] == ctx.inputs[0] for i in ctx.rows):
        return ctx.inputs[0]
    if ctx.rank(0) == ctx.rank(1):
        return each_element.rule(ctx)
    return ctx.unknown("selects by a condition of a different rank")


def _batch_norm(ctx: RowContext) -> list[Rows]:
    """Apply the rule of FusedBatchNorm.

    In training it normalizes with the statistics of the batch, otherwise with fixed ones.
    """
    found = ctx.refuted("normalizes with the statistics of the batch (is_training=True)")
    if not ctx.attrs["is_training"]:
        found = _first_axis(ctx)
    return [found, *[FIXED if found.is_rows else found] * (len(ctx.op.outputs) - 1)]


def _looked_up(ctx: RowContext) -> Rows:
    """Apply the rule of a table lookup."""
    return ctx.alone(1) or ctx.unknown(_SEVERAL)


def _examples(ctx: RowContext) -> list[Rows]:
    """Apply the rule of ParseExample. Its sparse outputs are as wide as the widest example of the batch."""
    found = ctx.alone() or ctx.unknown(_SEVERAL)
    shapes = ctx.attrs["dense_shapes"]
    wide = ctx.unknown("pads rows to the widest of the batch")
    dense = [wide if dims is None or None in dims else found for dims in shapes]
    return [wide] * (len(ctx.op.outputs) - len(dense)) + dense


first_axis: Final = RowRule(_first_axis)  # rows along axis 0 of the first input are rows of each output
first_axes: Final = RowRule(_first_axes)  # likewise, with rows in both of the first two inputs
chosen: Final = RowRule(_chosen)
fixed: Final = RowRule(_fixed, always=True)  # the result does not depend on the rows
mixed: Final = RowRule(_mixed)
batch_norm: Final = RowRule(_batch_norm)
looked_up: Final = RowRule(_looked_up)
examples: Final = RowRule(_examples)
by_segments: Final = RowRule(_by_segments)
by_values: Final = RowRule(_by_values)
counted: Final = RowRule(_counted)
partitioned: Final = RowRule(_partitioned)


def apart_from(axes: Callable[[RowContext], Sequence[int] | None], index: int = 0, refuses: bool = True) -> RowRule:
    """Return the rule of ops that work along some axes of one input and keep its rank: other axes keep their rows.

    Args:
        axes: Returns the axes; None if they are unknown.
        index: The position of the input.
        refuses: Whether rows along these axes are mixed, rather than in an unknown state.
    """

    def rule(ctx: RowContext) -> Rows:
        state, rank, along = ctx.alone(index), ctx.rank(index), axes(ctx)
        if state is None:
            return ctx.unknown(_SEVERAL)
        if along is None or rank is None:
            return ctx.unknown(_OPEN_AXES)
        if state.axis not in [axis % rank for axis in along if -rank <= axis < rank]:
            return state
        return ctx.refuted(_MIXES) if refuses else ctx.unknown("works along the axis of the rows")

    return RowRule(rule)


def last_axes(count: int) -> RowRule:
    """Return the rule of ops that work along the last `count` axes: see `apart_from`."""
    return apart_from(lambda ctx: range(-count, 0))


def split_along(value: int, axis: int) -> RowRule:
    """Return the rule of Split, given the indices of the inputs with the value and the axis."""
    return apart_from(lambda ctx: ctx.ints(axis), value, refuses=False)


def reduced(keep: str = "keep_dims") -> RowRule:
    """Return the rule of reductions along the axes in the second input; `keep` is the attribute that keeps the axes."""

    def rule(ctx: RowContext) -> Rows:
        state, rank, axes = ctx.alone(), ctx.rank(0), ctx.ints(1)
        if state is None or rank is None or axes is None:
            return ctx.unknown(_OPEN_AXES)
        gone = {axis % rank for axis in axes if -rank <= axis < rank}
        if state.axis in gone:
            return ctx.refuted(_MIXES)
        # The axis of the rows moves forward by the axes in front of it that are removed.
        before = 0 if keep and ctx.attrs[keep] else sum(axis < state.axis for axis in gone)
        return ctx.at(state.axis - before, state.each)

    return RowRule(rule)


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _shape_entries(ctx: RowContext, index: int) -> list[Any] | None:
    """Return the shape of an input as elements of a value."""
    state, dims = ctx.inputs[index], ctx.dims(index)
    if dims is None:
        return None
    if state.kind in (RowDependence.FIXED, RowDependence.NOTHING):
        return [OPEN if size is None else size for size in dims]
    if not state.is_rows:
        return [OTHER if size is None else size for size in dims]
    found: list[object] = [OPEN if size is None else size for size in dims]
    found[state.axis] = Count(state.each)
    return found


def _shapes(ctx: RowContext) -> list[Array | None]:
    return [as_value(_shape_entries(ctx, i)) for i in range(len(ctx.inputs))]


def _sizes(ctx: RowContext) -> list[Array | None]:
    entries, value = _shape_entries(ctx, 0), np.empty((), object)
    if entries is None:
        return [None]
    try:
        value[()] = prod(entries)
    except TypeError:  # the product of symbols is unknown
        return [None]
    return [value]


def _of_shape(ctx: RowContext) -> list[Rows]:
    states = ctx.inputs if len(ctx.op.outputs) == len(ctx.inputs) else ctx.inputs[:1]
    found = []
    for i, state in enumerate(states):
        dims = ctx.dims(i)
        if state.kind <= RowDependence.FIXED or (dims is not None and None not in dims):
            found.append(FIXED)
        else:
            found.append(SIZED if state.kind <= RowDependence.ROWS else state)
    return found


def _like(ctx: RowContext) -> Rows:
    """Apply the rule of ZerosLike and OnesLike. If the shape is known, the result does not depend on the input."""
    state, dims = ctx.inputs[0], ctx.dims(0)
    return FIXED if state.kind > RowDependence.FIXED and dims is not None and None not in dims else state


like: Final = RowRule(_like, always=True, values=lambda ctx: [None])
of_shapes: Final = RowRule(_of_shape, always=True, values=_shapes)
of_size: Final = RowRule(_of_shape, always=True, values=_sizes)


def _reshaped(ctx: RowContext) -> Rows:
    state, dims, target = ctx.inputs[0], ctx.dims(0), ctx.entries(1)
    if not state.is_rows or len(ctx.rows) > 1:
        return ctx.unknown("takes its shape from rows") if ctx.rows else SIZED
    if dims is None or target is None:
        return ctx.unknown("reshapes to a shape that is unknown before the step runs")
    target = list(target)
    # Rows stay together if the sizes before their axis are unchanged, apart from sizes of 1.
    axis, place = state.axis, 0
    ahead: list[int | None] = list(dims[:axis])
    while ahead and place < len(target) and isinstance(target[place], int) and target[place] == ahead[0]:
        ahead.pop(0)
        place += 1
    while place < len(target) and isinstance(target[place], int) and target[place] == 1:
        place += 1
    # In front of the rows only sizes of 1 may be left, and the target needs an axis for the rows.
    if any(size != 1 for size in ahead) or place == len(target):
        return ctx.unknown("reshapes so that the elements of a row may be split up")
    return _parted(ctx, place, target[place], target[place + 1 :], dims[axis + 1 :])


def _parted(ctx: RowContext, place: int, head: object, rest: Sequence[Any], inner: Sequence[int | None]) -> Rows:
    """Return the state of a reshaped tensor, given the sizes behind its row axis.

    The target has the size `head` on the row axis, at position `place`, and the sizes `rest` behind it. The input has
    the sizes `inner` behind its row axis.
    """
    each = ctx.inputs[0].each
    if not all(isinstance(size, int | Open) for size in rest):
        return ctx.unknown("reshapes to a shape that is unknown before the step runs")
    if isinstance(head, Count):
        return ctx.at(place, head.each)
    if not isinstance(head, int) or head != -1:
        return ctx.unknown("reshapes so that the elements of a row may be split up")
    if not all(isinstance(size, int) for size in rest):
        return ctx.unknown("reshapes to a shape that is unknown before the step runs")
    # -1 on the row axis: the elements of a row must fill a whole number of target positions.
    known = prod(size for size in inner if size is not None) * (1 if each is None else each)
    size = prod(rest)
    if not size or known % size:
        return ctx.unknown("reshapes so that the elements of a row may be split up")
    return ctx.at(place, None if each is None or None in inner else known // size)


reshaped: Final = RowRule(_reshaped, reads_sizes=True)


def _expanded(ctx: RowContext) -> Rows:
    state, rank, place = ctx.alone(), ctx.rank(0), ctx.ints(1)
    if state is None or rank is None or place is None:
        return ctx.unknown(_OPEN_AXES)
    # A new axis at or before that of the rows moves it back by one.
    return ctx.at(state.axis + (place[0] % (rank + 1) <= state.axis), state.each)


def _squeezed(ctx: RowContext) -> Rows:
    state, rank, axes = ctx.inputs[0], ctx.rank(0), ctx.attrs["squeeze_dims"]
    if rank is None:
        return ctx.unknown(NO_RANK)
    if not axes:
        return ctx.refuted("removes every axis of size 1, including the row axis of a batch of one row")
    gone = {axis % rank for axis in axes}
    if state.axis in gone:
        return ctx.refuted("removes the axis of the rows")
    return ctx.at(state.axis - sum(axis < state.axis for axis in gone), state.each)


def _transposed(ctx: RowContext) -> Rows:
    state, order = ctx.alone(), ctx.ints(1)
    if state is None or order is None:
        return ctx.unknown(_OPEN_AXES)
    rank = len(order)
    return ctx.at([axis % rank for axis in order].index(state.axis), state.each)


expanded: Final = RowRule(_expanded)
squeezed: Final = RowRule(_squeezed)
transposed: Final = RowRule(_transposed)


# ── slices ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_FAR: Final = 10**9  # an upper bound for the rows of a batch


_OPEN_PART: Final = "takes a slice that is unknown before the step runs"


def _part(ctx: RowContext, found: Rows, begin: object, end: object) -> Rows:
    """Return `found` if a slice takes the whole axis of the rows. None stands for no bound."""
    state = ctx.inputs[0]
    if (isinstance(begin, int) and begin) or (isinstance(end, int) and end < _FAR):
        return ctx.refuted("picks some of the rows")
    same = isinstance(end, Count) and end.each == state.each and end.each is not None
    is_all = (begin is None or isinstance(begin, int)) and (end is None or isinstance(end, int) or same)
    return found if is_all else ctx.unknown(_OPEN_PART)


def _bounds(ctx: RowContext, index: int, count: int) -> list[Any]:
    """Return the elements of an input, or `count` symbols if they are unknown."""
    entries = ctx.entries(index)
    return [Open() if ctx.inputs[index].kind <= RowDependence.FIXED else OTHER] * count if entries is None else entries


def _is_same(*sizes: object) -> bool:
    """Return whether sizes, or the bounds of a slice, are the same for every batch."""
    return all(size is None or isinstance(size, int | Open) for size in sizes)


def _sliced(ctx: RowContext) -> Rows:
    state, rank = ctx.inputs[0], ctx.rank(0)
    if not state.is_rows or len(ctx.rows) > 1:
        return ctx.unknown(_OPEN_PART) if ctx.rows else SIZED
    if rank is None:
        return ctx.unknown(NO_RANK)
    parts = list(zip(_bounds(ctx, 1, rank), _bounds(ctx, 2, rank), strict=True))
    begin, size = parts.pop(state.axis)
    found = _part(ctx, state, begin, None if isinstance(size, int) and size == -1 else size)
    return found if all(_is_same(*part) for part in parts) or not found.is_rows else ctx.unknown(_OPEN_PART)


def _strided(ctx: RowContext) -> Rows:
    state, rank, strides = ctx.inputs[0], ctx.rank(0), ctx.ints(3)
    if not state.is_rows or len(ctx.rows) > 1:
        return ctx.unknown(_OPEN_PART) if ctx.rows else SIZED
    if rank is None or strides is None:
        return ctx.unknown(_OPEN_PART)
    begin, end = (_bounds(ctx, i, len(strides)) for i in (1, 2))
    axis = place = 0
    found, same = ctx.unknown(_OPEN_PART), True
    for item in spelled_out(strided_index(begin, end, strides, ctx.attrs), rank, ctx.dims(0)):
        if item is None:  # a new axis
            place += 1
            continue
        if axis != state.axis:
            same = same and _is_same(*((item.start, item.stop) if isinstance(item, slice) else (item,)))
        elif isinstance(item, slice) and item.step in (None, 1):
            found = _part(ctx, ctx.at(place, state.each), item.start, item.stop)
        else:
            found = ctx.refuted("picks some of the rows")
        axis += 1
        place += isinstance(item, slice)
    return found if same or not found.is_rows else ctx.unknown(_OPEN_PART)


def _reversed_parts(ctx: RowContext) -> Rows:
    """Apply the rule of ReverseSequence, which reverses the first elements of each row, as many as its length."""
    state = ctx.inputs[0]
    if not state.is_rows or state.axis == ctx.attrs["seq_dim"]:
        return ctx.refuted(_MIXES) if state.is_rows else ctx.unknown("has rows only in its lengths")
    of_rows = ctx.rows == [0, 1] and state.axis == ctx.attrs["batch_dim"] and not ctx.inputs[1].axis
    same = of_rows and state.each == ctx.inputs[1].each and state.each is not None
    return state if same else ctx.unknown("has lengths that do not match the rows")


reversed_parts: Final = RowRule(_reversed_parts)
sliced: Final = RowRule(_sliced, reads_sizes=True)
strided: Final = RowRule(_strided, reads_sizes=True)


def _unpacked(ctx: RowContext) -> Rows:
    state, rank = ctx.inputs[0], ctx.rank(0)
    if rank is None:
        return ctx.unknown(NO_RANK)
    axis = ctx.attrs["axis"] % rank
    if axis == state.axis:
        return ctx.refuted("turns each row into a tensor")
    return ctx.at(state.axis - (axis < state.axis), state.each)


def _alike(ctx: RowContext, states: Sequence[Rows]) -> Rows:
    """Return the state that all of `states` have, or unknown if they differ."""
    if not all(state == states[0] for state in states) or (states[0].each is None and len(states) > 1):
        return ctx.unknown("joins inputs whose rows are along different axes, or that have no rows")
    return states[0]


def _packed(ctx: RowContext) -> Rows:
    state, rank = _alike(ctx, ctx.inputs), ctx.rank(0)
    if not state.is_rows or rank is None:
        return state if rank is not None else ctx.unknown(NO_RANK)
    return ctx.at(state.axis + (ctx.attrs["axis"] % (rank + 1) <= state.axis), state.each)


unpacked: Final = RowRule(_unpacked)
packed: Final = RowRule(_packed)


def concatenated(axis: int) -> RowRule:
    """Return the rule of a concatenation, given the index of the axis among the inputs: 0 or -1."""

    def rule(ctx: RowContext) -> Rows:
        states = ctx.inputs[1:] if axis == 0 else ctx.inputs[:-1]
        state, found = _alike(ctx, states), ctx.ints(axis)
        rank = ctx.rank(1 if axis == 0 else 0)
        if found is None or rank is None or not state.is_rows:
            return ctx.unknown(_OPEN_AXES) if state.is_rows else state
        return ctx.unknown("concatenates rows") if found[0] % rank == state.axis else state

    return RowRule(rule)


def _padded(ctx: RowContext) -> Rows:
    state, sizes = ctx.alone(), ctx.entries(1)
    if state is None or sizes is None:
        return ctx.unknown(_OPEN_AXES)
    around = sizes[2 * state.axis : 2 * state.axis + 2]
    if not all(isinstance(size, int) for size in around):
        return ctx.unknown(_OPEN_AXES)
    return ctx.refuted("adds rows") if any(around) else state


padded: Final = RowRule(_padded)


def _gathered(ctx: RowContext) -> Rows:
    """Apply the rule of GatherV2, Gather and ResourceGather, whose inputs are parameters and indices."""
    params, indices = ctx.inputs[:2]
    ranks = ctx.rank(0), ctx.rank(1)
    batch, axes = ctx.attrs.get("batch_dims", 0), ctx.ints(2) if len(ctx.inputs) > 2 else [0]
    if axes is None or ranks[1] is None:
        return ctx.unknown(_OPEN_AXES)
    axis = axes[0]
    if not params.is_rows:
        if batch or (axis and ranks[0] is None):
            return ctx.unknown(_OPEN_AXES)
        return ctx.at(indices.axis + (axis % ranks[0] if ranks[0] else 0), indices.each)
    if ranks[0] is None:
        return ctx.unknown(NO_RANK)
    axis %= ranks[0]
    if indices.is_rows:
        together = params == indices and params.axis < batch % (ranks[1] + 1) and params.each is not None
        return params if together else ctx.unknown("gathers rows from rows")
    if params.axis == axis:
        return ctx.refuted("picks some of the rows")
    if batch:
        return ctx.unknown(_OPEN_AXES)
    # The axes of the indices take the place of the gathered one.
    return ctx.at(params.axis if params.axis < axis else params.axis + ranks[1] - 1, params.each)


def _gathered_nd(ctx: RowContext) -> Rows:
    """Apply the rule of GatherNd: the indices have rows, the parameters have none."""
    state, rank = ctx.alone(1), ctx.rank(1)
    if state is None or rank is None or state.axis == rank - 1:
        return ctx.unknown("gathers from rows")
    return state


def _one_hot(ctx: RowContext) -> Rows:
    state, rank = ctx.alone(), ctx.rank(0)
    if state is None or rank is None:
        return ctx.unknown(_SEVERAL)
    axis = ctx.attrs["axis"]
    # An axis of -1 is behind all others.
    return ctx.at(state.axis + (0 <= axis <= state.axis), state.each)


gathered: Final = RowRule(_gathered)
gathered_nd: Final = RowRule(_gathered_nd)
one_hot: Final = RowRule(_one_hot)


# ── arrays with a size per row ────────────────────────────────────────────────────────────────────────────────────────


def _only_count(ctx: RowContext, index: int) -> int | Rows:
    """Return the position of the row count in a vector of sizes; -1 if the vector does not contain it."""
    entries = ctx.entries(index)
    if entries is None:
        return ctx.unknown("creates an array whose shape is unknown before the step runs")
    counts = [i for i, each in enumerate(entries) if isinstance(each, Count)]
    if any(not isinstance(each, int | Open | Count) for each in entries) or len(counts) > 1:
        return ctx.unknown("creates an array whose shape is unknown before the step runs")
    return counts[0] if counts else -1


def _filled(ctx: RowContext) -> Rows:
    place = _only_count(ctx, 0)
    if isinstance(place, Rows):
        return place
    entries = ctx.entries(0) or []
    if ctx.inputs[1].kind is not RowDependence.FIXED:
        return ctx.unknown("computes with the number of rows") if place >= 0 or ctx.rows else ctx.inputs[1]
    return FIXED if place < 0 else ctx.at(place, entries[place].each)


def _tiled(ctx: RowContext) -> Rows:
    state, dims, place = ctx.inputs[0], ctx.dims(0), _only_count(ctx, 1)
    entries = ctx.entries(1) or []
    if isinstance(place, Rows) or dims is None or state.kind is RowDependence.SIZED:
        return place if isinstance(place, Rows) else ctx.unknown(NO_RANK)
    if state.is_rows:
        once = place < 0 and isinstance(entries[state.axis], int) and entries[state.axis] == 1
        return state if once else ctx.unknown("repeats rows")
    if place < 0:
        return state
    size, each = dims[place], entries[place].each
    return ctx.at(place, None if size is None or each is None else size * each)


def _broadcast(ctx: RowContext) -> Rows:
    state, dims, place = ctx.inputs[0], ctx.dims(0), _only_count(ctx, 1)
    rank = len(ctx.entries(1) or [])
    if isinstance(place, Rows) or dims is None or state.kind is RowDependence.SIZED:
        return place if isinstance(place, Rows) else ctx.unknown(NO_RANK)
    entries = ctx.entries(1) or []
    if state.is_rows:
        # Broadcasting aligns shapes at their last axes.
        axis = rank - len(dims) + state.axis
        same = place == axis and entries[place].each == state.each and state.each is not None
        return ctx.at(axis, state.each) if same else ctx.unknown("broadcasts rows to a shape that may differ")
    if place < 0:
        return state
    end = rank - place
    own = len(dims) >= end and dims[-end] != 1
    return ctx.unknown("broadcasts rows to a shape that may differ") if own else ctx.at(place, entries[place].each)


filled: Final = RowRule(_filled, reads_sizes=True)
tiled: Final = RowRule(_tiled, reads_sizes=True)
broadcast: Final = RowRule(_broadcast, reads_sizes=True)


# ── products ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _product(ctx: RowContext, ranks: Sequence[int], turned: Sequence[bool]) -> Rows:
    """Apply the rule of matrix products; one operand has rows in its last two axes."""
    if len(ctx.rows) > 1:
        return ctx.refuted("multiplies rows by each other")
    side = ctx.rows[0]
    state = ctx.inputs[side]
    from_end = ranks[side] - state.axis  # 2 for the rows of a matrix, 1 for its columns
    if turned[side]:
        # A transposed operand swaps its rows (2 from the end) and columns (1).
        from_end = 3 - from_end
    # The product keeps the rows of the left operand and the columns of the right one, and sums over the other axis.
    kept = 2 if side == 0 else 1
    return ctx.at(max(ranks) - kept, state.each) if from_end == kept else ctx.refuted("sums over rows")


def _matrix_product(ctx: RowContext) -> Rows:
    return _product(ctx, (2, 2), (ctx.attrs["transpose_a"], ctx.attrs["transpose_b"]))


def _matrix_products(ctx: RowContext) -> Rows:
    ranks = [rank for rank in (ctx.rank(0), ctx.rank(1)) if rank is not None]
    if len(ranks) < 2:
        return ctx.unknown(NO_RANK)
    ends = {(ranks[i] - ctx.inputs[i].axis, ctx.inputs[i].each) for i in ctx.rows}
    # Rows in batch dimensions broadcast as in elementwise ops.
    if all(end > 2 for end, _ in ends):
        return aligned(ctx, ends, max(ranks))
    return _product(ctx, ranks, (ctx.attrs["adj_x"], ctx.attrs["adj_y"]))


def _transposed_convolution(ctx: RowContext) -> Rows:
    """Apply the rule of Conv2DBackpropInput: the gradients have rows, and the sizes must contain their number."""
    state, sizes = ctx.alone(2), ctx.entries(0)
    if state is None or state.axis or not sizes:
        return ctx.unknown("has rows in an input other than the gradients")
    if ctx.inputs[1].kind is RowDependence.SIZED:
        return ctx.unknown("computes with the number of rows")
    same = (
        isinstance(sizes[0], Count) and sizes[0].each == state.each and state.each is not None and _is_same(*sizes[1:])
    )
    return state if same else ctx.unknown("creates an array whose shape is unknown before the step runs")


def _einsum(ctx: RowContext) -> Rows:
    equation = parse_equation(ctx.attrs["equation"], len(ctx.inputs))
    labels = [each for each in equation.labels(tuple(ctx.rank(i) for i in range(len(ctx.inputs)))) if each is not None]
    if len(labels) < len(ctx.inputs):
        return ctx.unknown(NO_RANK)
    found = {(labels[i][ctx.inputs[i].axis], ctx.inputs[i].each) for i in ctx.rows}
    if len({label for label, _ in found}) > 1:
        return ctx.refuted("multiplies rows by each other")
    label, each = next(iter(found))
    output = equation.output_labels(labels)
    if label not in output:
        return ctx.refuted("sums over rows")
    others = [i for i in range(len(labels)) if i not in ctx.rows and label in labels[i]]
    once = all(labels[i].count(label) == 1 for i in ctx.rows) and output.count(label) == 1
    if others or not once or len(found) > 1 or (each is None and len(ctx.rows) > 1):
        return ctx.unknown("combines rows with an input of fixed size along their axis")
    return ctx.at(output.index(label), each)


matrix_product: Final = RowRule(_matrix_product)
matrix_products: Final = RowRule(_matrix_products)
einsum: Final = RowRule(_einsum)
transposed_convolution: Final = RowRule(_transposed_convolution, reads_sizes=True)
