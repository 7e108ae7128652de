"""Arithmetic of sparse tensors: sums, products with dense tensors, reductions, softmax."""

from __future__ import annotations

from typing import Any, overload

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, check_axis
from aioflow.graph.traits import sparse, transcendental
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.sparse.tensor import SparseTensor, SparseTensorValue, first_size, sparse_of

__all__ = [
    "sparse_add",
    "sparse_maximum",
    "sparse_minimum",
    "sparse_reduce_max",
    "sparse_reduce_max_sparse",
    "sparse_reduce_sum",
    "sparse_reduce_sum_sparse",
    "sparse_softmax",
    "sparse_tensor_dense_matmul",
]

# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────

_A = "a_indices: int64, a_values: T, a_shape: int64"
_B = "b_indices: int64, b_values: T, b_shape: int64"
_INPUT = "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32"
_SP = "sp_indices: int64, sp_values: T, sp_shape: int64"


def _sum_shape(ctx: ShapeContext) -> list[Dims]:
    shape = ctx.require_rank("a_shape", 1)
    return [(None, first_size(shape)), (None,), (first_size(shape),)]


def _add_grad_shape(ctx: ShapeContext) -> list[Dims]:
    return [(first_size(ctx.require_rank(name, 2)),) for name in ("a_indices", "b_indices")]


def _product_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("a_indices", 2)
    ctx.require_rank("a_values", 1)
    shape, b = ctx.partial_shape("a_shape") or (None, None), ctx.require_rank("b", 2) or (None, None)
    if len(shape) != 2:
        raise InvalidArgumentError("a matrix product needs matrices", expected="rank 2", actual=f"rank {len(shape)}")
    rows, inner = shape[::-1] if ctx.attrs["adjoint_a"] else shape
    depth, columns = b[::-1] if ctx.attrs["adjoint_b"] else b
    if inner is not None and depth is not None and inner != depth:
        raise InvalidArgumentError("the inner sizes differ", expected=inner, actual=depth)
    return (rows, columns)


def _values_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("sp_indices", 2)
    return ctx.require_rank("sp_values", 1) or (None,)


def _reduced_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("input_shape", 1)
    shape, axes = ctx.value("input_shape"), ctx.value("reduction_axes")
    if shape is None or axes is None:
        return None
    sizes = shape.tolist()
    gone = {check_axis(int(a), len(sizes), "reduction axis") for a in axes.reshape(-1)}
    kept = ctx.attrs["keep_dims"]
    return tuple(1 if i in gone else size for i, size in enumerate(sizes) if kept or i not in gone)


def _entries_shape(ctx: ShapeContext) -> Dims:
    return (first_size(ctx.require_rank("sp_indices", 2)),)


define_op(
    "SparseAdd",
    f"{_A}, {_B}, thresh: Treal",
    "sum_indices: int64, sum_values: T, sum_shape: int64",
    ["T: {numbertype}", "Treal: {reals}"],
    shape=_sum_shape,
    traits=sparse(),
)
define_op(
    "SparseAddGrad",
    "backprop_val_grad: T, a_indices: int64, b_indices: int64, sum_indices: int64",
    "a_val_grad: T, b_val_grad: T",
    ["T: {numbertype}"],
    shape=_add_grad_shape,
    traits=sparse(),
)
define_op(
    "SparseTensorDenseAdd",
    "a_indices: Tindices, a_values: T, a_shape: Tindices, b: T",
    "output: T",
    ["T: {numbertype}", "Tindices: {index}"],
    shape=lambda ctx: ctx.dims("b"),
    traits=sparse(),
)
for _name, _types in (("SparseReduceSum", "{numbertype}"), ("SparseReduceMax", "{reals}")):
    define_op(
        _name, _INPUT, "output: T", ["keep_dims: bool = False", f"T: {_types}"], shape=_reduced_shape, traits=sparse()
    )
    define_op(
        f"{_name}Sparse",
        _INPUT,
        "output_indices: int64, output_values: T, output_shape: int64",
        ["keep_dims: bool = False", f"T: {_types}"],
        traits=sparse(),
    )
