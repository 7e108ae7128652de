"""Tensors from sizes and scalars: Fill, zeros, ones, Range, LinSpace, OneHot, masks and grids."""

from __future__ import annotations

import builtins
import math
from math import ceil, isfinite
from typing import Any, Final, Literal

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import blank
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, TensorShape, num_elements
from aioflow.graph.static_value import LONGEST_KNOWN, StaticValue, constant_value, known_by, moving
from aioflow.graph.traits import Effect, bookkeeping, elementwise, movement
from aioflow.memory.values import Array
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.array.static_shapes import all_axes, int_constant, known_dims, shape_of
from aioflow.ops.core import scalar, unchanged
from aioflow.ops.sparse.tensor import SparseTensor

__all__ = [
    "fill",
    "lin_space",
    "linspace",
    "meshgrid",
    "one_hot",
    "ones",
    "ones_like",
    "range",
    "sequence_mask",
    "timestamp",
    "zeros",
    "zeros_like",
]

# Tensors of zeros with fewer elements become constants of the graph; each step computes the larger ones, which would
# only make the graph large.
_SMALL: Final = 1000


def _fill_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("dims", 1)
    ctx.require_rank("value", 0)
    value = ctx.value("dims")
    if value is not None and (value < 0).any():
        raise InvalidArgumentError("a size cannot be negative", expected="sizes >= 0", actual=value.tolist())
    return ctx.partial_shape("dims")


def _fill_value(op: Operation, inputs: list[Array]) -> Array | None:
    dims = inputs[0].tolist()
    return None if math.prod(dims) > LONGEST_KNOWN else np.full(dims, inputs[1])


define_op(
    "Fill",
    "dims: index_type, value: T",
    "output: T",
    ["T: type", "index_type: {int32, int64} = int32"],
    shape=_fill_shape,
    value=moving(_fill_value, slice(1, 2)),
    rows=rows.filled,
    traits=movement(row_major=True, rounded_by="value"),
)
define_op(
    "ZerosLike",
    "x: T",
    "y: T",
    ["T: type"],
    shape=unchanged,
    value=known_by(lambda x: blank(x.shape, x.dtype)),
    rows=rows.like,
    traits=movement(only_shapes=True, row_major=True),
)
define_op(
    "OnesLike",
    "x: T",
    "y: T",
    ["T: {numbers, bool}"],
    shape=unchanged,
    value=known_by(np.ones_like),
    rows=rows.like,
    traits=movement(only_shapes=True, row_major=True),
)
not_differentiable("ZerosLike", "OnesLike")


@gradient("Fill")
def _fill_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    dense = convert_to_tensor(grad)
    # The scalar is copied to every element, so its gradient is the sum of theirs.
    return [None, make("Sum", dense, all_axes(dense), keep_dims=False)]


def fill(dims: TensorLike, value: TensorLike, name: str | None = None, layout: None = None) -> Tensor:
    """Return a tensor of shape `dims` (an integer vector) with the scalar `value` everywhere.

    Raises:
        InvalidArgumentError: a size is negative, or `value` is not a scalar.
    """
    return make("Fill", _shape_vector(dims), value, name=name)


def _shape_vector(value: Any) -> TensorLike:
    """Return a vector of sizes, or a list that converts to one."""
    if isinstance(value, TensorShape):
        value = value.as_list()
    if isinstance(value, list | tuple):
        return value or int_constant([])
    tensor = convert_to_tensor(value)
    return tensor if tensor.dims != () else make("Reshape", tensor, int_constant([-1]))


def _filled(shape: TensorLike, dtype: DType, value: int, name: str | None) -> Tensor:
    if value and dtype is dtypes.string:
        raise DTypeError("strings cannot be filled with ones", expected="a numeric dtype or bool", actual=dtype.name)
    item: int | bytes = b"" if dtype is dtypes.string else value
    element = np.full((), item, dtype=dtype.np_dtype)
    dims = _static_sizes(shape)
    if dims is not None and (num_elements(dims) or 0) < _SMALL:
        return constant(np.full(dims, item, dtype=dtype.np_dtype), dtype, name=name or "Const")
    return make("Fill", _shape_vector(shape), constant(element, dtype), name=name)


def _static_sizes(shape: object) -> tuple[int, ...] | None:
    """Return the sizes if all are plain numbers, else None. A tensor, even a constant one, is left to the graph."""
    if isinstance(shape, Tensor):
        return None
    if isinstance(shape, TensorShape):
        shape = shape.as_list()
    try:
        array = np.asarray(shape)
    except (TypeError, ValueError):
        return None
    if array.size and array.dtype.kind not in "iu":
        return None
    if (array.astype(np.int64) < 0).any():
        raise InvalidArgumentError("a size cannot be negative", expected="sizes >= 0", actual=array.tolist())
    return tuple(int(d) for d in array.reshape(-1))


