"""Sparse tensors made, cut, joined and put into another form. Their arithmetic is in `sparse_math`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, gradient, not_differentiable
from aioflow.graph.shapes import Dims, dims_of, merge_dims
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, apply_op, constant, convert_to_tensor
from aioflow.ops.sparse_tensor import SparseTensor, SparseTensorValue, sparse_of

__all__ = [
    "sparse_concat",
    "sparse_fill_empty_rows",
    "sparse_merge",
    "sparse_reorder",
    "sparse_reset_shape",
    "sparse_reshape",
    "sparse_retain",
    "sparse_slice",
    "sparse_split",
    "sparse_tensor_to_dense",
    "sparse_to_dense",
    "sparse_to_indicator",
    "sparse_transpose",
]

# ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _size(dims: Dims, axis: int = 0) -> int | None:
    return None if dims is None else dims[axis]


def _dense(ctx: ShapeContext) -> Dims:
    ctx.require_rank("sparse_indices", 0, 2)
    ctx.require_rank("output_shape", 1)
    ctx.require_rank("sparse_values", 0, 1)
    ctx.require_rank("default_value", 0)
    return ctx.partial_shape("output_shape")


def _reordered(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("input_shape", 1)
    return [_or_open(ctx.require_rank("input_indices", 2), 2), _or_open(ctx.require_rank("input_values", 1), 1)]


def _or_open(dims: Dims, rank: int) -> Dims:
    return (None,) * rank if dims is None else dims


def _reshaped(ctx: ShapeContext) -> list[Dims]:
    rows = _size(ctx.require_rank("input_indices", 2))
    ctx.require_rank("input_shape", 1)
    new = ctx.require_rank("new_shape", 1)
    return [(rows, _size(new)), _or_open(new, 1)]


def _joined(ctx: ShapeContext) -> list[Dims]:
    rows: int | None = 0
    columns: Dims = (None,)
    shape: Dims = (None,)
    for indices, values, one in zip(
        ctx.dims_list("indices"), ctx.dims_list("values"), ctx.dims_list("shapes"), strict=True
    ):
        count = merge_dims(None if indices is None else indices[:1], values)
        rows = None if rows is None or count is None or count[0] is None else rows + count[0]
        columns = merge_dims(columns, None if indices is None else indices[1:])
        shape = merge_dims(shape, one)
    return [(rows, _size(columns)), (rows,), shape]


def _parts(ctx: ShapeContext) -> list[Dims]:
    count = ctx.attrs["num_split"]
    rank = _size(ctx.require_rank("shape", 1))
    return [*[(None, rank)] * count, *[(None,)] * count, *[(rank,)] * count]


def _sliced(ctx: ShapeContext) -> list[Dims]:
    shape = ctx.require_rank("shape", 1)
    return [(None, _size(shape)), (None,), _or_open(shape, 1)]


def _filled(ctx: ShapeContext) -> list[Dims]:
    indices = ctx.require_rank("indices", 2)
    merge_dims(None if indices is None else indices[:1], ctx.require_rank("values", 1))
    rank = ctx.require_rank("dense_shape", 1)
    merge_dims(None if indices is None else indices[1:], rank)
    ctx.require_rank("default_value", 0)
    shape = ctx.partial_shape("dense_shape")
    return [(None, _size(rank)), (None,), (_size(shape) if shape else None,), (_size(indices),)]


_SPARSE = "indices: int64, values: T, {}: int64"
_MADE = "output_indices: int64, output_values: T, output_shape: int64"

define_op(
    "SparseToDense",
    "sparse_indices: Tindices, output_shape: Tindices, sparse_values: T, default_value: T",
    "dense: T",
    ["validate_indices: bool = True", "T: type", "Tindices: {index}"],
    shape=_dense,
)
define_op(
    "SparseReorder",
    "input_indices: int64, input_values: T, input_shape: int64",
    "output_indices: int64, output_values: T",
    ["T: type"],
    shape=_reordered,
)
define_op(
    "SparseReshape",
    "input_indices: int64, input_shape: int64, new_shape: int64",
    "output_indices: int64, output_shape: int64",
    shape=_reshaped,
)
define_op(
    "SparseConcat",
    "indices: N*int64, values: N*T, shapes: N*int64",
    _MADE,
    ["concat_dim: int", "N: int >= 2", "T: type"],
    shape=_joined,
)
define_op(
    "SparseSplit",
    "split_dim: int64, " + _SPARSE.format("shape"),
    "output_indices: num_split*int64, output_values: num_split*T, output_shape: num_split*int64",
    ["num_split: int >= 1", "T: type"],
    shape=_parts,
)
define_op("SparseSlice", _SPARSE.format("shape") + ", start: int64, size: int64", _MADE, ["T: type"], shape=_sliced)
define_op(
    "SparseSliceGrad",
    "backprop_val_grad: T, input_indices: int64, input_start: int64, output_indices: int64",
    "val_grad: T",
    ["T: {numbertype}"],
    shape=lambda ctx: (_size(ctx.require_rank("input_indices", 2)),),
)
define_op(
    "SparseFillEmptyRows",
    _SPARSE.format("dense_shape") + ", default_value: T",
    "output_indices: int64, output_values: T, empty_row_indicator: bool, reverse_index_map: int64",
    ["T: type"],
    shape=_filled,
)
define_op(
    "SparseFillEmptyRowsGrad",
    "reverse_index_map: int64, grad_values: T",
    "d_values: T, d_default_value: T",
    ["T: type"],
    shape=lambda ctx: [_or_open(ctx.require_rank("reverse_index_map", 1), 1), ()],
)

not_differentiable("SparseReshape", "SparseConcat", "SparseSplit", "SparseSliceGrad", "SparseFillEmptyRowsGrad")

# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


@gradient("SparseToDense")
def _dense_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    indices, values = op.inputs[0], op.inputs[2]
    taken = apply_op("GatherNd", grad, indices if indices.dims is None or len(indices.dims) > 1 else _column(indices))
    by_values = apply_op("Reshape", taken, apply_op("Shape", values)) if values.dims == () else taken
    return [None, None, by_values, apply_op("Sub", _total(grad), _total(taken))]


def _column(indices: Tensor) -> Tensor:
    """Positions in a vector as rows of one number."""
    result: Tensor = apply_op("Reshape", indices, [-1, 1])
    return result


def _total(tensor: Tensor) -> Tensor:
    result: Tensor = apply_op("Sum", apply_op("Reshape", tensor, [-1]), 0)
    return result


@gradient("SparseReorder")
def _reorder_grad(op: Operation, _: Tensor, grad: Tensor) -> list[Tensor | None]:
    """Each value's gradient is where the value went: the numbers of the entries, reordered alike, tell."""
    indices, _, shape = op.inputs
    count = apply_op("Size", op.inputs[1], out_type=dtypes.int32)
    order = apply_op("SparseReorder", indices, apply_op("Range", 0, count, 1), shape).output_values
    return [None, apply_op("GatherV2", grad, apply_op("InvertPermutation", order), 0), None]