define_op(
    "SparseTensorDenseMatMul",
    "a_indices: Tindices, a_values: T, a_shape: int64, b: T",
    "product: T",
    ["T: type", "Tindices: {index} = int64", "adjoint_a: bool = False", "adjoint_b: bool = False"],
    shape=_product_shape,
    traits=sparse(),
)
define_op(
    "SparseSoftmax",
    _SP,
    "output: T",
    ["T: {float16, float32, float64}"],
    shape=_values_shape,
    traits=sparse(cost=transcendental(1.5)),
)
for _name in ("Mul", "Div", "Add"):
    define_op(
        f"SparseDenseCwise{_name}",
        f"{_SP}, dense: T",
        "output: T",
        ["T: {numbertype}"],
        shape=_entries_shape,
        traits=sparse(),
    )
for _name, _types in (("Maximum", "{reals}"), ("Minimum", "{numbertype}")):
    define_op(
        f"SparseSparse{_name}",
        f"{_A}, {_B}",
        "output_indices: int64, output_values: T",
        [f"T: {_types}"],
        shape=lambda ctx: [(None, None), (None,)],
        traits=sparse(),
    )

not_differentiable("SparseAddGrad", "SparseReduceSumSparse", "SparseReduceMax", "SparseReduceMaxSparse")

# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@gradient("SparseAdd")
def _add_grad(op: Operation, *grads: Tensor) -> list[Tensor | None]:
    # Only the second output, the values, has a gradient.
    a_grad, b_grad = make_list("SparseAddGrad", grads[1], op.inputs[0], op.inputs[3], op.outputs[0])
    return [None, a_grad, None, None, b_grad, None, None]


@gradient("SparseTensorDenseAdd")
def _dense_add_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [None, make("GatherNd", grad, op.inputs[0]), None, grad]


@gradient("SparseReduceSum")
def _reduce_sum_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return for each entry the gradient of the sum that includes it."""
    indices, _, shape, axes = op.inputs
    # The dense shape has one size per dimension.
    rank = make("Size", shape, out_type=dtypes.int32)
    # FloorMod makes negative axes count from the front.
    places = make("Reshape", make("FloorMod", make("AddV2", axes, rank), rank), [-1, 1])
    marks = make("Fill", make("Reshape", make("Size", axes, out_type=dtypes.int32), [1]), constant(1, dtypes.int64))
    reduced = make("ScatterNd", places, marks, make("Reshape", rank, [1]))
    one = constant(1, dtypes.int64)
    some = make("Greater", reduced, constant(0, dtypes.int64))
    # Restore the reduced dimensions of `grad` with size 1; every entry has index 0 along these.
    kept = make("SelectV2", some, one, shape)
    rows = make("SelectV2", some, constant(0, dtypes.int64), indices)
    return [None, make("GatherNd", make("Reshape", grad, kept), rows), None, None]


@gradient("SparseTensorDenseMatMul")
def _matmul_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    indices, values, shape, b = op.inputs
    adjoint_a, adjoint_b = op.attrs["adjoint_a"], op.attrs["adjoint_b"]
    # C = A B: dB = Aᴴ dC.
    by_b = make("SparseTensorDenseMatMul", indices, values, shape, grad, adjoint_a=not adjoint_a)
    if adjoint_b:
        by_b = make("Transpose", by_b, [1, 0])
        by_b = make("Conj", by_b) if by_b.dtype.is_complex else by_b
    rows = make("StridedSlice", indices, [0, 0], [0, 1], [1, 1], begin_mask=1, end_mask=1, shrink_axis_mask=2)
    columns = make("StridedSlice", indices, [0, 1], [0, 2], [1, 1], begin_mask=1, end_mask=1, shrink_axis_mask=2)
    if adjoint_a:
        rows, columns = columns, rows
    # Only existing entries need a gradient: dA[i, j] = Σₖ grad[i, k] · conj(b[j, k]); the adjoint swaps i and j.
    left = make("GatherV2", grad, rows, 0)
    right = make("GatherV2", make("Transpose", b, [1, 0]) if adjoint_b else b, columns, 0)
    if values.dtype.is_complex:
        left = make("Conj", left) if adjoint_a else left
        right = right if adjoint_a or adjoint_b else make("Conj", right)
        right = make("Conj", right) if adjoint_a and adjoint_b else right
    return [None, make("Sum", make("Mul", left, right), 1), None, by_b]


@gradient("SparseSoftmax")
def _softmax_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    indices, _, shape = op.inputs
    made = op.outputs[0]
    # dx = (dy - Σ dy y) y, as for the dense softmax, with the sum over the entries of a row.
    total = make("SparseReduceSum", indices, make("Mul", made, grad), shape, [-1], keep_dims=True)
    less = make("SparseDenseCwiseAdd", indices, grad, shape, make("Neg", total))
    return [None, make("Mul", less, made), None]


@gradient("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv")
def _cwise_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return the gradients of both inputs.

    The gradient of an element of the dense input is the sum over all entries that it is combined with.
    """
    indices, values, shape, dense = op.inputs
    sizes = make("Shape", dense, out_type=dtypes.int64)
    extra = make("Sub", make("Size", shape, out_type=dtypes.int32), make("Rank", dense))
    # The dense input broadcasts: drop the extra leading dimensions of the indices, and clamp them to 0 for size 1.
    begin = make("Pack", [constant(0), extra], axis=0)
    own = make("Slice", indices, begin, [-1, -1])
    places = make("Minimum", own, make("Sub", sizes, constant(1, dtypes.int64)))
    if op.type == "SparseDenseCwiseAdd":
        return [None, grad, None, make("ScatterNd", places, grad, sizes)]
    met = make("GatherNd", dense, places)
    if op.type == "SparseDenseCwiseMul":
        by_values, by_met = make("Mul", grad, met), make("Mul", grad, values)
    else:
        by_values = make("RealDiv", grad, met)
        # ∂(v / d)/∂d = -v / d².
        by_met = make("Mul", grad, make("RealDiv", make("Neg", values), make("Mul", met, met)))
    return [None, by_values, None, make("ScatterNd", places, by_met, sizes)]


