"""Ops that reorder and sort out elements: Reverse, Roll, Unique, DynamicPartition, LowerBound and others."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import blank
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, check_axes, check_axis, format_dims, is_compatible, merge_dims, num_elements
from aioflow.graph.static_value import StaticValue, constant_value, known_by, moving
from aioflow.graph.traits import movement, opaque, reading, reduction
from aioflow.memory.values import Array
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list, make_tuple
from aioflow.ops.array.static_shapes import int_constant, or_zeros, shape_of

__all__ = [
    "dynamic_partition",
    "dynamic_stitch",
    "invert_permutation",
    "reverse",
    "reverse_sequence",
    "reverse_v2",
    "roll",
    "searchsorted",
    "setdiff1d",
    "unique",
    "unique_with_counts",
    "unravel_index",
]

# ── Reverse and Roll ──────────────────────────────────────────────────────────────────────────────────────────────────

_REVERSIBLE = "T: {reals, complexes, bool, string}"


def _reverse_shape(ctx: ShapeContext) -> Dims:
    dims, flags = ctx.dims("tensor"), ctx.require_rank("dims", 1)
    if dims is None or flags is None or flags[0] is None:
        return dims
    if len(dims) > 8 or flags[0] != len(dims):
        raise InvalidArgumentError(
            "reverse needs one flag per dimension, for at most 8 dimensions",
            expected=f"{len(dims)} flags",
            actual=flags[0],
        )
    return dims


def _reverse_v2_shape(ctx: ShapeContext) -> Dims:
    dims, axes = ctx.dims("tensor"), ctx.value("axis")
    ctx.require_rank("axis", 1)
    if dims is None or axes is None:
        return dims
    check_axes(axes.tolist(), len(dims))
    return dims


define_op("Reverse", "tensor: T, dims: bool", "output: T", [_REVERSIBLE], shape=_reverse_shape, traits=opaque())
define_op(
    "ReverseV2",
    "tensor: T, axis: Tidx",
    "output: T",
    ["Tidx: {int32, int64} = int32", _REVERSIBLE],
    shape=_reverse_v2_shape,
    value=moving(lambda op, inputs: np.flip(inputs[0], tuple(inputs[1].tolist()))),
    rows=rows.apart_from(lambda ctx: ctx.ints(1)),
    traits=movement(),
)


@gradient("Reverse", "ReverseV2")
def _reverse_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    # Reversing is its own inverse.
    return [make(op.type, grad, op.inputs[1]), None]


def reverse(tensor: TensorLike, axis: TensorLike, name: str | None = None) -> Tensor:
    """Reverse the order along each dimension of `axis` (a vector).

    Raises:
        InvalidArgumentError: an axis is out of range or is listed twice.
    """
    return make("ReverseV2", tensor, axis, name=name)


reverse_v2 = reverse


def _reverse_sequence_shape(ctx: ShapeContext) -> Dims:
    dims, lengths = ctx.dims("input"), ctx.require_rank("seq_lengths", 1)
    batch, along = ctx.attrs["batch_dim"], ctx.attrs["seq_dim"]
    if dims is None:
        return None
    if not (0 <= batch < len(dims) and 0 <= along < len(dims)) or batch == along:
        raise InvalidArgumentError(
            "batch_dim and seq_dim must be two different dimensions of the input",
            expected=f"two of 0..{len(dims) - 1}",
            actual=(batch, along),
        )
    size = None if lengths is None else lengths[0]
    # Either the dimension or the vector of lengths may have the known size.
    merged = merge_dims((dims[batch],), (size,)) or (None,)
    return (*dims[:batch], merged[0], *dims[batch + 1 :])


define_op(
    "ReverseSequence",
    "input: T, seq_lengths: Tlen",
    "output: T",
    ["seq_dim: int", "batch_dim: int = 0", "T: type", "Tlen: {int32, int64} = int64"],
    shape=_reverse_sequence_shape,
    rows=rows.reversed_parts,
    traits=movement(),
)


@gradient("ReverseSequence")
def _reverse_sequence_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    attrs = {name: op.get_attr(name) for name in ("seq_dim", "batch_dim")}
    # Reversing the same parts again restores them.
    return [make("ReverseSequence", grad, op.inputs[1], **attrs), None]


def reverse_sequence(
    input: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Tensor:
    """Reverse the first `seq_lengths[b]` elements along `seq_axis` for each index b along `batch_axis` (0 by default).

    `seq_dim` and `batch_dim` are the old names of the two axes.

    Raises:
        InvalidArgumentError: a length is negative or larger than the dimension, or the axes do not fit.
        DTypeError: `seq_axis` is not given.
    """
    along = seq_axis if seq_axis is not None else seq_dim
    if along is None:
        raise DTypeError("reverse_sequence needs an axis", expected="seq_axis=", actual="none")
    batch = batch_axis if batch_axis is not None else batch_dim
    return make("ReverseSequence", input, seq_lengths, seq_dim=along, batch_dim=batch or 0, name=name)


def _roll_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("shift", 0, 1)
    ctx.require_rank("axis", 0, 1)
    return ctx.require_rank("input", 1, -1)


define_op(
    "Roll",
    "input: T, shift: Tshift, axis: Taxis",
    "output: T",
    ["T: type", "Tshift: {int32, int64}", "Taxis: {int32, int64}"],
    shape=_roll_shape,
    rows=rows.apart_from(lambda ctx: ctx.ints(2)),
    traits=movement(),
)


@gradient("Roll")
def _roll_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("Roll", grad, make("Neg", op.inputs[1]), op.inputs[2]), None, None]


def roll(input: TensorLike, shift: TensorLike, axis: TensorLike, name: str | None = None) -> Tensor:
    """Shift the elements by `shift` along `axis`; elements shifted off one end come in at the other.

    `shift` and `axis` are scalars, or vectors of equal length.

    Raises:
        InvalidArgumentError: an axis is out of range, or the vectors differ in length.
    """
    return make("Roll", input, shift, axis, name=name)


def _permutation_shape(ctx: ShapeContext) -> Dims:
    return ctx.require_rank("x", 1) or (None,)


define_op(
    "InvertPermutation",
    "x: T",
    "y: T",
    ["T: {int32, int64} = int32"],
    shape=_permutation_shape,
    value=known_by(np.argsort),
    rows=rows.mixed,
    traits=opaque(),
)
not_differentiable("InvertPermutation")


def invert_permutation(x: TensorLike, name: str | None = None) -> Tensor:
    """Return `y` with `y[x[i]] = i`.

    Raises:
        InvalidArgumentError: `x` is not a permutation of 0, 1, ….
    """
    return make("InvertPermutation", x, name=name)


# ── Unique ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_OUT_IDX = "out_idx: {int32, int64} = int32"


def _unique_shape(ctx: ShapeContext) -> list[Dims]:
    length = ctx.require_rank("x", 1) or (None,)
    # One index per element of x; how many distinct values there are is not known.
    outputs: list[Dims] = [(None,), length]
    return outputs if ctx.op_def.name == "Unique" else [*outputs, (None,)]


def _unique_v2_shape(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("axis", 1)
    dims, axes = ctx.dims("x"), ctx.value("axis")
    if axes is None or dims is None:
        return [None if dims is None else (None,) * len(dims), (None,)]
    if axes.size == 0:
        length = ctx.require_rank("x", 1) or (None,)
        return [(None,), length]
    if axes.size > 1:
        raise InvalidArgumentError("unique has one axis", expected="at most 1", actual=axes.tolist())
    position = check_axis(int(axes[0]), len(dims))
    return [(None,) * len(dims), (dims[position],)]


def _unique_value(x: Array) -> list[Array]:
    values, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    # np.unique sorts; the op returns the values in the order of their first appearance.
    order = np.argsort(first)
    return [values[order], np.argsort(order)[inverse]]


define_op(
    "Unique",
    "x: T",
    "y: T, idx: out_idx",
    ["T: type", _OUT_IDX],
    shape=_unique_shape,
    value=known_by(_unique_value),
    rows=rows.by_values,
    traits=reduction(cost=reading(20), never_larger=True),
)
define_op(
    "UniqueV2",
    "x: T, axis: Taxis",
    "y: T, idx: out_idx",
    ["T: type", "Taxis: {int32, int64} = int64", _OUT_IDX],
    shape=_unique_v2_shape,
    rows=rows.by_values,
    traits=reduction(cost=reading(20)),
)
define_op(
    "UniqueWithCounts",
    "x: T",
    "y: T, idx: out_idx, count: out_idx",
    ["T: type", _OUT_IDX],
    shape=_unique_shape,
    rows=rows.by_values,
    traits=reduction(cost=reading(20)),
)


def _list_diff_shape(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("x", 1)
    ctx.require_rank("y", 1)
    return [(None,), (None,)]


def _list_diff_value(x: Array, y: Array) -> list[Array]:
    kept = np.flatnonzero(~np.isin(x, y))
    return [x[kept], kept]


define_op(
    "ListDiff",
    "x: T, y: T",
    "out: T, idx: out_idx",
    ["T: type", _OUT_IDX],
    shape=_list_diff_shape,
    value=known_by(_list_diff_value),
    rows=rows.by_values,
    traits=reduction(cost=reading(20), never_larger=True),
)
not_differentiable("Unique", "UniqueV2", "UniqueWithCounts", "ListDiff")


class Unique(NamedTuple):
    """The result of `unique`."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The result of `unique_with_counts`."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # the name in the published signature, which tuples have too


