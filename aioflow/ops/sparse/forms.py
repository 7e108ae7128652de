"""Slicing, joining and reshaping of sparse tensors.

`ops.sparse.dense` converts from and to dense tensors; `ops.sparse.math` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.static_value import constant_value
from aioflow.graph.traits import sparse
from aioflow.memory.values import Array
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list, make_op
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.tensor import SparseTensor, first_size, int64_tensor, sparse_of

__all__ = [
    "sparse_concat",
    "sparse_fill_empty_rows",
    "sparse_reorder",
    "sparse_reset_shape",
    "sparse_reshape",
    "sparse_retain",
    "sparse_slice",
    "sparse_split",
    "sparse_transpose",
]

# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _reordered(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("input_shape", 1)
    return [_or_open(ctx.require_rank("input_indices", 2), 2), _or_open(ctx.require_rank("input_values", 1), 1)]


def _or_open(dims: Dims, rank: int) -> Dims:
    return (None,) * rank if dims is None else dims


def _reshaped(ctx: ShapeContext) -> list[Dims]:
    rows = first_size(ctx.require_rank("input_indices", 2))
    ctx.require_rank("input_shape", 1)
    new = ctx.require_rank("new_shape", 1)
    return [(rows, first_size(new)), _or_open(new, 1)]


def _joined(ctx: ShapeContext) -> list[Dims]:
    rows: int | None = 0
    columns: Dims = (None,)
    shape: Dims = (None,)
    for indices, values, one in zip(
        ctx.dims_list("indices"), ctx.dims_list("values"), ctx.dims_list("shapes"), strict=True
    ):
        if any(dims is not None and len(dims) != rank for dims, rank in ((indices, 2), (values, 1), (one, 1))):
            raise InvalidArgumentError(
                "the parts of a sparse tensor have the wrong ranks",
                expected="a matrix of indices, vectors of values and sizes",
                actual=" and ".join(map(format_dims, (indices, values, one))),
            )
        # Either the indices or the values may tell the number of entries.
        count = merge_dims(None if indices is None else indices[:1], values)
        rows = None if rows is None or count is None or count[0] is None else rows + count[0]
        columns = merge_dims(columns, None if indices is None else indices[1:])
        shape = merge_dims(shape, one)
    return [(rows, first_size(columns)), (rows,), shape]


def _parts(ctx: ShapeContext) -> list[Dims]:
    count = ctx.attrs["num_split"]
    rank = first_size(ctx.require_rank("shape", 1))
    return [*[(None, rank)] * count, *[(None,)] * count, *[(rank,)] * count]


def _sliced(ctx: ShapeContext) -> list[Dims]:
    shape = ctx.require_rank("shape", 1)
    return [(None, first_size(shape)), (None,), _or_open(shape, 1)]


def _filled(ctx: ShapeContext) -> list[Dims]:
    indices = ctx.require_rank("indices", 2)
    merge_dims(None if indices is None else indices[:1], ctx.require_rank("values", 1))
    rank = ctx.require_rank("dense_shape", 1)
    merge_dims(None if indices is None else indices[1:], rank)
    ctx.require_rank("default_value", 0)
    shape = ctx.partial_shape("dense_shape")
    return [(None, first_size(rank)), (None,), (first_size(shape) if shape else None,), (first_size(indices),)]


_SPARSE = "indices: int64, values: T, {}: int64"
_MADE = "output_indices: int64, output_values: T, output_shape: int64"

define_op(
    "SparseReorder",
    "input_indices: int64, input_values: T, input_shape: int64",
    "output_indices: int64, output_values: T",
    ["T: type"],
    shape=_reordered,
    traits=sparse(),
)
define_op(
    "SparseReshape",
    "input_indices: int64, input_shape: int64, new_shape: int64",
    "output_indices: int64, output_shape: int64",
    shape=_reshaped,
    traits=sparse(),
)
define_op(
    "SparseConcat",
    "indices: N*int64, values: N*T, shapes: N*int64",
    _MADE,
    ["concat_dim: int", "N: int >= 2", "T: type"],
    shape=_joined,
    traits=sparse(),
)
define_op(
    "SparseSplit",
    "split_dim: int64, " + _SPARSE.format("shape"),
    "output_indices: num_split*int64, output_values: num_split*T, output_shape: num_split*int64",
    ["num_split: int >= 1", "T: type"],
    shape=_parts,
    traits=sparse(),
)
define_op(
    "SparseSlice",
    _SPARSE.format("shape") + ", start: int64, size: int64",
    _MADE,
    ["T: type"],
    shape=_sliced,
    traits=sparse(),
)
define_op(
    "SparseSliceGrad",
    "backprop_val_grad: T, input_indices: int64, input_start: int64, output_indices: int64",
    "val_grad: T",
    ["T: {numbertype}"],
    shape=lambda ctx: (first_size(ctx.require_rank("input_indices", 2)),),
    traits=sparse(),
)
define_op(
    "SparseFillEmptyRows",
    _SPARSE.format("dense_shape") + ", default_value: T",
    "output_indices: int64, output_values: T, empty_row_indicator: bool, reverse_index_map: int64",
    ["T: type"],
    shape=_filled,
    traits=sparse(),
)
define_op(
    "SparseFillEmptyRowsGrad",
    "reverse_index_map: int64, grad_values: T",
    "d_values: T, d_default_value: T",
    ["T: type"],
    shape=lambda ctx: [_or_open(ctx.require_rank("reverse_index_map", 1), 1), ()],
    traits=sparse(),
)

not_differentiable("SparseReshape", "SparseConcat", "SparseSplit", "SparseSliceGrad", "SparseFillEmptyRowsGrad")

# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@gradient("SparseReorder")
def _reorder_grad(op: Operation, _: Tensor, grad: Tensor) -> list[Tensor | None]:
    indices, _, shape = op.inputs
    # Reorder the entry numbers in the same way to find the position that each value moved to.
    count = make("Size", op.inputs[1], out_type=dtypes.int32)
    _, order = make_list("SparseReorder", indices, make("Range", 0, count, 1), shape)
    return [None, make("GatherV2", grad, make("InvertPermutation", order), 0), None]


@gradient("SparseSlice")
def _slice_grad(op: Operation, *grads: Tensor) -> list[Tensor | None]:
    back = make("SparseSliceGrad", grads[1], op.inputs[0], op.inputs[3], op.outputs[0])
    return [None, back, None, None, None]


@gradient("SparseFillEmptyRows")
def _fill_grad(op: Operation, *grads: Tensor) -> list[Tensor | None]:
    values_grad, default_grad = make_list("SparseFillEmptyRowsGrad", op.outputs[3], grads[1])
    return [None, values_grad, None, default_grad]


# ── other forms ───────────────────────────────────────────────────────────────────────────────────────────────────────


def sparse_reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Return the entries in row-major order of their indices."""
    sparse = sparse_of(sp_input)
    indices, values = make_list("SparseReorder", sparse.indices, sparse.values, sparse.dense_shape, name=name)
    ordered = SparseTensor(indices, values, make("Identity", sparse.dense_shape))
    ordered.set_shape(sparse.shape)
    return ordered


