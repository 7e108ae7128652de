"""Reductions of rows by segments, for sorted segment ids, or for unsorted ids and a number of segments."""

from __future__ import annotations

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.graph.traits import opaque
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.scoping import name_scope

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


# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _sorted_shape(ctx: ShapeContext) -> Dims:
    data = ctx.require_rank("data", 1, -1)
    ctx.require_rank("segment_ids", 1)
    # The number of segments is the last id plus one, which only a step knows.
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
        rows=rows.by_segments,
        traits=opaque(),
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
        traits=opaque(),
    )


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(params: Tensor, ids: Tensor) -> Tensor:
    return make("GatherV2", params, ids, constant(0))


def _column(like: Tensor, ids: Tensor) -> Tensor:
    """Return the shape that makes one value per id broadcast against the rows of `like`.

    It is the shape of the ids, followed by ones.
    """
    if like.dims is not None and ids.dims is not None:
        shape = make("Shape", ids)
        extra = len(like.dims) - len(ids.dims)
        return shape if extra == 0 else make("ConcatV2", [shape, [1] * extra], 0)
    shape = make("Shape", ids)
    ones = make("Fill", make("Reshape", make("Rank", like) - make("Rank", ids), [1]), 1)
    return make("ConcatV2", [shape, ones], 0)


def _counts(data: Tensor, ids: Tensor) -> Tensor:
    """Count the rows of each sorted segment, in a shape that broadcasts against the segments."""
    ones = make("Fill", _column(data, ids), constant(1, dtype=data.dtype))
    return make("SegmentSum", ones, ids)


@gradient("SegmentSum")
def _segment_sum_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [_rows(grad, op.inputs[1]), None]


@gradient("SegmentMean")
def _segment_mean_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    data, ids = op.inputs
    # The gradient of the sum, divided by the number of rows.
    return [_rows(make("RealDiv", grad, _counts(data, ids)), ids), None]


@gradient("SegmentMax", "SegmentMin")
def _segment_extreme_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Share the gradient equally among the rows that attain the extreme."""
    data, ids = op.inputs
    chosen = make("Cast", make("Equal", data, _rows(op.outputs[0], ids)), DstT=grad.dtype)
    count = make("SegmentSum", chosen, ids)
    return [_rows(make("RealDiv", grad, count), ids) * chosen, None]


@gradient("SegmentProd")
def _segment_prod_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    data, ids = op.inputs
    # The gradient of an element is the product of the others. That is output / element, except for a single zero, for
    # which it is the product of the nonzero elements.
    zero, zeros, nonzero = _zeros_apart(data)
    grad = _only_single_zero(grad, make("SegmentSum", zeros, ids))
    product = _rows(make("SegmentProd", nonzero, ids), ids)
    partial = make("SelectV2", zero, product, make("RealDiv", _rows(op.outputs[0], ids), nonzero))
    return [_rows(grad, ids) * partial, None]


def _zeros_apart(data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask of the zeros, the mask as int32, and the data with ones instead of zeros."""
    zero = make("Equal", data, constant(0, dtype=data.dtype))
    return (
        zero,
        make("Cast", zero, DstT=dtypes.int32),
        make("SelectV2", zero, constant(1, dtype=data.dtype), data),
    )


def _only_single_zero(grad: Tensor, zeros: Tensor) -> Tensor:
    """Set the gradient to 0 for segments with two or more zeros: without one factor, the product is still 0."""
    return make("SelectV2", make("Greater", zeros, 1), constant(0, dtype=grad.dtype), grad)


def _kept_rows(params: Tensor, ids: Tensor, like: Tensor) -> Tensor:
    """Return `params[ids]`, with zeros for negative ids, whose rows belong to no segment."""
    # GatherV2 rejects negative indices; what it gathers in their place is dropped below.
    gathered = _rows(params, make("Maximum", ids, constant(0, dtype=ids.dtype)))
    counted = make("GreaterEqual", ids, constant(0, dtype=ids.dtype))
    if like.dims is None or ids.dims is None or len(like.dims) != len(ids.dims):
        counted = make("Reshape", counted, _column(like, ids))
    return make("SelectV2", counted, gathered, constant(0, dtype=params.dtype))


@gradient("UnsortedSegmentSum")
def _unsorted_sum_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [_kept_rows(grad, op.inputs[1], op.inputs[0]), None, None]


