"""Reductions of chosen rows by sorted segment ids: `segment_sum` of `gather`, without the gathered rows."""

from __future__ import annotations

from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.graph.traits import opaque
from aioflow.ops.apply import TensorLike, constant, make

__all__ = ["sparse_segment_mean", "sparse_segment_sqrt_n", "sparse_segment_sum"]

# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _reduced(ctx: ShapeContext) -> Dims:
    return _rows_of(ctx, "data", None)


def _counted(ctx: ShapeContext) -> Dims:
    return _rows_of(ctx, "data", _count(ctx, "num_segments"))


def _spread(ctx: ShapeContext) -> Dims:
    return _rows_of(ctx, "grad", _count(ctx, "output_dim0"))


def _count(ctx: ShapeContext, name: str) -> int | None:
    ctx.require_rank(name, 0)
    count = ctx.scalar(name)
    if count is not None and count < 0:
        raise InvalidArgumentError(f"{name} is negative", expected=">= 0", actual=count)
    return None if count is None else int(count)


def _rows_of(ctx: ShapeContext, name: str, count: int | None) -> Dims:
    data = ctx.require_rank(name, 1, -1)
    merge_dims(ctx.require_rank("indices", 1), ctx.require_rank("segment_ids", 1))
    return None if data is None else (count, *data[1:])


_ROWS: Final = "indices: Tidx, segment_ids: Tsegmentids"
_INDEX: Final = ("Tidx: {index} = int32", "Tsegmentids: {index} = int32")
_FLOATS: Final = "T: {bfloat16, float16, float32, float64}"

for _kind, _types in (("Sum", "T: {reals}"), ("Mean", _FLOATS), ("SqrtN", _FLOATS)):
    _attrs = [_types, *_INDEX, "sparse_gradient: bool = False"]
    _name = f"SparseSegment{_kind}"
    define_op(_name, f"data: T, {_ROWS}", "output: T", _attrs, shape=_reduced, traits=opaque())
    define_op(
        f"{_name}WithNumSegments",
        f"data: T, {_ROWS}, num_segments: Tnumsegments",
        "output: T",
        [*_attrs, "Tnumsegments: {index} = int32"],
        shape=_counted,
        traits=opaque(),
    )
    define_op(
        f"{_name}Grad",
        f"grad: T, {_ROWS}, output_dim0: int32",
        "output: T",
        [_FLOATS, *_INDEX],
        shape=_spread,
        traits=opaque(),
    )

# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@gradient("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
@gradient("SparseSegmentSumWithNumSegments", "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments")
def _segment_grad(op: Operation, grad: Tensor) -> list[Tensor | IndexedSlices | None]:
    data, indices, ids = op.inputs[:3]
    others = [None] * (len(op.inputs) - 1)
    kind = op.type.removeprefix("SparseSegment").removesuffix("WithNumSegments")
    if not op.attrs["sparse_gradient"]:
        count = make("Shape", data)[0]
        return [make(f"SparseSegment{kind}Grad", grad, indices, ids, count), *others]
    shape = make("Shape", data)
    # One slice for each index: the gradient of its segment.
    number = make("Size", indices)
    each = make("Range", constant(0), number, constant(1))
    return [IndexedSlices(make(f"SparseSegment{kind}Grad", grad, each, ids, number), indices, shape), *others]


@gradient("SparseSegmentSumGrad")
def _sum_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return _grad_grad("Sum", op, grad)


@gradient("SparseSegmentMeanGrad")
def _mean_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return _grad_grad("Mean", op, grad)


@gradient("SparseSegmentSqrtNGrad")
def _sqrt_n_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return _grad_grad("SqrtN", op, grad)


def _grad_grad(kind: str, op: Operation, grad: Tensor) -> list[Tensor | None]:
    segments, indices, ids, _ = op.inputs
    # The gradient is linear in `segments`, and the reduction is its transpose.
    rows = make("Shape", segments)[0]
    return [make(f"SparseSegment{kind}WithNumSegments", grad, indices, ids, rows), None, None, None]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def sparse_segment_sum(
    data: TensorLike,
    indices: TensorLike,
    segment_ids: TensorLike,
    name: str | None = None,
    num_segments: TensorLike | None = None,
    sparse_gradient: bool = False,
) -> Tensor:
    """Return the sums of the rows `data[indices]` with equal ids; 0 for an id that does not occur.

    Args:
        data: [n, ...] rows.
        indices: [k] positions of rows in `data`.
        segment_ids: [k] ids of the chosen rows, non-negative and ascending.
        name: Name of the node.
        num_segments: Number of segments; by default the last id plus one.
        sparse_gradient: Whether the gradient of `data` is `IndexedSlices`, not a tensor.

    Raises:
        InvalidArgumentError: an index is out of range, the ids are unsorted, negative or too large, or there are not as
            many ids as indices.
    """
    return _segments("Sum", data, indices, segment_ids, name, num_segments, sparse_gradient)


def sparse_segment_mean(
    data: TensorLike,
    indices: TensorLike,
    segment_ids: TensorLike,
    name: str | None = None,
    num_segments: TensorLike | None = None,
    sparse_gradient: bool = False,
) -> Tensor:
    """Return the means of the rows `data[indices]` with equal ids. See `sparse_segment_sum`."""
    return _segments("Mean", data, indices, segment_ids, name, num_segments, sparse_gradient)


def sparse_segment_sqrt_n(
    data: TensorLike,
    indices: TensorLike,
    segment_ids: TensorLike,
    name: str | None = None,
    num_segments: TensorLike | None = None,
    sparse_gradient: bool = False,
) -> Tensor:
    """Return the sum of each segment divided by the square root of its number of rows. See `sparse_segment_sum`."""
    return _segments("SqrtN", data, indices, segment_ids, name, num_segments, sparse_gradient)


def _segments(
    kind: str,
    data: TensorLike,
    indices: TensorLike,
    ids: TensorLike,
    name: str | None,
    count: TensorLike | None,
    sparse_gradient: bool,
) -> Tensor:
    op_type, inputs = f"SparseSegment{kind}", [data, indices, ids]
    if count is not None:
        op_type, inputs = f"{op_type}WithNumSegments", [*inputs, count]
    return make(op_type, *inputs, sparse_gradient=sparse_gradient, name=name)
