"""Conversion of dense tensors to sparse ones and back, and sparse tensors made from ids."""

from __future__ import annotations

from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, dims_of
from aioflow.graph.static_value import constant_value
from aioflow.graph.traits import sparse
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.forms import sparse_reorder
from aioflow.ops.sparse.tensor import SparseTensor, SparseTensorValue, int64_tensor, sparse_of

__all__ = ["sparse_merge", "sparse_tensor_to_dense", "sparse_to_dense", "sparse_to_indicator"]


def _dense(ctx: ShapeContext) -> Dims:
    ctx.require_rank("sparse_indices", 0, 2)
    ctx.require_rank("output_shape", 1)
    ctx.require_rank("sparse_values", 0, 1)
    ctx.require_rank("default_value", 0)
    return ctx.partial_shape("output_shape")


define_op(
    "SparseToDense",
    "sparse_indices: Tindices, output_shape: Tindices, sparse_values: T, default_value: T",
    "dense: T",
    ["validate_indices: bool = True", "T: type", "Tindices: {index}"],
    shape=_dense,
    traits=sparse(),
)


@gradient("SparseToDense")
def _dense_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    indices, values = op.inputs[0], op.inputs[2]
    taken = make("GatherNd", grad, indices if indices.dims is None or len(indices.dims) > 1 else _column(indices))
    # A scalar value stands at every index, so its gradient is the sum of theirs.
    by_values = _total(taken) if values.dims == () else taken
    # The default value fills all other elements, so its gradient is the total less that of the values.
    return [None, None, by_values, make("Sub", _total(grad), _total(taken))]


def _column(indices: Tensor) -> Tensor:
    """Return positions in a vector as a matrix with one column."""
    return make("Reshape", indices, [-1, 1])


def _total(tensor: Tensor) -> Tensor:
    return make("Sum", make("Reshape", tensor, [-1]), 0)


def sparse_to_dense(
    sparse_indices: TensorLike,
    output_shape: TensorLike,
    sparse_values: TensorLike,
    default_value: TensorLike = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """Return a dense tensor with `sparse_values` at `sparse_indices` and `default_value` elsewhere.

    Args:
        sparse_indices: [n, rank]; for a vector also [n] or a scalar.
        output_shape: Shape of the result, a vector.
        sparse_values: [n], or a scalar for all indices.
        default_value: A scalar.
        validate_indices: Whether to reject indices that repeat or are not in row-major order.
        name: Name of the node.

    Raises:
        InvalidArgumentError: an index is out of bounds, or with `validate_indices` repeats or is out of order.
    """
    values = convert_to_tensor(sparse_values)
    return make(
        "SparseToDense",
        sparse_indices,
        output_shape,
        values,
        convert_to_tensor(default_value, values.dtype),
        validate_indices=validate_indices,
        name=name,
    )


def sparse_tensor_to_dense(
    sp_input: SparseTensor,
    default_value: TensorLike | None = None,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """Return the dense tensor, with `default_value` where `sp_input` has no entry: see `sparse_to_dense`.

    The default is 0, "" or False.
    """
    sparse = sparse_of(sp_input)
    if default_value is None:
        default_value = _zero(sparse.dtype)
    return sparse_to_dense(
        sparse.indices, sparse.dense_shape, sparse.values, default_value, validate_indices, name or "SparseToDense"
    )


def _zero(dtype: DType) -> Tensor:
    return constant("" if dtype is dtypes.string else dtype.as_numpy_dtype(0), dtype)


def sparse_from_dense(tensor: TensorLike, name: str | None = None) -> SparseTensor:
    """Return the elements of a dense tensor that are not zero (or empty)."""
    with name_scope(name, "dense_to_sparse"):
        dense = convert_to_tensor(tensor)
        zeros = make("Fill", make("Shape", dense), _zero(dense.dtype))
        indices = make("Where", make("NotEqual", dense, zeros))
        return SparseTensor(indices, make("GatherNd", dense, indices), make("Shape", dense, out_type=dtypes.int64))


def sparse_eye(
    num_rows: TensorLike,
    num_columns: TensorLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> SparseTensor:
    """Return a [num_rows, num_columns] matrix (square by default) with ones on the diagonal."""
    with name_scope(name, "eye"):
        rows = int64_tensor(num_rows)
        columns = rows if num_columns is None else int64_tensor(num_columns)
        diagonal = make("Range", int64_tensor(0), make("Minimum", rows, columns), int64_tensor(1))
        ones = make("Fill", make("Shape", diagonal), constant(1, dtype))
        return SparseTensor(make("Pack", [diagonal, diagonal], axis=1), ones, make("Pack", [rows, columns], axis=0))


def sparse_merge(
    sp_ids: Any, sp_values: SparseTensor, vocab_size: Any, name: str | None = None, already_sorted: bool = False
) -> SparseTensor:
    """Return `sp_values` indexed by ids: a dimension for each tensor of ids replaces the last dimension.

    Args:
        sp_ids: A `SparseTensor` of ids with the indices of `sp_values`, or a list of such tensors.
        sp_values: The values.
        vocab_size: Number of ids, or a list with one number per tensor of ids.
        name: Name of the scope of the nodes.
        already_sorted: Whether the result is in row-major order without sorting.

    Raises:
        InvalidArgumentError: the number of tensors of ids differs from the number of sizes, or is 0.
    """
    single = isinstance(sp_ids, SparseTensor | SparseTensorValue)
    ids = [sparse_of(part) for part in ([sp_ids] if single else sp_ids)]
    sizes = [vocab_size] if single else list(vocab_size)
    if not ids or len(ids) != len(sizes):
        raise InvalidArgumentError("each tensor of ids needs a vocab_size", expected=len(ids), actual=len(sizes))
    values = sparse_of(sp_values)
    with name_scope(name, "SparseMerge"):
        columns = [make("ExpandDims", int64_tensor(part.values), 1) for part in ids]
        # All columns but the last one, which the ids replace.
        front = make("StridedSlice", ids[0].indices, [0, 0], [0, -1], [1, 1], begin_mask=3, end_mask=1)
        shape_front = make("StridedSlice", ids[0].dense_shape, [0], [-1], [1], begin_mask=1)
        counts = make("Pack", [int64_tensor(size) for size in sizes], axis=0)
        shape = make("ConcatV2", [shape_front, counts], 0)
        merged = SparseTensor(make("ConcatV2", [front, *columns], 1), values.values, shape)
        dims = ids[0].shape.raw
        ends = [constant_value(convert_to_tensor(size)) for size in sizes]
        if dims is not None:
            merged.set_shape(dims_of([*dims[:-1], *(None if end is None else int(end) for end in ends)]))
        return merged if already_sorted else sparse_reorder(merged)


def sparse_to_indicator(sp_input: SparseTensor, vocab_size: TensorLike, name: str | None = None) -> Tensor:
    """Return a dense bool tensor that is True at the ids in `sp_input`; the ids replace the last dimension."""
    ids = sparse_of(sp_input)
    with name_scope(name, "SparseToIndicator"):
        held = make("Fill", make("Shape", ids.values), constant(True))
        merged = sparse_merge(ids, ids.with_values(held), vocab_size)
        # A row may contain an id several times.
        return sparse_tensor_to_dense(merged, False, validate_indices=False)