# ── sums and products ─────────────────────────────────────────────────────────────────────────────────────────────────


@overload
def sparse_add(
    a: SparseTensor | SparseTensorValue,
    b: SparseTensor | SparseTensorValue,
    threshold: TensorLike | None = None,
    thresh: TensorLike | None = None,
) -> SparseTensor: ...


@overload
def sparse_add(
    a: SparseTensor | SparseTensorValue,
    b: TensorLike,
    threshold: TensorLike | None = None,
    thresh: TensorLike | None = None,
) -> Tensor: ...


@overload
def sparse_add(
    a: TensorLike,
    b: SparseTensor | SparseTensorValue,
    threshold: TensorLike | None = None,
    thresh: TensorLike | None = None,
) -> Tensor: ...


def sparse_add(
    a: Any, b: Any, threshold: TensorLike | None = None, thresh: TensorLike | None = None
) -> SparseTensor | Tensor:
    """Return the sum of two tensors of equal shape; it is sparse if both are.

    Args:
        a: A sparse or dense tensor.
        b: Likewise. At least one of both is sparse.
        threshold: Entries of a sparse result that are smaller in absolute value are dropped; 0, the default, drops
            none.
        thresh: Former name of `threshold`.

    Raises:
        DTypeError: neither tensor is sparse.
        InvalidArgumentError: the shapes differ.
    """
    kinds = [isinstance(part, SparseTensor | SparseTensorValue) for part in (a, b)]
    if kinds == [False, False]:
        raise DTypeError("at least one input must be sparse", expected="a SparseTensor", actual=(a, b))
    if kinds != [True, True]:
        sparse, dense = (sparse_of(a), b) if kinds[0] else (sparse_of(b), a)
        other = convert_to_tensor(dense, sparse.dtype)
        return make("SparseTensorDenseAdd", sparse.indices, sparse.values, sparse.dense_shape, other)
    left, right = sparse_of(a), sparse_of(b)
    least = threshold if threshold is not None else thresh if thresh is not None else 0
    # The threshold is for absolute values, which are real.
    real = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}.get(left.dtype, left.dtype)
    made = make_list(
        "SparseAdd",
        left.indices,
        left.values,
        left.dense_shape,
        right.indices,
        right.values,
        right.dense_shape,
        convert_to_tensor(least, real),
    )
    result = SparseTensor(*made)
    result.set_shape(left.shape)
    return result