def zeros(shape: TensorLike, dtype: DTypeLike = dtypes.float32, name: str | None = None, layout: None = None) -> Tensor:
    """Return zeros (empty strings, False) of that shape.

    Raises:
        InvalidArgumentError: a size is negative.
    """
    return _filled(shape, as_dtype(dtype), 0, name)


def ones(shape: TensorLike, dtype: DTypeLike = dtypes.float32, name: str | None = None, layout: None = None) -> Tensor:
    """Return ones (True) of that shape.

    Raises:
        InvalidArgumentError: a size is negative.
    """
    return _filled(shape, as_dtype(dtype), 1, name)


def zeros_like(
    tensor: TensorLike | SparseTensor, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Return zeros in the shape of `tensor`, of its dtype or of `dtype`.

    With `optimize`, a static shape replaces the input. The zeros for a SparseTensor are dense.
    """
    if isinstance(tensor, SparseTensor):
        return _filled(tensor.dense_shape, tensor.dtype if dtype is None else as_dtype(dtype), 0, name)
    return _like(tensor, dtype, 0, name, optimize)


def ones_like(
    tensor: TensorLike, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Return ones in the shape of `tensor`, of its dtype or of `dtype`.

    With `optimize`, a static shape replaces the input.
    """
    return _like(tensor, dtype, 1, name, optimize)


def _like(value: TensorLike, dtype: DTypeLike | None, item: int, name: str | None, optimize: bool) -> Tensor:
    tensor = convert_to_tensor(value)
    wanted = tensor.dtype if dtype is None else as_dtype(dtype)
    dims = known_dims(tensor)
    if optimize and dims is not None:
        return _filled(dims, wanted, item, name or ("ones_like" if item else "zeros_like"))
    if wanted is tensor.dtype:
        return make("OnesLike" if item else "ZerosLike", tensor, name=name)
    result = _filled(make("Shape", tensor), wanted, item, name)
    result.set_shape(tensor.dims)
    return result


# ── Range and LinSpace ────────────────────────────────────────────────────────────────────────────────────────────────


def _range_shape(ctx: ShapeContext) -> Dims:
    for name in ("start", "limit", "delta"):
        ctx.require_rank(name, 0)
    parts = [ctx.value(name) for name in ("start", "limit", "delta")]
    known = [p.item() for p in parts if p is not None]
    return (None,) if len(known) < 3 else (range_length(*known),)


def range_length(start: float, limit: float, delta: float) -> int:
    """Return the number of elements of a range.

    Raises:
        InvalidArgumentError: the step is zero or has the wrong direction, or a number is not finite.
    """
    if not (isfinite(start) and isfinite(limit) and isfinite(delta)):
        raise InvalidArgumentError(
            "a range needs finite numbers", expected="finite numbers", actual=(start, limit, delta)
        )
    if delta == 0 or (start < limit and delta < 0) or (start > limit and delta > 0):
        raise InvalidArgumentError(
            "the range never ends", expected="a delta that leads from start to limit", actual=(start, limit, delta)
        )
    # Integers stay integers: as floats, large ones would be rounded, and with them the length.
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        # Floor division of the negated difference, negated, rounds the quotient up.
        return max(0, -((start - limit) // delta))
    return max(0, ceil(abs((limit - start) / delta)))


def _range_value(op: Operation, inputs: list[Array]) -> Array | None:
    start, limit, delta = (v.item() for v in inputs)
    if not delta or not math.isfinite(limit - start) or (limit - start) / delta > LONGEST_KNOWN:
        return None
    return np.arange(start, limit, delta, dtype=op.outputs[0].dtype.np_dtype)


define_op(
    "Range",
    "start: Tidx, limit: Tidx, delta: Tidx",
    "output: Tidx",
    ["Tidx: {floats, int8, int16, int32, int64, uint16, uint32, uint64} = int32"],
    shape=_range_shape,
    value=StaticValue(_range_value),
    traits=movement(row_major=True),
)
not_differentiable("Range")

_RANGE_ORDER: Final = (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64)


def range(
    start: TensorLike,
    limit: TensorLike | None = None,
    delta: TensorLike = 1,
    dtype: DTypeLike | None = None,
    name: str = "range",
) -> Tensor:
    """Return `start`, `start + delta`, … up to but excluding `limit`; `range(n)` counts from 0.

    The dtype is `dtype`, or the widest of the arguments' among int32, int64, float32 and float64.

    Raises:
        InvalidArgumentError: `delta` is zero or leads away from `limit`.
    """
    if limit is None:
        start, limit = 0, start
    wanted = None if dtype is None else as_dtype(dtype)
    values = [start, limit, delta]
    hint = next((v.dtype for v in values if isinstance(v, Tensor)), None)
    tensors = [convert_to_tensor(v, None if isinstance(v, Tensor) else wanted, dtype_hint=hint) for v in values]
    if wanted is None:
        wanted = max((t.dtype for t in tensors), key=_range_order)
    return make("Range", *[_cast(t, wanted) for t in tensors], name=name)


def _range_order(dtype: DType) -> int:
    return _RANGE_ORDER.index(dtype) if dtype in _RANGE_ORDER else -1


def _cast(tensor: Tensor, dtype: DType) -> Tensor:
    if tensor.dtype is dtype:
        return tensor
    value = constant_value(tensor)
    if value is not None and tensor.op.type == "Const" and tensor.dtype.is_numeric:
        return constant(value.astype(dtype.np_dtype))
    return make("Cast", tensor, DstT=dtype)


def _linspace_shape(ctx: ShapeContext) -> Dims:
    for name in ("start", "stop", "num"):
        ctx.require_rank(name, 0)
    count = ctx.scalar("num")
    if count is not None and count <= 0:
        raise InvalidArgumentError("linspace needs a positive number of elements", expected="num > 0", actual=count)
    return (count,)


define_op(
    "LinSpace",
    "start: T, stop: T, num: Tidx",
    "output: T",
    ["T: {floats}", "Tidx: {int32, int64} = int32"],
    shape=_linspace_shape,
    traits=elementwise(row_major=True),
)


@gradient("LinSpace")
def _linspace_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Differentiate start + part * (stop - start), where the parts go from 0 to 1."""
    dtype = grad.dtype
    parts = make("LinSpace", _cast(constant(0.0), dtype), _cast(constant(1.0), dtype), op.inputs[2])
    # ∂/∂stop = part and ∂/∂start = 1 - part.
    whole, of_stop = (make("Sum", t, int_constant([0]), keep_dims=False) for t in (grad, make("Mul", grad, parts)))
    return [make("Sub", whole, of_stop), of_stop, None]


def linspace(start: TensorLike, stop: TensorLike, num: TensorLike, name: str | None = None, axis: int = 0) -> Tensor:
    """Return `num` evenly spaced values from `start` to `stop`, both included, along a new dimension `axis`.

    `start` and `stop` may be tensors of one shape; each pair of elements spans its own interval.

    Raises:
        InvalidArgumentError: `num` is not positive.
    """
    first = convert_to_tensor(start)
    last = convert_to_tensor(stop, first.dtype)
    if first.dims == () and last.dims == ():
        return make("LinSpace", first, last, num, name=name)
    if first.dims is None or first.dims != last.dims:
        shape = make("BroadcastArgs", shape_of(first), shape_of(last))
        first, last = (make("BroadcastTo", t, shape) for t in (first, last))
    moved_first, moved_last = (make("ExpandDims", t, axis) for t in (first, last))
    steps = make("LinSpace", _cast(constant(0.0), first.dtype), _cast(constant(1.0), first.dtype), num)
    span = make("Mul", make("Sub", moved_last, moved_first), make("Reshape", steps, _along(axis, first)))
    return make("AddV2", moved_first, span, name=name)


def _along(axis: int, tensor: Tensor) -> Tensor:
    """Return the shape of a vector that lies along a new dimension `axis` of the tensor."""
    if tensor.dims is not None:
        position = axis % (len(tensor.dims) + 1)
        return int_constant([1] * position + [-1] + [1] * (len(tensor.dims) - position))
    order = make("Shape", make("Shape", tensor))
    if axis >= 0:
        others = make("Fill", make("Sub", order, int_constant([axis])), int_constant(1))
        return make("ConcatV2", [int_constant([1] * axis + [-1]), others], 0)
    others = make("Fill", make("AddV2", order, int_constant([axis + 1])), int_constant(1))
    return make("ConcatV2", [others, int_constant([-1] + [1] * (-axis - 1))], 0)


lin_space = linspace


# ── OneHot, masks, grids ──────────────────────────────────────────────────────────────────────────────────────────────


def _one_hot_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("depth", 0)
    axis, dims, depth = ctx.attrs["axis"], ctx.dims("indices"), ctx.scalar("depth")
    if axis < -1 or (dims is not None and axis > len(dims)):
        raise InvalidArgumentError(
            "the axis of one_hot is out of range", expected="-1 <= axis <= rank of the indices", actual=axis
        )
    if depth is not None and depth < 0:
        raise InvalidArgumentError("the depth of one_hot is negative", expected="depth >= 0", actual=depth)
    if dims is None:
        return None
    position = len(dims) if axis == -1 else axis
    return (*dims[:position], depth, *dims[position:])


define_op(
    "OneHot",
    "indices: TI, depth: int32, on_value: T, off_value: T",
    "output: T",
    ["axis: int = -1", "T: type", "TI: {uint8, int8, int32, int64} = int64"],
    shape=_one_hot_shape,
    rows=rows.one_hot,
    traits=movement(rounded_by="off_value"),
)
not_differentiable("OneHot")


def one_hot(
    indices: TensorLike,
    depth: TensorLike,
    on_value: TensorLike | None = None,
    off_value: TensorLike | None = None,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Return for each index a vector of length `depth`: `on_value` (1) at the index, `off_value` (0) elsewhere.

    An index out of range yields a vector of `off_value` alone. The new dimension is the last one, or `axis`.

    Raises:
        InvalidArgumentError: `depth` is negative, or `axis` is out of range.
        DTypeError: the values and `dtype` disagree.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    given = [convert_to_tensor(v, wanted) for v in (on_value, off_value) if v is not None]
    wanted = wanted or (given[0].dtype if given else dtypes.float32)
    # If only one of the two is given, it is both the first and the last of the list.
    on = _cast(constant(1), wanted) if on_value is None else given[0]
    off = _cast(constant(0), wanted) if off_value is None else given[-1]
    return make("OneHot", indices, depth, on, off, axis=-1 if axis is None else axis, name=name)


def sequence_mask(
    lengths: TensorLike, maxlen: TensorLike | None = None, dtype: DTypeLike = dtypes.bool_, name: str | None = None
) -> Tensor:
    """Return a mask: `mask[..., j]` is `j < lengths[...]`, for each j below `maxlen`.

    `maxlen` is the greatest length if not given.
    """
    counts = convert_to_tensor(lengths)
    if maxlen is None:
        # Range rejects a negative limit, which negative lengths have; Max of no lengths is the dtype's minimum.
        longest = make("Max", counts, all_axes(counts), keep_dims=False)
        limit = make("Maximum", _cast(constant(0), counts.dtype), longest)
    else:
        limit = convert_to_tensor(maxlen)
    row = make("Range", _cast(constant(0), limit.dtype), limit, _cast(constant(1), limit.dtype))
    column = _cast(make("ExpandDims", counts, -1), limit.dtype)
    mask = make("Less", row, column, name=name)
    wanted = as_dtype(dtype)
    return mask if wanted is dtypes.bool_ else make("Cast", mask, DstT=wanted)


def meshgrid(*args: TensorLike, indexing: Literal["xy", "ij"] = "xy", name: str = "meshgrid") -> list[Tensor]:
    """Return coordinate grids from vectors: one tensor per vector, all of the shape of their product.

    With `indexing="xy"` the first two dimensions are swapped (Cartesian order), with "ij" they are not (matrix order).

    Raises:
        InvalidArgumentError: `indexing` is unknown.
    """
    if indexing not in ("xy", "ij"):
        raise InvalidArgumentError("unknown indexing", expected="'xy' or 'ij'", actual=indexing)
    vectors = [convert_to_tensor(a) for a in args]
    count = len(vectors)
    places = list(builtins.range(count))
    if indexing == "xy" and count > 1:
        places[:2] = [1, 0]
    # Each vector lies along a dimension of its own, and is repeated along the others.
    shaped = [make("Reshape", v, [1] * p + [-1] + [1] * (count - p - 1)) for v, p in zip(vectors, places, strict=True)]
    lengths: list[TensorLike] = [0] * count
    for vector, place in zip(vectors, places, strict=True):
        length = num_elements(vector.dims)
        lengths[place] = make("Size", vector) if length is None else length
    grid = convert_to_tensor(lengths, dtypes.int32) if lengths else int_constant([])
    return [make("BroadcastTo", s, grid) for s in shaped]


define_op("Timestamp", "", "ts: float64", shape=scalar, traits=bookkeeping(effect=Effect.CHANGES))
not_differentiable("Timestamp")


def timestamp(name: str | None = None) -> Tensor:
    """Return the seconds since the epoch, read each time the node runs."""
    return make("Timestamp", name=name)
