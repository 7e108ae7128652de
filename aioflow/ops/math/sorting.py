"""Sorting and counting: argmax and argmin, top k, sort, histograms and confusion matrices."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, check_axis, merge_dims
from aioflow.graph.static_value import constant_value
from aioflow.graph.traits import reading, reduction
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list, make_tuple
from aioflow.ops.array.static_shapes import swap_with_last
from aioflow.ops.math.reduction import reduce_by
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.tensor import SparseTensor

Direction: TypeAlias = Literal["ASCENDING", "DESCENDING"]

# in_top_k, top_k and nth_element are public as names of aioflow.nn and aioflow.math only.
__all__ = [
    "arg_max",
    "arg_min",
    "argmax",
    "argmin",
    "argsort",
    "bincount",
    "confusion_matrix",
    "histogram_fixed_width",
    "histogram_fixed_width_bins",
    "sort",
]


# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _arg_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("dimension", 0)
    dims, axis = ctx.dims("input"), ctx.value("dimension")
    if dims is None:
        return None
    if len(dims) <= 1:
        return ()
    if axis is None:
        return (None,) * (len(dims) - 1)
    gone = check_axis(int(axis), len(dims))
    return dims[:gone] + dims[gone + 1 :]


_ARG_TYPES = "T: {reals, quantized, bool}"
define_op(
    "ArgMax",
    "input: T, dimension: Tidx",
    "output: output_type",
    [_ARG_TYPES, "Tidx: {int16, int32, int64} = int32", "output_type: {int16, uint16, int32, int64} = int64"],
    shape=_arg_shape,
    rows=rows.reduced(""),
    traits=reduction(),
)
define_op(
    "ArgMin",
    "input: T, dimension: Tidx",
    "output: output_type",
    [_ARG_TYPES, "Tidx: {index} = int32", "output_type: {index} = int64"],
    shape=_arg_shape,
    rows=rows.reduced(""),
    traits=reduction(),
)


def _top_shape(ctx: ShapeContext) -> list[Dims]:
    dims = ctx.require_rank("input", 1, -1)
    # k is an attribute of TopK, and an input of TopKV2.
    if "k" in ctx.attrs:
        k: int | None = ctx.attrs["k"]
    else:
        ctx.require_rank("k", 0)
        value = ctx.value("k")
        k = None if value is None else int(value)
    if k is not None and k < 0:
        raise InvalidArgumentError("k is negative", expected="k >= 0", actual=k)
    if dims is None:
        return [None, None]
    if k is not None and dims[-1] is not None and dims[-1] < k:
        raise InvalidArgumentError("input must have last dimension >= k", expected=f">= {k}", actual=dims[-1])
    return [(*dims[:-1], k)] * 2


define_op(
    "TopK",
    "input: T",
    "values: T, indices: int32",
    ["k: int >= 0", "sorted: bool = True", "T: {reals}"],
    shape=_top_shape,
    rows=rows.last_axes(1),
    traits=reduction(cost=reading(20)),
)
define_op(
    "TopKV2",
    "input: T, k: Tk",
    "values: T, indices: index_type",
    [
        "sorted: bool = True",
        "T: {reals}",
        "Tk: {int16, int32, int64} = int32",
        "index_type: {int16, int32, int64} = int32",
    ],
    shape=_top_shape,
    rows=rows.last_axes(1),
    traits=reduction(cost=reading(20)),
)


def _nth_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("n", 0)
    dims, n = ctx.require_rank("input", 1, -1), ctx.value("n")
    if n is not None and int(n) < 0:
        raise InvalidArgumentError("n is negative", expected="n >= 0", actual=int(n))
    if dims is None:
        return None
    if n is not None and dims[-1] is not None and dims[-1] <= int(n):
        raise InvalidArgumentError("input must have last dimension > n", expected=f"> {int(n)}", actual=dims[-1])
    return dims[:-1]


define_op(
    "NthElement",
    "input: T, n: int32",
    "values: T",
    ["reverse: bool = False", "T: {reals}"],
    shape=_nth_shape,
    rows=rows.last_axes(1),
    traits=reduction(cost=reading(20)),
)


def _in_top_shape(ctx: ShapeContext) -> Dims:
    predictions, targets = ctx.require_rank("predictions", 2), ctx.require_rank("targets", 1)
    return merge_dims(None if predictions is None else predictions[:1], targets) or (None,)


define_op(
    "InTopK",
    "predictions: float32, targets: T",
    "precision: bool",
    ["k: int", "T: {index} = int32"],
    shape=_in_top_shape,
    rows=rows.first_axes,
    traits=reduction(cost=reading(20)),
)
define_op(
    "InTopKV2",
    "predictions: float32, targets: T, k: T",
    "precision: bool",
    ["T: {index} = int32"],
    shape=_in_top_shape,
    rows=rows.first_axes,
    traits=reduction(cost=reading(20)),
)


def _bins(ctx: ShapeContext) -> Dims:
    count = ctx.scalar("size" if ctx.op_def.name == "Bincount" else "nbins")
    if count is not None and count < 0:
        raise InvalidArgumentError("the number of bins is negative", expected=">= 0", actual=count)
    return (count,)


define_op(
    "Bincount",
    "arr: int32, size: int32, weights: T",
    "bins: T",
    ["T: {int32, int64, float32, float64}"],
    shape=_bins,
    rows=rows.mixed,
    traits=reduction(cost=reading(4)),
)


def _histogram_shape(ctx: ShapeContext) -> Dims:
    merge_dims(ctx.require_rank("value_range", 1), (2,))
    ctx.require_rank("nbins", 0)
    return _bins(ctx)


define_op(
    "HistogramFixedWidth",
    "values: T, value_range: T, nbins: int32",
    "out: dtype",
    ["T: {int32, int64, float32, float64}", "dtype: {index} = int32"],
    shape=_histogram_shape,
    rows=rows.mixed,
    traits=reduction(cost=reading(4)),
)

not_differentiable("ArgMax", "ArgMin", "InTopK", "InTopKV2", "Bincount", "HistogramFixedWidth")


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@gradient("TopK", "TopKV2")
def _top_grad(op: Operation, grad: Tensor | None, _: Tensor | None) -> list[Tensor | None]:
    """Return the gradient of the values at their positions in the input, and 0 elsewhere.

    Each flat position of the input is a segment of its own.
    """
    nothing: list[Tensor | None] = [None] * (len(op.inputs) - 1)
    if grad is None:
        return [None, *nothing]
    x, indices = op.inputs[0], op.outputs[1]
    shape = make("Shape", x)
    size = make("Size", x)
    width = make("StridedSlice", shape, [-1], [0], [1], shrink_axis_mask=1)
    # The maximum avoids a division by zero if there are no columns.
    rows = make("FloorDiv", size, make("Maximum", width, 1))
    columns = make("StridedSlice", make("Shape", indices), [-1], [0], [1], shrink_axis_mask=1)
    places = make("Reshape", make("Cast", indices, DstT=dtypes.int32), make("Pack", [rows, columns], axis=0))
    # The flat position of an element is the start of its row plus its index.
    starts = make("ExpandDims", make("Range", 0, rows, 1) * width, -1)
    flat = make("UnsortedSegmentSum", make("Reshape", grad, [-1]), make("Reshape", places + starts, [-1]), size)
    return [make("Reshape", flat, shape), *nothing]


@gradient("NthElement")
def _nth_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Share the gradient equally among the elements that have the value."""
    x = op.inputs[0]
    chosen = make("Cast", make("Equal", make("ExpandDims", op.outputs[0], -1), x), DstT=grad.dtype)
    count = reduce_by("Sum", chosen, -1, True, None)
    return [chosen / count * make("ExpandDims", grad, -1), None]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def argmax(
    input: TensorLike,
    axis: TensorLike | None = None,
    name: str | None = None,
    dimension: TensorLike | None = None,
    output_type: DTypeLike = dtypes.int64,
) -> Tensor:
    """Return the index of the largest element along `axis`; the first of equal elements.

    Args:
        input: The elements.
        axis: The axis; 0 by default.
        name: Name of the node.
        dimension: Old name of `axis`.
        output_type: int16, uint16, int32 or int64.

    Raises:
        InvalidArgumentError: there is no such axis, or it is empty.
    """
    return make("ArgMax", input, _axis(axis, dimension), output_type=as_dtype(output_type), name=name)