@gradient("SparseSlice")
def _slice_grad(op: Operation, *grads: Tensor) -> list[Tensor | None]:
    back = apply_op("SparseSliceGrad", grads[1], op.inputs[0], op.inputs[3], op.outputs[0])
    return [None, back, None, None, None]


@gradient("SparseFillEmptyRows")
def _fill_grad(op: Operation, *grads: Tensor) -> list[Tensor | None]:
    back = apply_op("SparseFillEmptyRowsGrad", op.outputs[3], grads[1])
    return [None, back.d_values, None, back.d_default_value]


# ── dense and back ───────────────────────────────────────────────────────────────────────────────────────────────────


def sparse_to_dense(
    sparse_indices: TensorLike,
    output_shape: TensorLike,
    sparse_values: TensorLike,
    default_value: TensorLike = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """A dense tensor that has `sparse_values` at `sparse_indices` and `default_value` everywhere else.

    Args:
        sparse_indices: [n, rank], or [n] or a scalar for a vector.
        sparse_values: [n], or a scalar for all.
        validate_indices: Refuse indices that repeat or are not in row-major order.

    Raises:
        InvalidArgumentError: an index is out of bounds, or (where asked for) repeats or is out of order.
    """
    values = convert_to_tensor(sparse_values)
    result: Tensor = apply_op(
        "SparseToDense",
        sparse_indices,
        output_shape,
        values,
        convert_to_tensor(default_value, values.dtype),
        validate_indices=validate_indices,
        name=name,
    )
    return result


def sparse_tensor_to_dense(
    sp_input: SparseTensor, default_value: TensorLike = None, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """The dense tensor, with `default_value` (0, "" or False without it) where nothing is held: `sparse_to_dense`."""
    sparse = sparse_of(sp_input)
    if default_value is None:
        default_value = _zero(sparse.dtype)
    return sparse_to_dense(
        sparse.indices, sparse.dense_shape, sparse.values, default_value, validate_indices, name or "SparseToDense"
    )


def _zero(dtype: DType) -> Tensor:
    return constant({dtypes.string: "", dtypes.bool_: False}.get(dtype, 0), dtype)


def sparse_from_dense(tensor: TensorLike, name: str | None = None) -> SparseTensor:
    """The elements of a dense tensor that are not zero (or empty)."""
    with default_graph().name_scope(name or "dense_to_sparse"):
        dense = convert_to_tensor(tensor)
        zeros = apply_op("Fill", apply_op("Shape", dense), _zero(dense.dtype))
        indices = apply_op("Where", apply_op("NotEqual", dense, zeros))
        return SparseTensor(
            indices, apply_op("GatherNd", dense, indices), apply_op("Shape", dense, out_type=dtypes.int64)
        )


def sparse_eye(
    num_rows: TensorLike, num_columns: TensorLike = None, dtype: Any = dtypes.float32, name: str | None = None
) -> SparseTensor:
    """A [num_rows, num_columns] matrix (square by default) with ones on the diagonal."""
    with default_graph().name_scope(name or "eye"):
        rows = _int64(num_rows)
        columns = rows if num_columns is None else _int64(num_columns)
        diagonal = apply_op("Range", _int64(0), apply_op("Minimum", rows, columns), _int64(1))
        ones = apply_op("Fill", apply_op("Shape", diagonal), constant(1, dtype))
        return SparseTensor(
            apply_op("Pack", [diagonal, diagonal], axis=1), ones, apply_op("Pack", [rows, columns], axis=0)
        )


def _int64(value: TensorLike) -> Tensor:
    tensor = convert_to_tensor(value)
    return tensor if tensor.dtype is dtypes.int64 else apply_op("Cast", tensor, DstT=dtypes.int64)


# ── other forms ──────────────────────────────────────────────────────────────────────────────────────────────────────


def sparse_reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The entries in row-major order of their indices."""
    sparse = sparse_of(sp_input)
    made = apply_op("SparseReorder", sparse.indices, sparse.values, sparse.dense_shape, name=name)
    ordered = SparseTensor(made.output_indices, made.output_values, apply_op("Identity", sparse.dense_shape))
    ordered.set_shape(sparse.shape)
    return ordered


def sparse_reshape(sp_input: SparseTensor, shape: TensorLike, name: str | None = None) -> SparseTensor:
    """The same elements, in row-major order, in another shape; one size may be -1.

    Raises:
        InvalidArgumentError: the number of elements differs.
    """
    sparse = sparse_of(sp_input)
    with default_graph().name_scope(name or "SparseReshape"):
        new = _int64(shape)
        made = apply_op("SparseReshape", sparse.indices, sparse.dense_shape, new)
        result = SparseTensor(made.output_indices, apply_op("Identity", sparse.values), made.output_shape)
        result.set_shape(_reshaped_dims(sparse.shape.raw, constant_value(new)))
        return result


def _reshaped_dims(old: Dims, new: np.ndarray[Any, Any] | None) -> Dims:
    """What is known of the new shape; sizes that cannot be right are refused at once."""
    if new is None:
        return None
    sizes = [int(size) for size in new]
    if sizes.count(-1) > 1:
        raise InvalidArgumentError("only one size can be inferred", expected="at most one -1", actual=sizes)
    dims = tuple(None if size < 0 else size for size in sizes)
    if old is None or None in old or 0 in sizes:
        return dims
    total, known = _product(old), _product(dims)
    fits = total % known == 0 if None in dims else total == known
    if not fits:
        raise InvalidArgumentError("the new shape has another number of elements", expected=total, actual=sizes)
    return tuple(total // known if size is None else size for size in dims)


def _product(dims: Sequence[int | None]) -> int:
    product = 1
    for size in dims:
        product *= 1 if size is None else size
    return product


def sparse_transpose(sp_input: SparseTensor, perm: TensorLike = None, name: str | None = None) -> SparseTensor:
    """The dimensions in the order `perm`, reversed by default; the entries in row-major order."""
    sparse = sparse_of(sp_input)
    with default_graph().name_scope(name or "SparseTranspose"):
        if perm is None:
            rank = apply_op("Size", sparse.dense_shape, out_type=dtypes.int32)
            known = sparse.shape.ndims
            perm = apply_op("Range", rank - 1, -1, -1) if known is None else list(range(known))[::-1]
        order = convert_to_tensor(perm, dtypes.int32)
        indices = apply_op("GatherV2", sparse.indices, order, 1)
        moved = SparseTensor(indices, sparse.values, apply_op("GatherV2", sparse.dense_shape, order, 0))
        axes = constant_value(order)
        if axes is not None and sparse.shape.raw is not None:
            dims = sparse.shape.raw
            moved.set_shape([dims[int(axis)] for axis in axes])
        return sparse_reorder(moved)


def sparse_expand_dims(sp_input: SparseTensor, axis: int | None = None, name: str | None = None) -> SparseTensor:
    """With a dimension of size 1 more, at `axis` (the last by default).

    Raises:
        InvalidArgumentError: there is no such axis, or the rank is not known and `axis` counts from the end.
    """
    sparse = sparse_of(sp_input)
    rank, place = sparse.shape.ndims, -1 if axis is None else axis
    if rank is None or not -rank - 1 <= place <= rank:
        wanted = "a known rank" if rank is None else f"-{rank + 1}..{rank}"
        raise InvalidArgumentError("cannot add a dimension there", expected=wanted, actual=place)
    place = place + rank + 1 if place < 0 else place
    with default_graph().name_scope(name or "expand_dims"):
        count = apply_op("Shape", sparse.values, out_type=dtypes.int32)
        zeros = apply_op("Fill", apply_op("ConcatV2", [count, [1]], 0), constant(0, dtypes.int64))
        columns = [_columns(sparse.indices, 0, place), zeros, _columns(sparse.indices, place, rank)]
        shape = sparse.dense_shape
        sizes = [apply_op("Slice", shape, [0], [place]), [1], apply_op("Slice", shape, [place], [rank - place])]
        dims = sparse.shape.raw or ()
        made = SparseTensor(
            apply_op("ConcatV2", columns, 1),
            sparse.values,
            apply_op("ConcatV2", [convert_to_tensor(part, dtypes.int64) for part in sizes], 0),
        )
        made.set_shape((*dims[:place], 1, *dims[place:]))
        return made


def _columns(indices: Tensor, begin: int, end: int) -> Tensor:
    result: Tensor = apply_op("Slice", indices, [0, begin], [-1, end - begin])
    return result


# ── parts and wholes ─────────────────────────────────────────────────────────────────────────────────────────────────


def sparse_concat(
    axis: int,
    sp_inputs: Sequence[SparseTensor],
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: int | None = None,
    expand_nonconcat_dims: bool | None = None,
) -> SparseTensor:
    """Sparse tensors put one after another along `axis`, each in row-major order.

    Args:
        expand_nonconcat_dim: Let the other sizes differ: the result has the largest of each.
        concat_dim, expand_nonconcat_dims: Former names of `axis`, `expand_nonconcat_dim`.

    Raises:
        InvalidArgumentError: a size other than that along `axis` differs.
    """
    given = axis if concat_dim is None else concat_dim
    parts = [sparse_of(part) for part in sp_inputs]
    if len(parts) == 1:
        return parts[0]
    shapes = [part.dense_shape for part in parts]
    if expand_nonconcat_dim or expand_nonconcat_dims:
        shapes = _widened(shapes, given)
    made = apply_op(
        "SparseConcat", [p.indices for p in parts], [p.values for p in parts], shapes, concat_dim=given, name=name
    )
    result = SparseTensor(made.output_indices, made.output_values, made.output_shape)
    result.set_shape(_joined_dims([part.shape.raw for part in parts], given, shapes[0] is not parts[0].dense_shape))
    return result


def _widened(shapes: Sequence[Tensor], axis: int) -> list[Tensor]:
    """Each shape with the largest sizes of all but along the axis."""
    largest = apply_op("Max", apply_op("Pack", list(shapes), axis=0), 0)
    rank = apply_op("Size", largest, out_type=dtypes.int32)
    place = apply_op("FloorMod", constant(axis), rank)
    own = apply_op("Equal", apply_op("Range", 0, rank, 1), place)
    return [apply_op("SelectV2", own, shape, largest) for shape in shapes]


def _joined_dims(shapes: Sequence[Dims], axis: int, expanded: bool) -> Dims:
    known = [dims for dims in shapes if dims is not None]
    if len(known) < len(shapes):
        return None
    place = axis + len(known[0]) if axis < 0 else axis
    sizes: list[int | None] = []
    for number, column in enumerate(zip(*known, strict=True)):
        complete = [size for size in column if size is not None]
        if number == place:
            sizes.append(sum(complete) if len(complete) == len(column) else None)
        elif expanded:
            sizes.append(max(complete) if len(complete) == len(column) else None)
        else:
            sizes.append(complete[0] if complete else None)
    return tuple(sizes)


def sparse_split(
    keyword_required: Any = None,
    sp_input: SparseTensor | None = None,
    num_split: int | None = None,
    axis: int | None = None,
    name: str | None = None,
    split_dim: int | None = None,
) -> list[SparseTensor]:
    """Cut a sparse tensor into `num_split` parts along `axis`; where it does not divide, the first are one larger.

    Arguments are given by name; `keyword_required` takes none. `split_dim` is a former name of `axis`.
    """
    given = axis if split_dim is None else split_dim
    if keyword_required is not None or sp_input is None or num_split is None or given is None:
        raise InvalidArgumentError(
            "sparse_split takes its arguments by name", expected="sp_input, num_split and axis", actual="others"
        )
    sparse = sparse_of(sp_input)
    made = apply_op(
        "SparseSplit",
        convert_to_tensor(given, dtypes.int64),
        sparse.indices,
        sparse.values,
        sparse.dense_shape,
        num_split=num_split,
        name=name,
    )
    return [SparseTensor(*part) for part in zip(*made, strict=True)]


def sparse_slice(sp_input: SparseTensor, start: TensorLike, size: TensorLike, name: str | None = None) -> SparseTensor:
    """The part that begins at `start` and has at most `size` elements a dimension."""
    sparse = sparse_of(sp_input)
    made = apply_op(
        "SparseSlice",
        sparse.indices,
        sparse.values,
        sparse.dense_shape,
        convert_to_tensor(start, dtypes.int64),
        convert_to_tensor(size, dtypes.int64),
        name=name,
    )
    return SparseTensor(made.output_indices, made.output_values, made.output_shape)


def sparse_retain(sp_input: SparseTensor, to_retain: TensorLike) -> SparseTensor:
    """The entries for which the bool vector `to_retain` holds."""
    sparse = sparse_of(sp_input)
    chosen = convert_to_tensor(to_retain, dtypes.bool_)
    merge_dims(chosen.dims, merge_dims(sparse.values.dims, (None,)))
    rows = apply_op("Reshape", apply_op("Where", chosen), [-1])
    made = SparseTensor(
        apply_op("GatherV2", sparse.indices, rows, 0),
        apply_op("GatherV2", sparse.values, rows, 0),
        apply_op("Identity", sparse.dense_shape),
    )
    made.set_shape(sparse.shape)
    return made


def sparse_reset_shape(sp_input: SparseTensor, new_shape: TensorLike = None) -> SparseTensor:
    """The same entries in a larger shape, or without `new_shape` in the smallest one that holds them.

    Raises:
        InvalidArgumentError: `new_shape` has another rank, or is smaller somewhere.
    """
    sparse = sparse_of(sp_input)
    if new_shape is None:
        last = apply_op("Max", sparse.indices, 0)
        shape = apply_op("Maximum", constant(0, dtypes.int64), apply_op("AddV2", last, constant(1, dtypes.int64)))
    else:
        shape = _larger_shape(sparse, _int64(new_shape))
    return SparseTensor(apply_op("Identity", sparse.indices), apply_op("Identity", sparse.values), shape)


def _larger_shape(sparse: SparseTensor, shape: Tensor) -> Tensor:
    merge_dims(merge_dims(shape.dims, (None,)), sparse.dense_shape.dims)
    known, dims = constant_value(shape), sparse.shape.raw
    if known is not None and dims is not None and None not in dims:
        if any(size is None or size > new for size, new in zip(dims, known.tolist(), strict=True)):
            raise InvalidArgumentError("the new shape is smaller", expected=f">= {dims}", actual=known.tolist())
        return shape
    old = sparse.dense_shape
    same = apply_op("Equal", apply_op("Shape", old), apply_op("Shape", shape))
    fits = apply_op("All", apply_op("GreaterEqual", shape, old), 0)
    with shape.graph.control_dependencies([_checked(apply_op("All", same, 0), "another rank", [old, shape])]):
        compared = _checked(fits, "a smaller size", [old, shape])
    with shape.graph.control_dependencies([compared]):
        result: Tensor = apply_op("Identity", shape)
    return result


def _checked(holds: Tensor, what: str, data: list[Tensor]) -> Operation:
    result: Operation = apply_op("Assert", holds, [constant(f"the new shape has {what}:"), *data], summarize=10)
    return result


def sparse_fill_empty_rows(
    sp_input: SparseTensor, default_value: TensorLike, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """With `default_value` in the first column of each row that has no entry; and a bool vector: which those were."""
    sparse = sparse_of(sp_input)
    made = apply_op(
        "SparseFillEmptyRows",
        sparse.indices,
        sparse.values,
        sparse.dense_shape,
        convert_to_tensor(default_value, sparse.dtype),
        name=name,
    )
    filled = SparseTensor(made.output_indices, made.output_values, sparse.dense_shape)
    filled.set_shape(sparse.shape)
    return filled, made.empty_row_indicator


# ── ids as indices ───────────────────────────────────────────────────────────────────────────────────────────────────


def sparse_merge(
    sp_ids: Any, sp_values: SparseTensor, vocab_size: Any, name: str | None = None, already_sorted: bool = False
) -> SparseTensor:
    """Values by ids: the last dimension of `sp_values` is replaced by one (or several) that the ids index.

    Args:
        sp_ids: A `SparseTensor` of ids with the indices of `sp_values`, or a list of them.
        vocab_size: How many ids there are, or a list of that.
        already_sorted: The result is in row-major order without being sorted.
    """
    single = isinstance(sp_ids, SparseTensor | SparseTensorValue)
    ids = [sparse_of(part) for part in ([sp_ids] if single else sp_ids)]
    sizes = [vocab_size] if single else list(vocab_size)
    if not ids or len(ids) != len(sizes):
        raise InvalidArgumentError("each tensor of ids needs a vocab_size", expected=len(ids), actual=len(sizes))
    values = sparse_of(sp_values)
    with default_graph().name_scope(name or "SparseMerge"):
        columns = [apply_op("ExpandDims", _int64(part.values), 1) for part in ids]
        front = apply_op("StridedSlice", ids[0].indices, [0, 0], [0, -1], [1, 1], begin_mask=3, end_mask=1)
        shape_front = apply_op("StridedSlice", ids[0].dense_shape, [0], [-1], [1], begin_mask=1)
        counts = apply_op("Pack", [_int64(size) for size in sizes], axis=0)
        shape = apply_op("ConcatV2", [shape_front, counts], 0)
        merged = SparseTensor(apply_op("ConcatV2", [front, *columns], 1), values.values, shape)
        dims = ids[0].shape.raw
        ends = [constant_value(convert_to_tensor(size)) for size in sizes]
        if dims is not None:
            merged.set_shape(dims_of([*dims[:-1], *(None if end is None else int(end) for end in ends)]))
        return merged if already_sorted else sparse_reorder(merged)


def sparse_to_indicator(sp_input: SparseTensor, vocab_size: TensorLike, name: str | None = None) -> Tensor:
    """A dense bool tensor that is True at the ids which `sp_input` holds, in place of its last dimension."""
    ids = sparse_of(sp_input)
    with default_graph().name_scope(name or "SparseToIndicator"):
        held = apply_op("Fill", apply_op("Shape", ids.values), constant(True))
        merged = sparse_merge(ids, ids.with_values(held), vocab_size)
        return sparse_tensor_to_dense(merged, False, validate_indices=False)
