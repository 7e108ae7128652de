"""Ops that read or change a shape and never touch the elements: Shape, Reshape, Transpose, BroadcastTo and others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import (
    Dims,
    ShapeLike,
    TensorShape,
    check_axis,
    dims_of,
    format_dims,
    merge_dims,
    num_elements,
)
from aioflow.graph.static_value import LONGEST_KNOWN, StaticValue, moving
from aioflow.graph.traits import WRITING, Effect, Half, instant, movement, passes_on, reshapes, view
from aioflow.memory.values import Array
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.array.static_shapes import int_constant, known_dims, reduce_to, reshape_like
from aioflow.ops.core import PASSED_ON, scalar, unchanged
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.sparse.tensor import SparseTensor, SparseTensorValue, sparse_of

__all__ = [
    "bitcast",
    "broadcast_to",
    "ensure_shape",
    "expand_dims",
    "matrix_transpose",
    "rank",
    "reshape",
    "shape",
    "shape_n",
    "size",
    "squeeze",
    "transpose",
]


def times(size: int | None, factor: int | None) -> int | None:
    """Return the product of two sizes as far as it is known; zero times an unknown size is zero."""
    if size == 0 or factor == 0:
        return 0
    return None if size is None or factor is None else size * factor


def _vector_of_rank(tensor: Tensor) -> Dims:
    return (None if tensor.dims is None else len(tensor.dims),)


def _shape_value(tensor: Tensor) -> Array | None:
    # Output i of ShapeN is the shape of input i; Shape has one of each.
    dims = tensor.op.inputs[tensor.value_index].dims
    if dims is None or any(size is not None and size > tensor.dtype.max for size in dims):
        # The kernel raises the error for a size that is too large for the dtype.
        return None
    # An array of objects has None for each unknown size.
    return np.array(dims, dtype=object if None in dims else tensor.dtype.np_dtype)


define_op(
    "Shape",
    "input: T",
    "output: out_type",
    ["T: type", "out_type: {int32, int64} = int32"],
    shape=lambda ctx: _vector_of_rank(ctx.tensors[0]),
    value=StaticValue(fact=_shape_value),
    rows=rows.of_shapes,
    traits=instant(only_shapes=True, row_major=True),
)
define_op(
    "ShapeN",
    "input: N*T",
    "output: N*out_type",
    ["N: int >= 1", "T: type", "out_type: {int32, int64} = int32"],
    shape=lambda ctx: [_vector_of_rank(t) for t in ctx.tensors],
    value=StaticValue(fact=_shape_value),
    rows=rows.of_shapes,
    traits=instant(only_shapes=True),
)


def _size_value(tensor: Tensor) -> Array | None:
    count = num_elements(tensor.op.inputs[0].dims)
    return None if count is None or count > tensor.dtype.max else np.array(count, dtype=tensor.dtype.np_dtype)


define_op(
    "Size",
    "input: T",
    "output: out_type",
    ["T: type", "out_type: {int32, int64} = int32"],
    shape=scalar,
    value=StaticValue(fact=_size_value),
    rows=rows.of_size,
    traits=instant(only_shapes=True),
)


def _rank_value(tensor: Tensor) -> Array | None:
    dims = tensor.op.inputs[0].dims
    return None if dims is None else np.array(len(dims), dtype=np.int32)


define_op(
    "Rank",
    "input: T",
    "output: int32",
    ["T: type"],
    shape=scalar,
    value=StaticValue(fact=_rank_value),
    rows=rows.fixed,
    traits=instant(only_shapes=True),
)
not_differentiable("Shape", "ShapeN", "Size", "Rank")


def shape(
    input: TensorLike | SparseTensor, name: str | None = None, out_type: DTypeLike | None = dtypes.int32
) -> Tensor:
    """Return the shape as a vector of `out_type` (int32 or int64): a constant if the static shape is fully known."""
    wanted = as_dtype(dtypes.int32 if out_type is None else out_type)
    if isinstance(input, SparseTensor | SparseTensorValue):
        return make("Cast", sparse_of(input).dense_shape, DstT=wanted, name=name)
    tensor = convert_to_tensor(input)
    dims = known_dims(tensor)
    if dims is not None:
        return int_constant(dims, wanted, name or "Shape")
    return make("Shape", tensor, out_type=wanted, name=name)


def shape_n(input: Sequence[TensorLike], out_type: DTypeLike = dtypes.int32, name: str | None = None) -> list[Tensor]:
    """Return the shape of each tensor of a list; all tensors have the same dtype."""
    return make_list("ShapeN", input, out_type=out_type, name=name)


def size(
    input: TensorLike | SparseTensor, name: str | None = None, out_type: DTypeLike | None = dtypes.int32
) -> Tensor:
    """Return the number of elements as a scalar of `out_type`: a constant if the static shape is fully known."""
    wanted = as_dtype(dtypes.int32 if out_type is None else out_type)
    if isinstance(input, SparseTensor | SparseTensorValue):
        return make("Prod", make("Cast", sparse_of(input).dense_shape, DstT=wanted), 0, name=name)
    tensor = convert_to_tensor(input)
    count = num_elements(tensor.dims)
    if count is not None:
        return int_constant(count, wanted, name or "Size")
    return make("Size", tensor, out_type=wanted, name=name)


def rank(input: TensorLike | SparseTensor, name: str | None = None) -> Tensor:
    """Return the number of dimensions as an int32 scalar: a constant if it is known."""
    if isinstance(input, SparseTensor | SparseTensorValue):
        return size(sparse_of(input).dense_shape, name)
    tensor = convert_to_tensor(input)
    if tensor.dims is not None:
        return int_constant(len(tensor.dims), name=name or "Rank")
    return make("Rank", tensor, name=name)


# ── Reshape ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _reshape_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("shape", 1)
    value = ctx.value("shape")
    if value is not None:
        negative = [int(v) for v in value if v < 0]
        if len(negative) > 1 or negative not in ([], [-1]):
            raise InvalidArgumentError(
                "a shape has negative sizes", expected="sizes >= 0 and at most one -1", actual=value.tolist()
            )
    target = ctx.partial_shape("shape")
    source = ctx.dims("tensor")
    if target is None or source is None:
        return target
    return _infer_size(source, target)


def _known_product(dims: tuple[int | None, ...]) -> tuple[int, list[int]]:
    """Return the product of the known sizes and the positions of the unknown ones (empty if a known size is zero)."""
    total = math.prod(size for size in dims if size is not None)
    return total, [] if total == 0 else [i for i, d in enumerate(dims) if d is None]


def _infer_size(source: tuple[int | None, ...], target: tuple[int | None, ...]) -> Dims:
    count, source_open = _known_product(source)
    product, target_open = _known_product(target)
    # One equation determines at most one unknown size.
    if len(source_open) > 1 or len(target_open) > 1 or (source_open and target_open):
        return target
    if source_open:
        # The unknown size of the source is the quotient, which must be a whole number.
        fits = count == 0 or product % count == 0
    elif target_open:
        # The product is not 0, or no size would count as unknown.
        fits = count % product == 0
    else:
        fits = count == product
    if not fits:
        raise InvalidArgumentError(
            "the number of elements does not fit the shape",
            expected=format_dims(target),
            actual=f"a tensor of shape {format_dims(source)}",
        )
    if target_open:
        position = target_open[0]
        return (*target[:position], count // product, *target[position + 1 :])
    return target


define_op(
    "Reshape",
    "tensor: T, shape: Tshape",
    "output: T",
    ["T: type", "Tshape: {int32, int64} = int32"],
    shape=_reshape_shape,
    value=moving(lambda op, inputs: inputs[0].reshape(inputs[1].tolist())),
    rows=rows.reshaped,
    traits=reshapes(never_larger=True),
)


@gradient("Reshape")
def _reshape_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [reshape_like(grad, op.inputs[0]), None]


def reshape(tensor: TensorLike, shape: TensorLike, name: str | None = None) -> Tensor:
    """Return the same elements, in row-major order, in another shape.

    `shape` is an int32 or int64 vector of sizes; one of them may be -1 and is computed from the others.

    Raises:
        InvalidArgumentError: the number of elements does not fit.
    """
    return make("Reshape", tensor, _sizes(shape), name=name)


def _sizes(value: TensorLike) -> TensorLike:
    """Convert a TensorShape to a vector of sizes, with -1 for an unknown one; return other values as they are."""
    if not isinstance(value, TensorShape):
        return value
    return np.array([-1 if d is None else d for d in value.as_list()], dtype=np.int32)


# ── Transpose ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _transpose_shape(ctx: ShapeContext) -> Dims:
    source, perm_dims, perm = ctx.dims("x"), ctx.require_rank("perm", 0, 1), ctx.value("perm")
    length = num_elements(perm_dims)
    if source is None:
        if length is None or length < 2:
            # A permutation of one element fits a scalar as well as a vector.
            return None
        source = (None,) * length
    elif length is not None and length != len(source) and not (len(source) == 0 and length == 1):
        raise InvalidArgumentError(
            "the permutation does not have the tensor's rank", expected=f"{len(source)} axes", actual=f"{length}"
        )
    if perm is None:
        return (None,) * len(source)
    axes = [check_axis(int(p), len(source), "permutation axis") for p in perm.reshape(-1)] if source else []
    if len(set(axes)) != len(axes):
        raise InvalidArgumentError(
            "not a permutation", expected=f"each of 0..{len(source) - 1} once", actual=perm.tolist()
        )
    return tuple(source[a] for a in axes)


define_op(
    "Transpose",
    "x: T, perm: Tperm",
    "y: T",
    ["T: type", "Tperm: {int32, int64} = int32"],
    shape=_transpose_shape,
    value=moving(lambda op, inputs: inputs[0].transpose(inputs[1].tolist())),
    rows=rows.transposed,
    traits=view(cost=WRITING),
)


@gradient("Transpose")
def _transpose_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("Transpose", grad, make("InvertPermutation", op.inputs[1])), None]


def transpose(
    a: TensorLike, perm: TensorLike | None = None, name: str = "transpose", conjugate: bool = False
) -> Tensor:
    """Permute the dimensions: dimension `i` of the result is dimension `perm[i]` of `a`.

    Without `perm` the order is reversed. With `conjugate` complex elements are conjugated too.

    Raises:
        InvalidArgumentError: `perm` is not a permutation of the axes.
    """
    tensor = convert_to_tensor(a)
    if perm is None:
        if tensor.dims is None:
            # rank - 1 - i for each axis i.
            axes = make(
                "Sub", make("Sub", make("Rank", tensor), int_constant(1)), make("Range", 0, make("Rank", tensor), 1)
            )
        else:
            axes = int_constant(list(range(len(tensor.dims)))[::-1], name="perm")
        perm = axes
    result = make("Transpose", tensor, perm, name=name)
    return make("Conj", result) if conjugate and tensor.dtype.is_complex else result


def matrix_transpose(a: TensorLike, name: str = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """Swap the last two dimensions.

    Raises:
        InvalidArgumentError: the rank is below 2.
    """
    tensor = convert_to_tensor(a)
    if tensor.dims is None:
        count = make("Rank", tensor)
        head = make("Range", 0, make("Sub", count, int_constant(2)), 1)
        tail = make("Pack", [make("Sub", count, int_constant(1)), make("Sub", count, int_constant(2))])
        return transpose(tensor, make("ConcatV2", [head, tail], 0), name, conjugate)
    order = len(tensor.dims)
    if order < 2:
        raise InvalidArgumentError("a matrix has two dimensions", expected="rank >= 2", actual=format_dims(tensor.dims))
    return transpose(tensor, [*range(order - 2), order - 1, order - 2], name, conjugate)


# ── ExpandDims and Squeeze ────────────────────────────────────────────────────────────────────────────────────────────


def _expand_dims_shape(ctx: ShapeContext) -> Dims:
    source, axis = ctx.dims("input"), ctx.scalar("dim")
    if source is None or axis is None:
        return None
    position = check_axis(axis, len(source) + 1)
    return (*source[:position], 1, *source[position:])


define_op(
    "ExpandDims",
    "input: T, dim: Tdim",
    "output: T",
    ["T: type", "Tdim: {int32, int64} = int32"],
    shape=_expand_dims_shape,
    value=moving(lambda op, inputs: np.expand_dims(inputs[0], int(inputs[1].reshape(())))),
    rows=rows.expanded,
    traits=reshapes(),
)


@gradient("ExpandDims")
def _expand_dims_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [reshape_like(grad, op.inputs[0]), None]


def expand_dims(
    input: TensorLike, axis: TensorLike | None = None, name: str | None = None, dim: TensorLike | None = None
) -> Tensor:
    """Insert a dimension of size one at `axis` (negative counts from the end of the result); `dim` is the old name.

    Raises:
        InvalidArgumentError: `axis` is out of range, or missing.
    """
    position = axis if axis is not None else dim
    if position is None:
        raise InvalidArgumentError("expand_dims needs an axis", expected="axis=", actual="none")
    return make("ExpandDims", input, position, name=name)


def _squeeze_shape(ctx: ShapeContext) -> Dims:
    source, wanted = ctx.dims("input"), ctx.attrs["squeeze_dims"]
    if source is None:
        return None
    if not wanted:
        # A size that is unknown may be 1, so not even the rank is known.
        return None if None in source else tuple(d for d in source if d != 1)
    axes = {check_axis(a, len(source), "squeeze axis") for a in wanted}
    wrong = [a for a in axes if source[a] not in (None, 1)]
    if wrong:
        raise InvalidArgumentError(
            "cannot squeeze a dimension whose size is not 1",
            expected=f"1 at axis {wrong[0]}",
            actual=format_dims(source),
        )
    return tuple(d for i, d in enumerate(source) if i not in axes)


def _squeeze_value(op: Operation, inputs: list[Array]) -> Array:
    # NumPy squeezes all axes for None, and none for an empty tuple.
    return np.squeeze(inputs[0], tuple(op.attrs["squeeze_dims"]) or None)


define_op(
    "Squeeze",
    "input: T",
    "output: T",
    ["T: type", "squeeze_dims: list(int) >= 0 = []"],
    shape=_squeeze_shape,
    value=moving(_squeeze_value),
    rows=rows.squeezed,
    traits=reshapes(),
)


@gradient("Squeeze")
def _squeeze_grad(op: Operation, grad: Tensor) -> Tensor:
    return reshape_like(grad, op.inputs[0])


def squeeze(
    input: TensorLike, axis: TensorLike | None = None, name: str | None = None, squeeze_dims: TensorLike | None = None
) -> Tensor:
    """Remove the dimensions of size one in `axis` (an int or a list), or all. `squeeze_dims` is the old name of `axis`.

    Raises:
        InvalidArgumentError: a listed dimension is not of size one.
    """
    axes = axis if axis is not None else squeeze_dims
    chosen = [] if axes is None else list(axes) if isinstance(axes, list | tuple) else [axes]
    return make("Squeeze", input, squeeze_dims=chosen, name=name)


# ── broadcasting ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _broadcast_to_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("shape", 1)
    target, source = ctx.partial_shape("shape"), ctx.dims("input")
    if target is None or source is None:
        return target
    if len(source) > len(target):
        raise InvalidArgumentError(
            "cannot broadcast to a lower rank", expected=format_dims(target), actual=format_dims(source)
        )
    head = len(target) - len(source)
    # Sizes other than 1 are not broadcast, so they must match the target; 0 is left to the kernel.
    fixed = tuple(d if d is not None and d > 1 else None for d in source)
    return target[:head] + (merge_dims(target[head:], fixed) or ())


def _broadcast_to_value(op: Operation, inputs: list[Array]) -> Array | None:
    dims = inputs[1].tolist()
    return None if math.prod(dims) > LONGEST_KNOWN else np.broadcast_to(inputs[0], dims)


define_op(
    "BroadcastTo",
    "input: T, shape: Tidx",
    "output: T",
    ["T: type", "Tidx: {int32, int64} = int32"],
    shape=_broadcast_to_shape,
    value=StaticValue(_broadcast_to_value),
    rows=rows.broadcast,
    traits=movement(),
)


@gradient("BroadcastTo")
def _broadcast_to_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [reduce_to(grad, op.inputs[0]), None]


def broadcast_to(input: TensorLike, shape: TensorLike, name: str | None = None) -> Tensor:
    """Repeat dimensions of size one, and add leading ones, until the tensor has `shape`.

    Raises:
        InvalidArgumentError: a dimension is neither 1 nor the wanted size.
    """
    return make("BroadcastTo", input, _sizes(shape), name=name)


# ── the same bytes ────────────────────────────────────────────────────────────────────────────────────────────────────

_BITS = "reals, complexes, quantized, narrow"


def _bitcast_shape(ctx: ShapeContext) -> Dims:
    dims = ctx.dims("input")
    given: DType = ctx.attrs["T"]
    wanted: DType = ctx.attrs["type"]
    if dims is None or given.size == wanted.size:
        return dims
    if given.size > wanted.size:
        # The smaller elements that a larger one consists of lie side by side.
        return (*dims, given.size // wanted.size)
    ratio = wanted.size // given.size
    if not dims or dims[-1] not in (None, ratio):
        raise InvalidArgumentError(
            f"cannot bitcast {given} to {wanted}", expected=f"a last dimension of {ratio}", actual=format_dims(dims)
        )
    return dims[:-1]


define_op(
    "Bitcast",
    "input: T",
    "output: type",
    [f"T: {{{_BITS}}}", f"type: {{{_BITS}}}"],
    shape=_bitcast_shape,
    traits=reshapes(half=Half.WIDE),
)
not_differentiable("Bitcast")


def bitcast(input: TensorLike, type: DTypeLike, name: str | None = None) -> Tensor:
    """Reinterpret the bytes as another dtype. A smaller dtype adds a last dimension, a larger one removes it.

    Raises:
        InvalidArgumentError: the last dimension does not hold one element of the larger dtype.
    """
    return make("Bitcast", input, type=type, name=name)


define_op(
    "Snapshot",
    "input: T",
    "output: T",
    ["T: type"],
    shape=unchanged,
    value=PASSED_ON,
    rows=rows.each_element,
    traits=movement(),
)


@gradient("Snapshot", takes_slices=True)
def _snapshot_grad(op: Operation, grad: Gradient) -> Gradient:
    return grad


define_op(
    "EnsureShape",
    "input: T",
    "output: T",
    ["shape: shape", "T: type"],
    shape=lambda ctx: merge_dims(ctx.attrs["shape"], ctx.dims("input")),
    value=PASSED_ON,
    traits=passes_on(effect=Effect.FAILS),
)


@gradient("EnsureShape", takes_slices=True)
def _ensure_shape_grad(op: Operation, grad: Gradient) -> Gradient:
    return grad if isinstance(grad, IndexedSlices) else make("EnsureShape", grad, shape=op.attrs["shape"])


def ensure_shape(x: TensorLike, shape: ShapeLike | None, name: str | None = None) -> Tensor:
    """Return `x` with a static shape that is checked when the step runs.

    Raises:
        InvalidArgumentError: the shape does not fit, now or when the step runs.
    """
    return make("EnsureShape", x, shape=dims_of(shape), name=name)