def argmin(
    input: TensorLike,
    axis: TensorLike | None = None,
    name: str | None = None,
    dimension: TensorLike | None = None,
    output_type: DTypeLike = dtypes.int64,
) -> Tensor:
    """Return the index of the smallest element along `axis`, as int32 or int64. See `argmax`."""
    return make("ArgMin", input, _axis(axis, dimension), output_type=as_dtype(output_type), name=name)


def _axis(axis: TensorLike | None, dimension: TensorLike | None) -> TensorLike:
    if axis is not None and dimension is not None:
        raise InvalidArgumentError("both 'axis' and 'dimension' are given", expected="only 'axis'", actual=dimension)
    given = dimension if axis is None else axis
    return 0 if given is None else given


def arg_max(
    input: TensorLike, dimension: TensorLike, output_type: DTypeLike = dtypes.int64, name: str | None = None
) -> Tensor:
    """Return `argmax(input, dimension)`. The old name."""
    return argmax(input, dimension, name, output_type=output_type)


def arg_min(
    input: TensorLike, dimension: TensorLike, output_type: DTypeLike = dtypes.int64, name: str | None = None
) -> Tensor:
    """Return `argmin(input, dimension)`. The old name."""
    return argmin(input, dimension, name, output_type=output_type)


class TopK(NamedTuple):
    """The result of `top_k`."""

    values: Tensor
    indices: Tensor