class ListDiff(NamedTuple):
    """The result of `setdiff1d`."""

    out: Tensor
    idx: Tensor


def unique(x: TensorLike, out_idx: DTypeLike = dtypes.int32, name: str | None = None) -> Unique:
    """Return (y, idx): the distinct elements of a vector in order of first appearance, and `x == y[idx]`."""
    return make_tuple(Unique, "Unique", x, out_idx=as_dtype(out_idx), name=name)


def unique_with_counts(x: TensorLike, out_idx: DTypeLike = dtypes.int32, name: str | None = None) -> UniqueWithCounts:
    """Return (y, idx, count): like `unique`, with the number of occurrences of each element."""
    return make_tuple(UniqueWithCounts, "UniqueWithCounts", x, out_idx=as_dtype(out_idx), name=name)


def setdiff1d(x: TensorLike, y: TensorLike, index_dtype: DTypeLike = dtypes.int32, name: str | None = None) -> ListDiff:
    """Return (out, idx): the elements of vector `x` that are not in vector `y`, and where they are in `x`, in order."""
    return make_tuple(ListDiff, "ListDiff", x, y, out_idx=as_dtype(index_dtype), name=name)


# ── DynamicPartition and DynamicStitch ────────────────────────────────────────────────────────────────────────────────


def _partition_shape(ctx: ShapeContext) -> list[Dims]:
    data, places, count = ctx.dims("data"), ctx.dims("partitions"), ctx.attrs["num_partitions"]
    if places is None:
        return [None] * count
    if data is None:
        return [None] * count
    if len(data) < len(places) or not is_compatible(data[: len(places)], places):
        raise InvalidArgumentError(
            "the partitions do not fit the data",
            expected=f"a prefix of {format_dims(data)}",
            actual=format_dims(places),
        )
    # The number of slices of a part depends on the values of `partitions`.
    return [(None, *data[len(places) :])] * count