def sparse_reshape(sp_input: SparseTensor, shape: TensorLike, name: str | None = None) -> SparseTensor:
    """Return the same elements, in row-major order, in another shape; one size may be -1.

    Raises:
        InvalidArgumentError: the number of elements differs.
    """
    sparse = sparse_of(sp_input)
    with name_scope(name, "SparseReshape"):
        new = int64_tensor(shape)
        indices, sizes = make_list("SparseReshape", sparse.indices, sparse.dense_shape, new)
        result = SparseTensor(indices, make("Identity", sparse.values), sizes)
        result.set_shape(_reshaped_dims(sparse.shape.raw, constant_value(new)))
        return result


def _reshaped_dims(old: Dims, new: Array | None) -> Dims:
    """Return the known part of the new shape. Raise InvalidArgumentError for sizes that cannot be right."""
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
        raise InvalidArgumentError("the new shape has a different number of elements", expected=total, actual=sizes)
    return tuple(total // known if size is None else size for size in dims)


def _product(dims: Sequence[int | None]) -> int:
    product = 1
    for size in dims:
        product *= 1 if size is None else size
    return product


def sparse_transpose(sp_input: SparseTensor, perm: TensorLike | None = None, name: str | None = None) -> SparseTensor:
    """Return the tensor with its dimensions in the order `perm`, and its entries in row-major order.

    By default, the order of the dimensions is reversed.

    Raises:
        InvalidArgumentError: `perm` names a dimension that does not exist.
    """
    sparse = sparse_of(sp_input)
    with name_scope(name, "SparseTranspose"):
        if perm is None:
            rank = make("Size", sparse.dense_shape, out_type=dtypes.int32)
            known = sparse.shape.ndims
            perm = make("Range", rank - 1, -1, -1) if known is None else list(range(known))[::-1]
        order = convert_to_tensor(perm, dtypes.int32)
        # Column i of the indices has the positions along dimension i.
        indices = make("GatherV2", sparse.indices, order, 1)
        moved = SparseTensor(indices, sparse.values, make("GatherV2", sparse.dense_shape, order, 0))
        axes = constant_value(order)
        if axes is not None and sparse.shape.raw is not None:
            dims = sparse.shape.raw
            if any(not 0 <= axis < len(dims) for axis in axes.reshape(-1)):
                raise InvalidArgumentError(
                    "perm names a dimension that does not exist", expected=f"0..{len(dims) - 1}", actual=axes.tolist()
                )
            moved.set_shape([dims[int(axis)] for axis in axes])
        return sparse_reorder(moved)


def sparse_expand_dims(sp_input: SparseTensor, axis: int | None = None, name: str | None = None) -> SparseTensor:
    """Insert a dimension of size 1 at `axis`, by default as the last one.

    Raises:
        InvalidArgumentError: the axis does not exist, or the rank is unknown.
    """
    sparse = sparse_of(sp_input)
    rank, place = sparse.shape.ndims, -1 if axis is None else axis
    if rank is None or not -rank - 1 <= place <= rank:
        wanted = "a known rank" if rank is None else f"-{rank + 1}..{rank}"
        raise InvalidArgumentError("cannot add a dimension there", expected=wanted, actual=place)
    place = place + rank + 1 if place < 0 else place
    with name_scope(name, "expand_dims"):
        count = make("Shape", sparse.values, out_type=dtypes.int32)
        zeros = make("Fill", make("ConcatV2", [count, [1]], 0), constant(0, dtypes.int64))
        columns = [_columns(sparse.indices, 0, place), zeros, _columns(sparse.indices, place, rank)]
        shape = sparse.dense_shape
        one = constant([1], dtypes.int64)
        sizes = [make("Slice", shape, [0], [place]), one, make("Slice", shape, [place], [rank - place])]
        dims = sparse.shape.raw or ()
        made = SparseTensor(
            make("ConcatV2", columns, 1),
            sparse.values,
            make("ConcatV2", sizes, 0),
        )
        made.set_shape((*dims[:place], 1, *dims[place:]))
        return made


def _columns(indices: Tensor, begin: int, end: int) -> Tensor:
    return make("Slice", indices, [0, begin], [-1, end - begin])


# ── joining and splitting ─────────────────────────────────────────────────────────────────────────────────────────────


def sparse_concat(
    axis: int,
    sp_inputs: Sequence[SparseTensor],
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: int | None = None,
    expand_nonconcat_dims: bool | None = None,
) -> SparseTensor:
    """Concatenate sparse tensors, each in row-major order, along `axis`.

    Args:
        axis: The axis, counted from the end if negative.
        sp_inputs: The tensors.
        name: Name of the node.
        expand_nonconcat_dim: Whether other sizes may differ; the result has the largest of each.
        concat_dim: Former name of `axis`.
        expand_nonconcat_dims: Former name of `expand_nonconcat_dim`.

    Raises:
        InvalidArgumentError: a size along another axis differs.
    """
    given = axis if concat_dim is None else concat_dim
    parts = [sparse_of(part) for part in sp_inputs]
    if len(parts) == 1:
        return parts[0]
    shapes = [part.dense_shape for part in parts]
    if expand_nonconcat_dim or expand_nonconcat_dims:
        shapes = _widened(shapes, given)
    made = make_list(
        "SparseConcat", [p.indices for p in parts], [p.values for p in parts], shapes, concat_dim=given, name=name
    )
    result = SparseTensor(*made)
    result.set_shape(_joined_dims([part.shape.raw for part in parts], given, shapes[0] is not parts[0].dense_shape))
    return result


def _widened(shapes: Sequence[Tensor], axis: int) -> list[Tensor]:
    """Return each shape with the largest sizes of all shapes, except along the axis."""
    largest = make("Max", make("Pack", list(shapes), axis=0), 0)
    rank = make("Size", largest, out_type=dtypes.int32)
    place = make("FloorMod", constant(axis), rank)
    # Along the axis, each tensor keeps its own size.
    own = make("Equal", make("Range", 0, rank, 1), place)
    return [make("SelectV2", own, shape, largest) for shape in shapes]


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
    keyword_required: object = None,
    sp_input: SparseTensor | None = None,
    num_split: int | None = None,
    axis: int | None = None,
    name: str | None = None,
    split_dim: int | None = None,
) -> list[SparseTensor]:
    """Split a sparse tensor into `num_split` parts along `axis`.

    If the size does not divide evenly, the first parts are larger by one. Pass arguments by name; `keyword_required`
    accepts no value. `split_dim` is a former name of `axis`.
    """
    given = axis if split_dim is None else split_dim
    if keyword_required is not None or sp_input is None or num_split is None or given is None:
        raise InvalidArgumentError(
            "sparse_split takes its arguments by name", expected="sp_input, num_split and axis", actual="others"
        )
    sparse = sparse_of(sp_input)
    made = make_list(
        "SparseSplit",
        convert_to_tensor(given, dtypes.int64),
        sparse.indices,
        sparse.values,
        sparse.dense_shape,
        num_split=num_split,
        name=name,
    )
    # The op returns all indices, then all values, then all shapes, so the parts of one tensor are `num_split` apart.
    return [SparseTensor(*made[i::num_split]) for i in range(num_split)]


