"""Joining, splitting and repeating tensors: ConcatV2, Split, Pack, Unpack, Tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, check_axis, format_dims, merge_dims
from aioflow.graph.static_value import LONGEST_KNOWN, constant_value, moving
from aioflow.graph.traits import movement, view
from aioflow.memory.values import Array
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_n_to_tensor, convert_to_tensor, make, make_list
from aioflow.ops.array.shape import times
from aioflow.ops.array.static_shapes import int_constant, known_dims, or_zeros, shape_of
from aioflow.ops.sparse.indexed_slices import Gradient

__all__ = ["concat", "parallel_stack", "repeat", "split", "stack", "tile", "unstack"]


def _concat_shape(ctx: ShapeContext) -> Dims:
    axis_name = "axis" if ctx.op_def.name == "ConcatV2" else "concat_dim"
    shapes = ctx.dims_list("values")
    ranked = [s for s in shapes if s is not None]
    ctx.require_rank(axis_name, 0)
    axis = ctx.scalar(axis_name)
    if not ranked:
        return None
    order = len(ranked[0])
    if order == 0 or any(len(s) != order for s in ranked):
        raise InvalidArgumentError(
            "the tensors to concatenate must have equal ranks, of at least 1",
            expected="equal ranks >= 1",
            actual=" and ".join(format_dims(s) for s in ranked),
        )
    if axis is None:
        return (None,) * order
    position = check_axis(axis, order)
    merged: Dims = (None,) * order
    for dims in ranked:
        # The size along the axis is left open, since only the other sizes must agree.
        merged = merge_dims(merged, (*dims[:position], None, *dims[position + 1 :]))
    sizes = [None if s is None else s[position] for s in shapes]
    total = None if None in sizes else sum(d for d in sizes if d is not None)
    known = merged or ()
    return (*known[:position], total, *known[position + 1 :])


define_op(
    "ConcatV2",
    "values: N*T, axis: Tidx",
    "output: T",
    ["N: int >= 2", "T: type", "Tidx: {int32, int64} = int32"],
    shape=_concat_shape,
    value=moving(lambda op, inputs: np.concatenate(inputs[:-1], axis=int(inputs[-1])), slice(-1)),
    rows=rows.concatenated(-1),
    traits=movement(never_larger=True, keeps_row_major=True),
)
define_op(
    "Concat",
    "concat_dim: int32, values: N*T",
    "output: T",
    ["N: int >= 2", "T: type"],
    shape=_concat_shape,
    value=moving(lambda op, inputs: np.concatenate(inputs[1:], axis=int(inputs[0])), slice(1, None)),
    rows=rows.concatenated(0),
    traits=movement(keeps_row_major=True),
)


@gradient("ConcatV2", takes_slices=True)
def _concat_v2_grad(op: Operation, grad: Gradient) -> list[Gradient | None]:
    return [*_concat_grads(op.inputs[:-1], op.inputs[-1], grad), None]


@gradient("Concat", takes_slices=True)
def _concat_grad(op: Operation, grad: Gradient) -> list[Gradient | None]:
    return [None, *_concat_grads(op.inputs[1:], op.inputs[0], grad)]


def _concat_grads(values: Sequence[Tensor], axis: Tensor, grad: Gradient) -> Sequence[Gradient]:
    if isinstance(grad, IndexedSlices):
        joins_rows = _joins_rows(values, axis)
        # Without the axis it is unknown whether a slice belongs to one of the values or to all.
        if joins_rows is None:
            return _concat_grads(values, axis, convert_to_tensor(grad))
        if joins_rows:
            return _rows_of_parts(values, grad)
        # Along another axis, every slice has a part of each value.
        parts = make_list("SplitV", grad.values, _lengths(values, axis), _as_int32(axis), num_split=len(values))
        return [IndexedSlices(p, grad.indices, shape_of(v)) for p, v in zip(parts, values, strict=True)]
    grads = make_list("SplitV", grad, _lengths(values, axis), _as_int32(axis), num_split=len(values))
    for part, value in zip(grads, values, strict=True):
        part.set_shape(value.dims)
    return grads


def _lengths(values: Sequence[Tensor], axis: Tensor) -> Tensor:
    """Return the sizes of the values along the axis."""
    known = constant_value(axis)
    sizes: list[int | None] = [None] * len(values)
    if known is not None and _rank(values) is not None:
        sizes = [None if v.dims is None else v.dims[int(known)] for v in values]
    if None not in sizes:
        return int_constant(sizes, dtypes.int64)
    shapes = [make("Shape", v) for v in values]
    return make("Pack", [make("GatherV2", s, _from_front(axis, s), 0) for s in shapes])


def _rank(values: Sequence[Tensor]) -> int | None:
    return next((len(v.dims) for v in values if v.dims is not None), None)


def _joins_rows(values: Sequence[Tensor], axis: Tensor) -> bool | None:
    """Return whether the axis is the first one; None if unknown."""
    known, rank = constant_value(axis), _rank(values)
    if known is None or (known < 0 and rank is None):
        return None
    # -rank names the first axis, too.
    return int(known) in (0, -(rank or 0))


def _rows_of_parts(values: Sequence[Tensor], grad: IndexedSlices) -> list[Gradient]:
    """Return, for each value, the slices that lie in its rows of the joined tensor."""
    found: list[Gradient] = []
    rows = grad.indices if grad.indices.dtype is dtypes.int64 else make("Cast", grad.indices, DstT=dtypes.int64)
    # The rows of a value lie behind those of the values before it.
    start: Tensor = constant(0, dtypes.int64)
    for value in values:
        shape = shape_of(value, dtypes.int64)
        end = make("AddV2", start, make("GatherV2", shape, 0, 0))
        inside = make("LogicalAnd", make("GreaterEqual", rows, start), make("Less", rows, end))
        chosen = make("Squeeze", make("Where", inside), squeeze_dims=[1])
        indices = make("Sub", make("GatherV2", rows, chosen, 0), start)
        found.append(IndexedSlices(make("GatherV2", grad.values, chosen, 0), indices, shape))
        start = end
    return found


def _from_front(axis: Tensor, shape: Tensor) -> Tensor:
    """Return the axis, which may be negative, counted from the front."""
    known = constant_value(axis)
    if known is not None and int(known) >= 0:
        return axis
    count = make("Size", shape) if axis.dtype is dtypes.int32 else make("Size", shape, out_type=axis.dtype)
    return make("FloorMod", axis, count)


def _as_int32(axis: Tensor) -> Tensor:
    if axis.dtype is dtypes.int32:
        return axis
    known = constant_value(axis)
    return make("Cast", axis, DstT=dtypes.int32) if known is None else int_constant(known)


def concat(values: TensorLike, axis: TensorLike, name: str = "concat") -> Tensor:
    """Concatenate tensors along the existing dimension `axis`; their other sizes must be equal.

    Raises:
        InvalidArgumentError: ranks or sizes differ, or `axis` is out of range.
        DTypeError: `axis` is not an integer.
    """
    items = list(values) if isinstance(values, list | tuple) else [values]
    # ConcatV2 needs at least two tensors.
    if len(items) == 1:
        _check_scalar_axis(convert_to_tensor(axis, name=f"{name or 'concat'}/axis", preferred_dtype=dtypes.int32))
        return make("Identity", convert_to_tensor(items[0]), name=name)
    return make("ConcatV2", items, axis, name=name)


def _check_scalar_axis(axis: Tensor) -> None:
    """Check the axis as ConcatV2 does: older programs pass the arguments in the other order."""
    if axis.dtype not in (dtypes.int32, dtypes.int64):
        raise DTypeError("the axis of concat must be an integer", expected="concat(values, axis)", actual=f"{axis!r}")
    if axis.dims:
        raise InvalidArgumentError(
            "the axis of concat must be a scalar", expected="concat(values, axis)", actual=f"{axis!r}"
        )


# ── Split ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _split_shape(ctx: ShapeContext) -> list[Dims]:
    count, dims, axis = ctx.attrs["num_split"], ctx.dims("value"), ctx.scalar("split_dim")
    if dims is None:
        return [None] * count
    if axis is None:
        return [(None,) * len(dims)] * count
    position = check_axis(axis, len(dims), "split_dim")
    whole = dims[position]
    if whole is not None and whole % count:
        raise InvalidArgumentError(
            "the size is not a multiple of the number of parts", expected=f"a multiple of {count}", actual=whole
        )
    part = None if whole is None else whole // count
    return [(*dims[:position], part, *dims[position + 1 :])] * count


def _split_value(op: Operation, inputs: list[Array]) -> list[Array]:
    return np.split(inputs[1], op.attrs["num_split"], int(inputs[0]))


define_op(
    "Split",
    "split_dim: int32, value: T",
    "output: num_split*T",
    ["num_split: int >= 1", "T: type"],
    shape=_split_shape,
    value=moving(_split_value, slice(1, 2)),
    rows=rows.split_along(1, 0),
    traits=view(shares=1),
)


def _split_v_shape(ctx: ShapeContext) -> list[Dims]:
    count, dims = ctx.attrs["num_split"], ctx.dims("value")
    axis, sizes = ctx.scalar("split_dim"), ctx.value("size_splits")
    lengths = ctx.require_rank("size_splits", 1)
    if lengths is not None and lengths[0] not in (None, count):
        raise InvalidArgumentError("one size per part is needed", expected=f"{count} sizes", actual=lengths[0])
    if dims is None:
        return [None] * count
    # The only part is the whole, whatever the axis.
    if axis is None:
        return [dims] if count == 1 else [(None,) * len(dims)] * count
    position = check_axis(axis, len(dims), "split_dim")
    parts = [None] * count if sizes is None else _part_sizes([int(s) for s in sizes], dims[position])
    return [(*dims[:position], part, *dims[position + 1 :]) for part in parts]


def _part_sizes(sizes: list[int], whole: int | None) -> list[int | None]:
    known = sum(s for s in sizes if s >= 0)
    open_count = sum(s == -1 for s in sizes)
    fits = whole is None or (known <= whole if open_count else known == whole)
    if open_count > 1 or min(sizes, default=0) < -1 or not fits:
        raise InvalidArgumentError(
            "the sizes of the parts do not add up",
            expected=f"a sum of {'?' if whole is None else whole}, with at most one -1",
            actual=sizes,
        )
    rest = None if whole is None else whole - known
    return [rest if s == -1 else s for s in sizes]


def _split_sizes_value(op: Operation, inputs: list[Array]) -> list[Array] | None:
    value, axis = inputs[0], int(inputs[2])
    counts = [int(n) for n in inputs[1]]
    if -1 in counts:
        # The sum includes the -1 itself, so this turns it into the open size.
        counts[counts.index(-1)] += value.shape[axis] - sum(counts)
    if min(counts) < 0 or sum(counts) != value.shape[axis]:
        return None
    return np.split(value, np.cumsum(counts)[:-1], axis)


define_op(
    "SplitV",
    "value: T, size_splits: Tlen, split_dim: int32",
    "output: num_split*T",
    ["num_split: int >= 1", "T: type", "Tlen: {int8, int32, int64} = int64"],
    shape=_split_v_shape,
    value=moving(_split_sizes_value),
    rows=rows.split_along(0, 2),
    traits=view(),
)


@gradient("Split")
def _split_grad(op: Operation, *grads: Tensor | None) -> list[Tensor | None]:
    return [None, _joined(op, grads, op.inputs[0])]


@gradient("SplitV")
def _split_v_grad(op: Operation, *grads: Tensor | None) -> list[Tensor | None]:
    return [_joined(op, grads, op.inputs[2]), None, None]


def _joined(op: Operation, grads: tuple[Tensor | None, ...], axis: Tensor) -> Tensor:
    parts = or_zeros(op, grads)
    # ConcatV2 needs at least two tensors.
    return parts[0] if len(parts) == 1 else make("ConcatV2", parts, axis)


def split(
    value: TensorLike, num_or_size_splits: TensorLike, axis: TensorLike = 0, num: int | None = None, name: str = "split"
) -> list[Tensor]:
    """Split a tensor along `axis` into equal parts (an int), or parts of given sizes (a vector; one may be -1).

    `num` is the number of parts, required if the sizes are a tensor of unknown length.

    Raises:
        InvalidArgumentError: the parts do not add up to the whole, or their number is unknown.
    """
    if isinstance(num_or_size_splits, int | np.integer):
        return make_list("Split", axis, value, num_split=int(num_or_size_splits), name=name)
    sizes = convert_to_tensor(num_or_size_splits)
    if sizes.dims == ():
        raise InvalidArgumentError(
            "the number of parts cannot be a scalar tensor", expected="an int, or a vector of sizes", actual=repr(sizes)
        )
    count = num if num is not None else (sizes.dims[0] if sizes.dims else None)
    if count is None:
        raise InvalidArgumentError("the number of parts is unknown", expected="num=", actual=repr(sizes))
    return make_list("SplitV", value, sizes, axis, num_split=count, name=name)


# ── Pack and Unpack ───────────────────────────────────────────────────────────────────────────────────────────────────


def _pack_shape(ctx: ShapeContext) -> Dims:
    merged: Dims = None
    for dims in ctx.dims_list("values"):
        merged = merge_dims(merged, dims)
    if merged is None:
        return None
    position = check_axis(ctx.attrs["axis"], len(merged) + 1)
    return (*merged[:position], ctx.attrs["N"], *merged[position:])


def _pack_value(op: Operation, inputs: list[Array]) -> Array:
    return np.stack(inputs, axis=op.attrs["axis"])


define_op(
    "Pack",
    "values: N*T",
    "output: T",
    ["N: int >= 1", "T: type", "axis: int = 0"],
    shape=_pack_shape,
    value=moving(_pack_value, slice(None)),
    rows=rows.packed,
    traits=movement(row_major=True),
)


@gradient("Pack")
def _pack_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    return make_list("Unpack", grad, num=op.get_attr("N"), axis=op.get_attr("axis"))


def _unpack_shape(ctx: ShapeContext) -> list[Dims]:
    count, dims = ctx.attrs["num"], ctx.dims("value")
    if dims is None:
        return [None] * count
    position = check_axis(ctx.attrs["axis"], len(dims))
    if dims[position] not in (None, count):
        raise InvalidArgumentError(
            "the dimension does not have the size to unpack", expected=count, actual=format_dims(dims)
        )
    return [(*dims[:position], *dims[position + 1 :])] * count


def _unpack_value(op: Operation, inputs: list[Array]) -> list[Array]:
    # By a list of one index: with a bare index, the parts of a vector would be NumPy scalars, not arrays.
    return [np.take(inputs[0], [i], op.attrs["axis"]).squeeze(op.attrs["axis"]) for i in range(op.attrs["num"])]


define_op(
    "Unpack",
    "value: T",
    "output: num*T",
    ["num: int >= 0", "T: type", "axis: int = 0"],
    shape=_unpack_shape,
    value=moving(_unpack_value),
    rows=rows.unpacked,
    traits=view(),
)


@gradient("Unpack")
def _unpack_grad(op: Operation, *grads: Tensor | None) -> Tensor:
    return make("Pack", or_zeros(op, grads), axis=op.get_attr("axis"))


def stack(values: TensorLike | Iterable[TensorLike], axis: int = 0, name: str = "stack") -> Tensor:
    """Join tensors of equal shape along a new dimension `axis`. Plain numbers stacked at the front make a constant.

    Raises:
        InvalidArgumentError: the shapes differ, or `axis` is out of range.
    """
    given: Any = values
    if axis == 0 and not isinstance(values, Tensor):
        try:
            return constant(given, name=name)
        except InvalidArgumentError:
            pass  # there are tensors among the values
    if isinstance(values, Mapping):
        raise DTypeError("wrong type for the values to stack", expected="a list of tensors", actual=repr(values))
    check_kind(values, Iterable, "the values to stack", "a list of tensors")
    items = [given[i] for i in range(len(given))] if isinstance(values, np.ndarray) else given
    return make("Pack", items if isinstance(items, list | tuple) else list(items), axis=axis, name=name)


def parallel_stack(values: TensorLike, name: str = "parallel_stack") -> Tensor:
    """Join tensors along a new first dimension, like `stack`."""
    return make("Pack", values, axis=0, name=name)


def unstack(value: TensorLike, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Tensor]:
    """Return the slices of a tensor along `axis`, which is removed.

    `num` is their number, required if the static shape does not determine it.

    Raises:
        InvalidArgumentError: the number is unknown, or differs from the size.
    """
    tensor = convert_to_tensor(value)
    if num is None:
        dims = tensor.dims
        num = None if dims is None else dims[check_axis(axis, len(dims))]
    if num is None:
        raise InvalidArgumentError(
            "the number of slices is unknown", expected="num, or a known size", actual=repr(tensor)
        )
    return make_list("Unpack", tensor, num=num, axis=axis, name=name)


# ── Tile ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tile_shape(ctx: ShapeContext) -> Dims:
    dims, lengths = ctx.dims("input"), ctx.require_rank("multiples", 1)
    counts = ctx.partial_shape("multiples")
    value = ctx.value("multiples")
    if value is not None and (value < 0).any():
        raise InvalidArgumentError(
            "a tensor cannot be repeated a negative number of times", expected="multiples >= 0", actual=value.tolist()
        )
    if dims is None:
        # There is one multiple per dimension, so their number is the rank.
        length = lengths[0] if lengths else None
        return None if length is None else (None,) * length
    if counts is None:
        return (None,) * len(dims)
    if len(counts) != len(dims):
        raise InvalidArgumentError(
            "tile needs one multiple per dimension", expected=f"{len(dims)} multiples", actual=len(counts)
        )
    return tuple(times(d, c) for d, c in zip(dims, counts, strict=True))


def _tile_value(op: Operation, inputs: list[Array]) -> Array | None:
    value, multiples = inputs
    return None if math.prod(multiples.tolist()) * value.size > LONGEST_KNOWN else np.tile(value, multiples)


define_op(
    "Tile",
    "input: T, multiples: Tmultiples",
    "output: T",
    ["T: type", "Tmultiples: {int32, int64} = int32"],
    shape=_tile_shape,
    value=moving(_tile_value),
    rows=rows.tiled,
    traits=movement(row_major=True),
)


@gradient("Tile")
def _tile_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    value, multiples = op.inputs
    dims, counts = known_dims(value), constant_value(multiples)
    if dims is not None and counts is not None:
        # Summing over the first dimension of each (repetitions, size) pair adds up the copies.
        pairs = np.stack([counts.astype(np.int64), np.array(dims, np.int64)], axis=1).reshape(-1)
        split_up = make("Reshape", grad, int_constant(pairs))
        return [make("Sum", split_up, int_constant(np.arange(0, len(pairs), 2)), keep_dims=False), None]
    shape = shape_of(value, multiples.dtype)
    # As above, with sizes that only a step knows.
    interleaved = make("Reshape", make("Pack", [multiples, shape], axis=1), int_constant([-1]))
    axes = make("Range", 0, make("Size", interleaved), 2)
    return [make("Reshape", make("Sum", make("Reshape", grad, interleaved), axes, keep_dims=False), shape), None]


def tile(input: TensorLike, multiples: TensorLike, name: str | None = None) -> Tensor:
    """Repeat the whole tensor `multiples[i]` times along each dimension i.

    Raises:
        InvalidArgumentError: a multiple is negative, or there is not one per dimension.
    """
    return make("Tile", input, multiples, name=name)


def repeat(input: TensorLike, repeats: TensorLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """Repeat each element along `axis`, or of the flattened tensor.

    `repeats` is a scalar, or one count per position.

    Raises:
        InvalidArgumentError: the counts do not fit the size.
    """
    data, counts = convert_n_to_tensor([input, repeats])
    if axis is None:
        data, axis = make("Reshape", data, int_constant([-1])), 0
    position = axis if data.dims is None else check_axis(axis, len(data.dims))
    if data.dims is None or counts.dims is None:
        counts = make("BroadcastTo", counts, _length_along(data, position, counts.dtype))
    if counts.dims in ((), (1,)):
        return _repeat_evenly(
            data, make("Reshape", counts, int_constant([])) if counts.dims else counts, position, name
        )
    known = constant_value(counts)
    if known is not None and data.dims is not None and known.shape == (data.dims[position],):
        return make("GatherV2", data, int_constant(np.repeat(np.arange(known.size), known)), position, name=name)
    # An element of the result comes from the first position whose running sum of counts exceeds the element's own
    # index.
    ends = make("Cumsum", counts, 0)
    total = make("Sum", counts, int_constant([0]), keep_dims=False)
    places = make(
        "Range", constant(np.zeros((), counts.dtype.np_dtype)), total, constant(np.ones((), counts.dtype.np_dtype))
    )
    # UpperBound takes matrices: here one sorted row, and one row of values.
    rows = [make("ExpandDims", t, 0) for t in (ends, places)]
    chosen = make("Reshape", make("UpperBound", *rows), int_constant([-1]))
    return make("GatherV2", data, chosen, position, name=name)


def _length_along(data: Tensor, axis: int, dtype: DType) -> Tensor:
    """Return the size of a dimension as a vector of one element."""
    shape = shape_of(data, dtype)
    return make("StridedSlice", shape, [axis], [axis + 1], [1], end_mask=int(axis == -1))


def _repeat_evenly(data: Tensor, count: Tensor, position: int, name: str | None) -> Tensor:
    order = len(data.dims or ())
    one = constant(np.ones((), count.dtype.np_dtype))
    # A new axis behind the old one is tiled and merged with it, so that the copies of an element stay together.
    wide = make("ExpandDims", data, position + 1)
    multiples = make("Pack", [count if i == position + 1 else one for i in range(order + 1)])
    tiled = make("Tile", wide, multiples)
    sizes = list(data.dims or ())
    known = constant_value(count)
    length = sizes[position]
    sizes[position] = None if length is None or known is None else length * int(known)
    # Reshape infers one unknown size, unless a 0 makes it ambiguous.
    if sizes.count(None) <= 1 and 0 not in sizes:
        return make("Reshape", tiled, int_constant([-1 if s is None else s for s in sizes]), name=name)
    shape = make_list("Unpack", make("Shape", data, out_type=count.dtype), num=order)
    shape[position] = make("Mul", shape[position], count)
    result = make("Reshape", tiled, make("Pack", shape), name=name)
    result.set_shape(sizes)
    return result