@gradient("UnsortedSegmentMax", "UnsortedSegmentMin")
def _unsorted_extreme_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Share the gradient equally among the rows that attain the extreme."""
    data, ids, count = op.inputs
    chosen = make("Cast", make("Equal", data, _kept_rows(op.outputs[0], ids, data)), DstT=grad.dtype)
    # A row with a negative id may equal the zeros of `_kept_rows`, but belongs to no segment.
    chosen = chosen * _kept_rows(make("OnesLike", op.outputs[0]), ids, data)
    shares = make("UnsortedSegmentSum", chosen, ids, count)
    # An empty segment would divide 0 by 0.
    return [_kept_rows(make("DivNoNan", grad, shares), ids, data) * chosen, None, None]


@gradient("UnsortedSegmentProd")
def _unsorted_prod_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    data, ids, count = op.inputs
    zero, zeros, nonzero = _zeros_apart(data)
    grad = _only_single_zero(grad, make("UnsortedSegmentSum", zeros, ids, count))
    product = _kept_rows(make("UnsortedSegmentProd", nonzero, ids, count), ids, data)
    quotient = make("RealDiv", _kept_rows(op.outputs[0], ids, data), nonzero)
    partial = make("SelectV2", zero, product, quotient)
    return [_kept_rows(grad, ids, data) * partial, None, None]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def segment_sum(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Return the sums of the rows of `data` with equal ids; 0 for an id that does not occur.

    Args:
        data: [n, ...] rows.
        segment_ids: [n] ids of the rows, non-negative and ascending. The last one determines the number of segments.
        name: Name of the node.

    Raises:
        InvalidArgumentError: the ids are unsorted or negative, or their number differs from that of the rows.
    """
    return make("SegmentSum", data, segment_ids, name=name)


def segment_mean(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Return the means of the rows of each segment; 0 for an id that does not occur. See `segment_sum`."""
    return make("SegmentMean", data, segment_ids, name=name)


def segment_max(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Return the largest elements of each segment; 0 for an id that does not occur. See `segment_sum`."""
    return make("SegmentMax", data, segment_ids, name=name)


def segment_min(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Return the smallest elements of each segment; 0 for an id that does not occur. See `segment_sum`."""
    return make("SegmentMin", data, segment_ids, name=name)


def segment_prod(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Return the products of the rows of each segment; 1 for an id that does not occur. See `segment_sum`."""
    return make("SegmentProd", data, segment_ids, name=name)


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Return the sums of the slices of `data` with equal ids; 0 for an id that does not occur.

    Args:
        data: The slices.
        segment_ids: Ids in 0 … num_segments - 1, in any order. Their shape is a prefix of that of `data`. Slices with
            negative ids are ignored.
        num_segments: Number of segments, a scalar.
        name: Name of the node.

    Raises:
        InvalidArgumentError: an id is too large, or the shapes do not fit.
    """
    return make("UnsortedSegmentSum", data, segment_ids, num_segments, name=name)


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Return the largest elements of each segment; the smallest finite value for an empty segment.

    See `unsorted_segment_sum`.
    """
    return make("UnsortedSegmentMax", data, segment_ids, num_segments, name=name)


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Return the smallest elements of each segment; the largest finite value for an empty segment.

    See `unsorted_segment_sum`.
    """
    return make("UnsortedSegmentMin", data, segment_ids, num_segments, name=name)


def unsorted_segment_prod(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Return the products of each segment; 1 for an empty segment. See `unsorted_segment_sum`."""
    return make("UnsortedSegmentProd", data, segment_ids, num_segments, name=name)


def _segment_sizes(data: Tensor, ids: Tensor, count: TensorLike) -> Tensor:
    """Return the size of each segment (1 if empty), in a shape that broadcasts against the segments."""
    ones = make("Fill", make("Shape", ids), constant(1, dtype=data.dtype))
    sizes = make("Maximum", make("UnsortedSegmentSum", ones, ids, count), constant(1, dtype=data.dtype))
    if data.dims is not None and ids.dims is not None:
        for _ in range(len(data.dims) - len(ids.dims)):
            sizes = make("ExpandDims", sizes, -1)
        return sizes
    extra = make("Fill", make("Reshape", make("Rank", data) - make("Rank", ids), [1]), 1)
    shape = make("ConcatV2", [make("Shape", sizes), extra], 0)
    return make("Reshape", sizes, shape)


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Return the means of each segment; 0 for an empty segment. See `unsorted_segment_sum`."""
    x, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
    with name_scope(name, "UnsortedSegmentMean", [x, ids]):
        return unsorted_segment_sum(x, ids, num_segments) / _segment_sizes(x, ids, num_segments)


def unsorted_segment_sqrt_n(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Return the sum of each segment divided by the square root of its size. See `unsorted_segment_sum`."""
    x, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
    with name_scope(name, "UnsortedSegmentSqrtN", [x, ids]):
        size = make("Sqrt", _segment_sizes(x, ids, num_segments))
        result: Tensor = unsorted_segment_sum(x, ids, num_segments) / size
    return result