define_op(
    "DynamicPartition",
    "data: T, partitions: int32",
    "outputs: num_partitions*T",
    ["num_partitions: int >= 1", "T: type"],
    shape=_partition_shape,
    rows=rows.partitioned,
    traits=opaque(),
)


@gradient("DynamicPartition")
def _partition_grad(op: Operation, *grads: Tensor | None) -> list[Tensor | None]:
    data, partitions = op.inputs
    count = op.get_attr("num_partitions")
    # Partition the positions as the data were: a stitch at these positions undoes the partition.
    shape = shape_of(partitions)
    total = num_elements(partitions.dims)
    size = make("Size", partitions) if total is None else int_constant(total)
    places = make("Reshape", make("Range", 0, size, 1), shape)
    parts = make_list("DynamicPartition", places, partitions, num_partitions=count)
    whole = make("DynamicStitch", parts, or_zeros(op, grads))
    return [make("Reshape", whole, shape_of(data)), None]


def dynamic_partition(
    data: TensorLike, partitions: TensorLike, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Sort the slices of `data` into `num_partitions` tensors by the numbers in `partitions`, keeping their order.

    Raises:
        InvalidArgumentError: a number is not in [0, num_partitions), or the shapes do not fit.
    """
    return make_list("DynamicPartition", data, partitions, num_partitions=num_partitions, name=name)


def _stitch_shape(ctx: ShapeContext) -> Dims:
    count = ctx.attrs["N"]
    # The result ends at the greatest index, which is known if all indices are constants.
    greatest: int | None = -1
    rest: Dims = None
    for indices, data in zip(ctx.tensors[:count], ctx.tensors[count:], strict=True):
        values = constant_value(indices)
        if values is None or greatest is None:
            greatest = None
        elif values.size:
            greatest = max(greatest, int(values.max()))
        if indices.dims is None or data.dims is None:
            continue
        order = len(indices.dims)
        if not is_compatible(data.dims[:order], indices.dims):
            raise InvalidArgumentError(
                "the data do not fit their indices", expected=format_dims(indices.dims), actual=format_dims(data.dims)
            )
        rest = merge_dims(rest, data.dims[order:])
    return None if rest is None else (None if greatest is None else greatest + 1, *rest)


def _stitched_value(op: Operation, inputs: list[Array]) -> Array:
    count = len(inputs) // 2
    indices, data = inputs[:count], inputs[count:]
    inner = data[0].shape[indices[0].ndim :]
    merged = blank((max((int(i.max()) for i in indices if i.size), default=-1) + 1, *inner), data[0].dtype)
    for where, values in zip(indices, data, strict=True):
        merged[where] = values
    return merged


for _name in ("DynamicStitch", "ParallelDynamicStitch"):
    define_op(
        _name,
        "indices: N*int32, data: N*T",
        "merged: T",
        ["N: int >= 1", "T: type"],
        shape=_stitch_shape,
        value=StaticValue(_stitched_value),
        traits=opaque(),
    )


@gradient("DynamicStitch", "ParallelDynamicStitch")
def _stitch_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    count = op.get_attr("N")
    # As in TensorFlow, every slice of a repeated index gets the gradient, though only the last one was used.
    return [*[None] * count, *(make("GatherV2", grad, indices, 0) for indices in op.inputs[:count])]


def dynamic_stitch(indices: list[TensorLike], data: list[TensorLike], name: str | None = None) -> Tensor:
    """Return a tensor with the slices `data[m][i, …]` at `indices[m][i]`; the last slice of a repeated index wins.

    Raises:
        InvalidArgumentError: an index is negative, or the shapes do not fit.
    """
    return make("DynamicStitch", indices, data, name=name)


# ── sorted sequences ──────────────────────────────────────────────────────────────────────────────────────────────────


def _bound_shape(ctx: ShapeContext) -> Dims:
    rows, values = ctx.require_rank("sorted_inputs", 2), ctx.require_rank("values", 2)
    if rows is None or values is None:
        return values
    merge_dims(rows[:1], values[:1])
    return values


for _name in ("LowerBound", "UpperBound"):
    define_op(
        _name,
        "sorted_inputs: T, values: T",
        "output: out_type",
        ["T: type", "out_type: {int32, int64} = int32"],
        shape=_bound_shape,
        traits=reduction(cost=reading(20)),
    )
not_differentiable("LowerBound", "UpperBound")


def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    side: Literal["left", "right"] = "left",
    out_type: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """Return the position at which each value can be inserted into its sorted row, keeping the order.

    Args:
        sorted_sequence: [..., n]; the rows are along the last dimension.
        values: [..., m] with the same leading sizes.
        side: "left" is before equal elements, "right" after them.
        out_type: Dtype of the positions, int32 or int64.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the leading sizes differ, or `side` is unknown.
    """
    ops = {"left": "LowerBound", "right": "UpperBound"}
    if side not in ops:
        raise InvalidArgumentError("unknown side", expected="'left' or 'right'", actual=side)
    rows = convert_to_tensor(sorted_sequence)
    wanted = convert_to_tensor(values, rows.dtype)
    # The ops take matrices, so the leading sizes become one.
    flat = [make("Reshape", t, _as_rows(t)) for t in (rows, wanted)]
    found = make(ops[side], *flat, out_type=as_dtype(out_type), name=name)
    return make("Reshape", found, shape_of(wanted))


def _as_rows(tensor: Tensor) -> Tensor:
    """Return the shape of the tensor as a matrix whose rows are those of its last dimension."""
    last = tensor.dims[-1] if tensor.dims else None
    if last is not None and (last > 0 or num_elements(tensor.dims) is None):
        return int_constant([-1, last])
    # Reshape cannot infer the number of rows (-1) from a tensor without elements.
    if last == 0:
        return int_constant([num_elements((tensor.dims or ())[:-1]) or 0, 0])
    size = make("StridedSlice", make("Shape", tensor), [-1], [0], [1], end_mask=1)
    return make("ConcatV2", [int_constant([-1]), size], 0)


def _unravel_shape(ctx: ShapeContext) -> Dims:
    indices, dims = ctx.dims("indices"), ctx.require_rank("dims", 1)
    if indices is None:
        return None
    length = dims[0] if dims else None
    return (length,) if not indices else (length, num_elements(indices))


define_op(
    "UnravelIndex",
    "indices: Tidx, dims: Tidx",
    "output: Tidx",
    ["Tidx: {int32, int64} = int32"],
    shape=_unravel_shape,
    traits=opaque(),
)
not_differentiable("UnravelIndex")


def unravel_index(indices: TensorLike, dims: TensorLike, name: str | None = None) -> Tensor:
    """Convert flat positions to coordinates in a tensor of shape `dims`; row i holds the coordinates of dimension i.

    Raises:
        InvalidArgumentError: a position is outside the tensor.
    """
    return make("UnravelIndex", indices, dims, name=name)