def sparse_slice(sp_input: SparseTensor, start: TensorLike, size: TensorLike, name: str | None = None) -> SparseTensor:
    """Return the part that begins at `start` and has at most `size` elements per dimension."""
    sparse = sparse_of(sp_input)
    made = make_list(
        "SparseSlice",
        sparse.indices,
        sparse.values,
        sparse.dense_shape,
        convert_to_tensor(start, dtypes.int64),
        convert_to_tensor(size, dtypes.int64),
        name=name,
    )
    return SparseTensor(*made)


def sparse_retain(sp_input: SparseTensor, to_retain: TensorLike) -> SparseTensor:
    """Return the entries for which the bool vector `to_retain` is True.

    Raises:
        InvalidArgumentError: the number of bools differs from the number of entries.
    """
    sparse = sparse_of(sp_input)
    chosen = convert_to_tensor(to_retain, dtypes.bool_)
    merge_dims(chosen.dims, merge_dims(sparse.values.dims, (None,)))
    rows = make("Reshape", make("Where", chosen), [-1])
    made = SparseTensor(
        make("GatherV2", sparse.indices, rows, 0),
        make("GatherV2", sparse.values, rows, 0),
        make("Identity", sparse.dense_shape),
    )
    made.set_shape(sparse.shape)
    return made


