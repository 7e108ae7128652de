"""Reductions of the rows of a tensor by segments: sorted segment ids, or unsorted ones with their number given."""

from __future__ import annotations

from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, gradient
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.ops.apply import TensorLike, apply_op, constant, convert_to_tensor
from aioflow.ops.matrix import graph_scope

__all__ = [
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sqrt_n",
    "unsorted_segment_sum",
]


# ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _sorted_shape(ctx: ShapeContext) -> Dims:
    data = ctx.require_rank("data", 1, -1)
    ctx.require_rank("segment_ids", 1)
    return None if data is None else (None, *data[1:])


def _unsorted_shape(ctx: ShapeContext) -> Dims:
    data, ids = ctx.dims("data"), ctx.dims("segment_ids")
    ctx.require_rank("num_segments", 0)
    if data is None or ids is None:
        return None
    ctx.require_rank("data", len(ids), -1)
    merge_dims(data[: len(ids)], ids)
    count = ctx.scalar("num_segments")
    if count is not None and count < 0:
        raise InvalidArgumentError("the number of segments is negative", expected=">= 0", actual=count)
    return (count, *data[len(ids) :])


for _name, _types in {
    "SegmentSum": "{numbertype}",
    "SegmentMean": "{numbertype}",
    "SegmentProd": "{numbertype}",
    "SegmentMax": "{reals}",
    "SegmentMin": "{reals}",
}.items():
    define_op(
        _name,
        "data: T, segment_ids: Tindices",
        "output: T",
        [f"T: {_types}", "Tindices: {index}"],
        shape=_sorted_shape,
    )
for _name, _types, _ids in (
    ("UnsortedSegmentSum", "{numbertype}", "{int16, int32, int64}"),
    ("UnsortedSegmentProd", "{numbertype}", "{index}"),
    ("UnsortedSegmentMax", "{reals}", "{index}"),
    ("UnsortedSegmentMin", "{reals}", "{index}"),
):
    define_op(
        _name,
        "data: T, segment_ids: Tindices, num_segments: Tnumsegments",
        "output: T",
        [f"T: {_types}", f"Tindices: {_ids}", "Tnumsegments: {index} = int32"],
        shape=_unsorted_shape,
    )


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(params: Tensor, ids: Tensor) -> Tensor:
    result: Tensor = apply_op("GatherV2", params, ids, constant(0))
    return result


def _column(like: Tensor, ids: Tensor) -> Tensor:
    """The shape that makes a value for each id broadcast against the rows of `like`: the ids' own, then ones."""
    if like.dims is not None and ids.dims is not None:
        shape = apply_op("Shape", ids)
        extra = len(like.dims) - len(ids.dims)
        return shape if extra == 0 else apply_op("ConcatV2", [shape, [1] * extra], 0)  # type: ignore[no-any-return]  # one output
    shape = apply_op("Shape", ids)
    ones = apply_op("Fill", apply_op("Reshape", apply_op("Rank", like) - apply_op("Rank", ids), [1]), 1)
    result: Tensor = apply_op("ConcatV2", [shape, ones], 0)
    return result


def _counts(data: Tensor, ids: Tensor) -> Tensor:
    """How many rows each sorted segment has, shaped to broadcast against the segments."""
    ones = apply_op("Fill", _column(data, ids), constant(1, dtype=data.dtype))
    result: Tensor = apply_op("SegmentSum", ones, ids)
    return result


@gradient("SegmentSum")
def _segment_sum_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [_rows(grad, op.inputs[1]), None]


@gradient("SegmentMean")
def _segment_mean_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    data, ids = op.inputs
    return [_rows(apply_op("RealDiv", grad, _counts(data, ids)), ids), None]


@gradient("SegmentMax", "SegmentMin")
def _segment_extreme_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Shared equally among the rows that attain the extreme."""
    data, ids = op.inputs
    chosen = apply_op("Cast", apply_op("Equal", data, _rows(op.outputs[0], ids)), DstT=grad.dtype)
    count = apply_op("SegmentSum", chosen, ids)
    return [_rows(apply_op("RealDiv", grad, count), ids) * chosen, None]


@gradient("SegmentProd")
def _segment_prod_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    data, ids = op.inputs
    zero, zeros, nonzero = _zeros_apart(data)
    grad = _only_single_zero(grad, apply_op("SegmentSum", zeros, ids))
    product = _rows(apply_op("SegmentProd", nonzero, ids), ids)
    partial = apply_op("SelectV2", zero, product, apply_op("RealDiv", _rows(op.outputs[0], ids), nonzero))
    return [_rows(grad, ids) * partial, None]


def _zeros_apart(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the data is zero; the same as int32; and the data with ones in those places."""
    zero = apply_op("Equal", data, constant(0, dtype=data.dtype))
    return (
        zero,
        apply_op("Cast", zero, DstT=dtypes.int32),
        apply_op("SelectV2", zero, constant(1, dtype=data.dtype), data),
    )


def _only_single_zero(grad: Tensor, zeros: Tensor) -> Tensor:
    """No gradient to segments with two zeros: leaving one factor out still gives 0."""
    result: Tensor = apply_op("SelectV2", apply_op("Greater", zeros, 1), constant(0, dtype=grad.dtype), grad)
    return result


def _kept_rows(params: Tensor, ids: Tensor, like: Tensor) -> Tensor:
    """`params[ids]`, with zeros where the id is negative: those rows are in no segment."""
    gathered = _rows(params, apply_op("Maximum", ids, constant(0, dtype=ids.dtype)))
    counted = apply_op("GreaterEqual", ids, constant(0, dtype=ids.dtype))
    if like.dims is None or ids.dims is None or len(like.dims) != len(ids.dims):
        counted = apply_op("Reshape", counted, _column(like, ids))
    result: Tensor = apply_op("SelectV2", counted, gathered, constant(0, dtype=params.dtype))
    return result