def sparse_tensor_dense_matmul(
    sp_a: SparseTensor, b: TensorLike, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Tensor:
    """Return the dense product of a sparse and a dense matrix.

    Args:
        sp_a: The sparse matrix.
        b: The dense matrix.
        adjoint_a: Whether to use the conjugate transpose of `sp_a`.
        adjoint_b: Whether to use the conjugate transpose of `b`.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the inner sizes differ, or an index is out of bounds.
    """
    sparse = sparse_of(sp_a)
    return make(
        "SparseTensorDenseMatMul",
        sparse.indices,
        sparse.values,
        sparse.dense_shape,
        convert_to_tensor(b, sparse.dtype),
        adjoint_a=adjoint_a,
        adjoint_b=adjoint_b,
        name=name,
    )


def sparse_softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Return the softmax along the last dimension over the existing entries; missing entries stay missing."""
    sparse = sparse_of(sp_input)
    return sparse.with_values(make("SparseSoftmax", sparse.indices, sparse.values, sparse.dense_shape, name=name))


def sparse_maximum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """Return the larger element wherever either tensor has an entry; missing entries count as zero."""
    return _extreme("SparseSparseMaximum", sp_a, sp_b, name)


def sparse_minimum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """Return the smaller element wherever either tensor has an entry; missing entries count as zero."""
    return _extreme("SparseSparseMinimum", sp_a, sp_b, name)


def _extreme(op_type: str, sp_a: SparseTensor, sp_b: SparseTensor, name: str | None) -> SparseTensor:
    a, b = sparse_of(sp_a), sparse_of(sp_b)
    parts = a.indices, a.values, a.dense_shape, b.indices, b.values, b.dense_shape
    indices, values = make_list(op_type, *parts, name=name)
    return SparseTensor(indices, values, a.dense_shape)


# ── reductions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _reduced(op_type: str, sp_input: SparseTensor, axis: TensorLike | None, keepdims: bool | None) -> list[Tensor]:
    sparse = sparse_of(sp_input)
    rank = sparse.shape.ndims
    if axis is None:
        axis = make("Range", 0, make("Size", sparse.dense_shape), 1) if rank is None else list(range(rank))
    axes = convert_to_tensor(axis, dtypes.int32)
    parts = sparse.indices, sparse.values, sparse.dense_shape
    return make_list(op_type, *parts, axes, keep_dims=bool(keepdims))


def _chosen(new: object, old: object) -> Any:
    return old if new is None else new


def sparse_reduce_sum(
    sp_input: SparseTensor,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the sums along `axis` (one, several, or by default all) as a dense tensor.

    Args:
        sp_input: The tensor.
        axis: The axes to reduce.
        keepdims: Whether to keep the reduced dimensions, with size 1.
        reduction_axes: Former name of `axis`.
        keep_dims: Former name of `keepdims`.
    """
    return _reduced("SparseReduceSum", sp_input, _chosen(axis, reduction_axes), _chosen(keepdims, keep_dims))[0]


def sparse_reduce_sum_sparse(
    sp_input: SparseTensor,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """Return the result of `sparse_reduce_sum` as a sparse tensor, without sums over no entries."""
    return SparseTensor(
        *_reduced("SparseReduceSumSparse", sp_input, _chosen(axis, reduction_axes), _chosen(keepdims, keep_dims))
    )


def sparse_reduce_max(
    sp_input: SparseTensor,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the largest entries along `axis` as a dense tensor, zero where there are no entries.

    The arguments are those of `sparse_reduce_sum`.
    """
    return _reduced("SparseReduceMax", sp_input, _chosen(axis, reduction_axes), _chosen(keepdims, keep_dims))[0]


def sparse_reduce_max_sparse(
    sp_input: SparseTensor,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    reduction_axes: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """Return the result of `sparse_reduce_max` as a sparse tensor, without positions that have no entries."""
    return SparseTensor(
        *_reduced("SparseReduceMaxSparse", sp_input, _chosen(axis, reduction_axes), _chosen(keepdims, keep_dims))
    )