def sparse_reset_shape(sp_input: SparseTensor, new_shape: TensorLike | None = None) -> SparseTensor:
    """Return the same entries in a larger shape; without `new_shape`, in the smallest one that holds them.

    Raises:
        InvalidArgumentError: `new_shape` has a different rank, or is smaller in a dimension.
    """
    sparse = sparse_of(sp_input)
    if new_shape is None:
        last = make("Max", sparse.indices, 0)
        # Without entries the maximum is the least int64, and the size becomes 0.
        shape = make("Maximum", constant(0, dtypes.int64), make("AddV2", last, constant(1, dtypes.int64)))
    else:
        shape = _larger_shape(sparse, int64_tensor(new_shape))
    return SparseTensor(make("Identity", sparse.indices), make("Identity", sparse.values), shape)


def _larger_shape(sparse: SparseTensor, shape: Tensor) -> Tensor:
    merge_dims(merge_dims(shape.dims, (None,)), sparse.dense_shape.dims)
    known, dims = constant_value(shape), sparse.shape.raw
    if known is not None and dims is not None and None not in dims:
        if any(size is None or size > new for size, new in zip(dims, known.tolist(), strict=True)):
            raise InvalidArgumentError("the new shape is smaller", expected=f">= {dims}", actual=known.tolist())
        return shape
    old = sparse.dense_shape
    same = make("Equal", make("Shape", old), make("Shape", shape))
    fits = make("All", make("GreaterEqual", shape, old), 0)
    # Sizes can be compared only if the ranks are equal.
    with shape.graph.control_dependencies([_checked(make("All", same, 0), "a different rank", [old, shape])]):
        compared = _checked(fits, "a smaller size", [old, shape])
    with shape.graph.control_dependencies([compared]):
        result = make("Identity", shape)
    return result


def _checked(holds: Tensor, what: str, data: list[Tensor]) -> Operation:
    return make_op("Assert", holds, [constant(f"the new shape has {what}:"), *data], summarize=10)


def sparse_fill_empty_rows(
    sp_input: SparseTensor, default_value: TensorLike, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """Set the first column of each row without entries to `default_value`.

    Returns:
        The tensor, and a bool vector that is True for the rows that were empty.
    """
    sparse = sparse_of(sp_input)
    indices, values, was_empty, _ = make_list(
        "SparseFillEmptyRows",
        sparse.indices,
        sparse.values,
        sparse.dense_shape,
        convert_to_tensor(default_value, sparse.dtype),
        name=name,
    )
    filled = SparseTensor(indices, values, sparse.dense_shape)
    filled.set_shape(sparse.shape)
    return filled, was_empty