@gradient("UnsortedSegmentSum")
def _unsorted_sum_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [_kept_rows(grad, op.inputs[1], op.inputs[0]), None, None]


@gradient("UnsortedSegmentMax", "UnsortedSegmentMin")
def _unsorted_extreme_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Shared equally among the rows that attain the extreme."""
    data, ids, count = op.inputs
    chosen = apply_op("Cast", apply_op("Equal", data, _kept_rows(op.outputs[0], ids, data)), DstT=grad.dtype)
    chosen = chosen * _kept_rows(apply_op("OnesLike", op.outputs[0]), ids, data)
    shares = apply_op("UnsortedSegmentSum", chosen, ids, count)
    return [_kept_rows(apply_op("DivNoNan", grad, shares), ids, data) * chosen, None, None]


@gradient("UnsortedSegmentProd")
def _unsorted_prod_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    data, ids, count = op.inputs
    zero, zeros, nonzero = _zeros_apart(data)
    grad = _only_single_zero(grad, apply_op("UnsortedSegmentSum", zeros, ids, count))
    product = _kept_rows(apply_op("UnsortedSegmentProd", nonzero, ids, count), ids, data)
    quotient = apply_op("RealDiv", _kept_rows(op.outputs[0], ids, data), nonzero)
    partial = apply_op("SelectV2", zero, product, quotient)
    return [_kept_rows(grad, ids, data) * partial, None, None]


# ── builders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def segment_sum(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The sums of the rows of `data` that have the same id; 0 for an id that does not occur.

    Args:
        segment_ids: [n] ids of the rows, not negative and ascending; the last says how many segments there are.

    Raises:
        InvalidArgumentError: the ids are not sorted, negative, or not one a row.
    """
    result: Tensor = apply_op("SegmentSum", data, segment_ids, name=name)
    return result


def segment_mean(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The means of the rows of each segment; 0 for an id that does not occur. See `segment_sum`."""
    result: Tensor = apply_op("SegmentMean", data, segment_ids, name=name)
    return result


def segment_max(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The greatest elements of the rows of each segment; 0 for an id that does not occur. See `segment_sum`."""
    result: Tensor = apply_op("SegmentMax", data, segment_ids, name=name)
    return result


def segment_min(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The least elements of the rows of each segment; 0 for an id that does not occur. See `segment_sum`."""
    result: Tensor = apply_op("SegmentMin", data, segment_ids, name=name)
    return result


def segment_prod(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The products of the rows of each segment; 1 for an id that does not occur. See `segment_sum`."""
    result: Tensor = apply_op("SegmentProd", data, segment_ids, name=name)
    return result


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The sums of the slices of `data` that have the same id, for ids 0 … num_segments - 1; 0 for an absent one.

    Args:
        segment_ids: Ids in any order; their shape is a prefix of that of `data`. Negative ones are left out.

    Raises:
        InvalidArgumentError: an id is too large, or the shapes do not fit.
    """
    result: Tensor = apply_op("UnsortedSegmentSum", data, segment_ids, num_segments, name=name)
    return result


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The greatest elements of each segment; the least finite value without any. See `unsorted_segment_sum`."""
    result: Tensor = apply_op("UnsortedSegmentMax", data, segment_ids, num_segments, name=name)
    return result


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The least elements of each segment; the greatest finite value without any. See `unsorted_segment_sum`."""
    result: Tensor = apply_op("UnsortedSegmentMin", data, segment_ids, num_segments, name=name)
    return result


def unsorted_segment_prod(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The products of each segment; 1 where there are no elements. See `unsorted_segment_sum`."""
    result: Tensor = apply_op("UnsortedSegmentProd", data, segment_ids, num_segments, name=name)
    return result


def _segment_sizes(data: Tensor, ids: Tensor, count: Any) -> Tensor:
    """The size of each segment (1 for an empty one), shaped to broadcast against the segments."""
    ones = apply_op("Fill", apply_op("Shape", ids), constant(1, dtype=data.dtype))
    sizes = apply_op("Maximum", apply_op("UnsortedSegmentSum", ones, ids, count), constant(1, dtype=data.dtype))
    if data.dims is not None and ids.dims is not None:
        for _ in range(len(data.dims) - len(ids.dims)):
            sizes = apply_op("ExpandDims", sizes, -1)
        return sizes  # type: ignore[no-any-return]  # one output
    extra = apply_op("Fill", apply_op("Reshape", apply_op("Rank", data) - apply_op("Rank", ids), [1]), 1)
    shape = apply_op("ConcatV2", [apply_op("Shape", sizes), extra], 0)
    result: Tensor = apply_op("Reshape", sizes, shape)
    return result


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The means of each segment; 0 where there are no elements. See `unsorted_segment_sum`."""
    x, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
    with graph_scope((x, ids), name or "UnsortedSegmentMean"):
        return unsorted_segment_sum(x, ids, num_segments) / _segment_sizes(x, ids, num_segments)


def unsorted_segment_sqrt_n(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The sums of each segment divided by the square root of its size. See `unsorted_segment_sum`."""
    x, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
    with graph_scope((x, ids), name or "UnsortedSegmentSqrtN"):
        size = apply_op("Sqrt", _segment_sizes(x, ids, num_segments))
        result: Tensor = unsorted_segment_sum(x, ids, num_segments) / size
    return result