def top_k(
    input: TensorLike,
    k: TensorLike = 1,
    sorted: bool = True,
    index_type: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> TopK:
    """Return the `k` largest elements along the last dimension, descending, and their indices.

    Of equal elements, the first comes first.

    Returns:
        (values, indices), both [..., k]; `indices` of `index_type`.

    Raises:
        InvalidArgumentError: the last dimension is smaller than k.
    """
    return make_tuple(TopK, "TopKV2", input, k, sorted=sorted, index_type=as_dtype(index_type), name=name)


def nth_element(input: TensorLike, n: TensorLike, reverse: bool = False, name: str | None = None) -> Tensor:
    """Return the n-th smallest element (from 0) along the last dimension; with `reverse`, the n-th largest.

    Raises:
        InvalidArgumentError: n is negative, or not less than the last dimension.
    """
    return make("NthElement", input, n, reverse=reverse, name=name)


def in_top_k(predictions: TensorLike, targets: TensorLike, k: TensorLike, name: str | None = None) -> Tensor:
    """Return for each row whether fewer than `k` classes have a greater prediction than the target class.

    Args:
        predictions: [batch, classes] of float32.
        targets: [batch] classes. A class out of range, or a row with a non-finite value, yields False.
        k: Number of top classes, a scalar.
        name: Name of the node.
    """
    return make("InTopKV2", predictions, targets, k, name=name)


def sort(
    values: TensorLike,
    axis: int = -1,
    direction: Direction = "ASCENDING",
    name: str | None = None,
) -> Tensor:
    """Sort the values along `axis`; `direction` is "ASCENDING" or "DESCENDING".

    Raises:
        InvalidArgumentError: there is no such axis or direction, or `axis` is not constant.
    """
    x = convert_to_tensor(values)
    with name_scope(name, "sort", [x]):
        return _sorted(x, axis, direction)[0]


def argsort(
    values: TensorLike,
    axis: int = -1,
    direction: Direction = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the int32 indices that sort the values along `axis`; equal values keep their order. See `sort`."""
    x = convert_to_tensor(values)
    with name_scope(name, "argsort", [x]):
        return _sorted(x, axis, direction)[1]


def _sorted(x: Tensor, axis: TensorLike, direction: Direction) -> tuple[Tensor, Tensor]:
    """Return the sorted values and their indices.

    TopKV2 over the whole last dimension is a stable descending sort.
    """
    if direction not in ("ASCENDING", "DESCENDING"):
        raise InvalidArgumentError("unknown direction", expected="ASCENDING or DESCENDING", actual=direction)
    known = constant_value(convert_to_tensor(axis))
    if known is None:
        raise InvalidArgumentError("the axis of a sort must be constant", expected="an int", actual=axis)
    ascending = direction == "ASCENDING"
    swap = _last_axis(x, int(known))
    keys = _reversed(x) if ascending else x
    if swap is not None:
        keys = make("Transpose", keys, swap)
    size = make("StridedSlice", make("Shape", keys), [-1], [0], [1], shrink_axis_mask=1)
    values, indices = make_list("TopKV2", keys, size)
    found = [_reversed(values) if ascending else values, indices]
    if swap is not None:
        found = [make("Transpose", t, swap) for t in found]
    for tensor in found:
        tensor.set_shape(x.shape)
    return found[0], found[1]


def _last_axis(x: Tensor, axis: int) -> list[int] | Tensor | None:
    """Return the permutation that swaps `axis` with the last axis; None if it is the last."""
    if x.dims is None:
        return None if axis == -1 else swap_with_last(x, axis)
    rank = len(x.dims)
    axis = check_axis(axis, rank)
    return None if axis == rank - 1 or rank == 0 else swap_with_last(x, axis)


def _reversed(x: Tensor) -> Tensor:
    """Map values so that their order is reversed; applied twice, it restores the values."""
    # Negation would overflow for the least integer, and reverse nothing for unsigned ones.
    if x.dtype.is_unsigned:
        return constant(x.dtype.max, dtype=x.dtype) - x
    # -1 - x = ~x swaps the least integer with the greatest.
    return -x - constant(1, dtype=x.dtype) if x.dtype.is_integer else -x


def bincount(
    arr: TensorLike | SparseTensor,
    weights: TensorLike | SparseTensor | None = None,
    minlength: TensorLike | None = None,
    maxlength: TensorLike | None = None,
    dtype: DTypeLike = dtypes.int32,
) -> Tensor:
    """Count how often each value 0, 1, … occurs in `arr`, or sum the weights of its occurrences.

    Args:
        arr: int32 elements. With weights, negative elements are ignored. Of a SparseTensor, the values are counted.
        weights: Weights in the shape of `arr`. The result has their dtype.
        minlength: The minimum length of the result, which is otherwise the largest value plus one.
        maxlength: The maximum length of the result. Values of `maxlength` or more are ignored.
        dtype: Dtype of the counts if there are no weights.

    Raises:
        InvalidArgumentError: an element is negative, and there are no weights.
    """
    x = convert_to_tensor(arr.values if isinstance(arr, SparseTensor) else arr, dtypes.int32)
    weights = weights.values if isinstance(weights, SparseTensor) else weights
    with name_scope("bincount", values=[x]):
        size = _bincount_size(x, minlength, maxlength)
        if weights is None:
            # Without weights each element counts 1.
            nothing = constant(np.zeros(0, as_dtype(dtype).np_dtype))
            return make("Bincount", x, size, nothing)
        # UnsortedSegmentSum ignores negative ids, but rejects ids that are too large.
        beyond = make("GreaterEqual", x, size)
        ids = x if maxlength is None else make("SelectV2", beyond, constant(-1), x)
        result = make("UnsortedSegmentSum", convert_to_tensor(weights), ids, size)
    return result


def _bincount_size(x: Tensor, minlength: TensorLike | None, maxlength: TensorLike | None) -> Tensor:
    # The maximum of no elements is the least int32; clamped to -1, it yields the size 0.
    top = make("Maximum", reduce_by("Max", x, None, False, None), -1)
    size: Tensor = top + 1
    if minlength is not None:
        size = make("Maximum", convert_to_tensor(minlength, dtypes.int32), size)
    if maxlength is not None:
        size = make("Minimum", convert_to_tensor(maxlength, dtypes.int32), size)
    return size


def histogram_fixed_width(
    values: TensorLike,
    value_range: TensorLike,
    nbins: TensorLike = 100,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """Count the values in each of `nbins` equal bins over `value_range`.

    Values outside the range count in the first or last bin.

    Raises:
        InvalidArgumentError: the range is empty, or there are no bins.
    """
    return make(
        "HistogramFixedWidth", values, value_range, nbins, dtype=as_dtype(dtype), name=name or "histogram_fixed_width"
    )


def histogram_fixed_width_bins(
    values: TensorLike,
    value_range: TensorLike,
    nbins: TensorLike = 100,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """Return the index of the bin of each value. See `histogram_fixed_width`."""
    x = convert_to_tensor(values)
    span = convert_to_tensor(value_range, x.dtype)
    bins = convert_to_tensor(nbins, dtypes.int32)
    with name_scope(name, "histogram_fixed_width_bins", [x, span, bins]):
        flat = make("Reshape", x, [-1])
        low, high = (make("StridedSlice", span, [i], [i + 1], [1], shrink_axis_mask=1) for i in (0, 1))
        scaled = (flat - low) / (high - low)
        place = make("Floor", make("Cast", bins, DstT=scaled.dtype) * scaled)
        last = make("Cast", bins - 1, DstT=scaled.dtype)
        inside = make("Minimum", make("Maximum", place, constant(0, dtype=scaled.dtype)), last)
        result = make("Reshape", make("Cast", inside, DstT=as_dtype(dtype)), make("Shape", x))
    return result


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: TensorLike | None = None,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
    weights: TensorLike | None = None,
) -> Tensor:
    """Count the elements (or sum their `weights`) for each label, by rows, and each prediction, by columns.

    Args:
        labels: [n] classes, or [n, 1] if `predictions` is [n].
        predictions: [n] classes, or [n, 1] if `labels` is [n].
        num_classes: The size of the matrix; by default the largest class plus one.
        dtype: Dtype of the matrix.
        name: Name scope of the nodes.
        weights: Weights of the elements; None counts each as 1.

    Raises:
        InvalidArgumentError: a class is negative or too large, or the shapes differ.
    """
    with name_scope(name, "confusion_matrix", [labels, predictions, num_classes, weights]):
        rows, columns = _squeezed(convert_to_tensor(labels), convert_to_tensor(predictions))
        rows, columns = (make("Cast", t, DstT=dtypes.int64) for t in (rows, columns))
        size: Tensor
        if num_classes is None:
            tops = [reduce_by("Max", t, None, False, None) for t in (rows, columns)]
            size = make("Maximum", *tops) + constant(1, dtypes.int64)
        else:
            given = convert_to_tensor(num_classes)
            size = given if given.dtype is dtypes.int64 else make("Cast", given, DstT=dtypes.int64)
        kind = as_dtype(dtype)
        if weights is None:
            values = make("OnesLike", make("Cast", rows, DstT=kind))
        else:
            values = make("Cast", convert_to_tensor(weights), DstT=kind)
        # ScatterNd rejects a class out of range; a flat index would fall into another row.
        places = make("Pack", [rows, columns], axis=1)
        result = make("ScatterNd", places, values, make("Pack", [size, size], axis=0))
        result.set_shape([None, None])
    return result


def _squeezed(labels: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Drop the last dimension, of size 1, of the tensor that has one dimension more than the other."""
    if labels.dims is None or predictions.dims is None:
        return labels, predictions
    surplus = len(predictions.dims) - len(labels.dims)
    if surplus == 1:
        return labels, make("Squeeze", predictions, squeeze_dims=[-1])
    if surplus == -1:
        return make("Squeeze", labels, squeeze_dims=[-1]), predictions
    return labels, predictions
