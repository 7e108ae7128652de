"""Broadcasting in gradients: sum each gradient to the shape of its input, with as few nodes as static shapes allow.

- If the shapes are known to be equal, no node is added.
- If the sizes that matter are known, the gradient is summed over constant axes.
- Otherwise BroadcastGradientArgs computes the axes from both shapes at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from aioflow.errors import DTypeError
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, broadcast_dims, dims_of
from aioflow.graph.static_value import known_by
from aioflow.graph.traits import bookkeeping, opaque
from aioflow.ops import row_values
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.dtype_errors import mixed_dtypes
from aioflow.ops.sparse.indexed_slices import Gradient

__all__ = ["broadcast_dynamic_shape", "broadcast_static_shape"]

GradientPair: TypeAlias = tuple[Gradient | None, Gradient | None]

_UNDECIDED: Final = None


def broadcast(ctx: ShapeContext) -> Dims:
    """Infer the shape of elementwise ops of several inputs."""
    return broadcast_dims([t.dims for t in ctx.tensors])


def _longer(ctx: ShapeContext) -> Dims:
    # Broadcasting puts sizes in front of the shorter shape until both have the length of the longer one.
    lengths = [dims[0] if dims else None for dims in (ctx.require_rank("s0", 1), ctx.require_rank("s1", 1))]
    known = [n for n in lengths if n is not None]
    # With one length unknown, the other may be the shorter one.
    return (max(known) if len(known) == 2 else None,)


def _two_vectors(ctx: ShapeContext) -> list[Dims]:
    for name in ("s0", "s1"):
        ctx.require_rank(name, 1)
    # The number of axes depends on the sizes, not only on the ranks.
    return [(None,), (None,)]


define_op(
    "BroadcastArgs",
    "s0: T, s1: T",
    "r0: T",
    ["T: {int32, int64} = int32"],
    shape=_longer,
    value=known_by(lambda *shapes: np.array(np.broadcast_shapes(*(tuple(s.tolist()) for s in shapes)))),
    rows=row_values.common_shape,
    traits=opaque(never_larger=True),
)
define_op(
    "BroadcastGradientArgs",
    "s0: T, s1: T",
    "r0: T, r1: T",
    ["T: {int32, int64} = int32"],
    shape=_two_vectors,
    traits=bookkeeping(never_larger=True),
)
not_differentiable("BroadcastArgs", "BroadcastGradientArgs")


def broadcast_static_shape(shape_x: ShapeLike | None, shape_y: ShapeLike | None) -> TensorShape:
    """Return the shape that results from broadcasting two static shapes.

    Raises:
        InvalidArgumentError: the shapes cannot be broadcast together.
    """
    return TensorShape(broadcast_dims([dims_of(shape_x), dims_of(shape_y)]))


def broadcast_dynamic_shape(shape_x: TensorLike, shape_y: TensorLike) -> Tensor:
    """Return the shape vector that results from broadcasting two shape vectors.

    A step fails if the shapes cannot be broadcast together.
    """
    x = convert_to_tensor(shape_x)
    return make("BroadcastArgs", x, convert_to_tensor(shape_y, x.dtype))


class _Axes:
    """Axes of the broadcast shape to sum over.

    Attributes:
        dropped: Axes that the operand lacks.
        kept: Axes in which the operand has size 1.
    """

    __slots__ = ("dropped", "kept")

    def __init__(self, dropped: Sequence[int], kept: Sequence[int]) -> None:
        self.dropped = dropped
        self.kept = kept


def _static_axes(own: Dims, other: Dims) -> _Axes | None:
    """Return the axes to sum a gradient over for the operand of shape `own`.

    `_UNDECIDED` if they depend on sizes that are known at run time only.
    """
    # Broadcasting with a scalar never changes the shape of the other operand.
    if other == ():
        return _Axes((), ())
    if own is None or other is None:
        return _UNDECIDED
    rank = max(len(own), len(other))
    missing = rank - len(own)
    # Aligned at the last axes, as in NumPy; missing leading sizes count as 1.
    padded = (1,) * (rank - len(other)) + other
    kept: list[int] = []
    for axis, (mine, theirs) in enumerate(zip(own, padded[missing:], strict=True), start=missing):
        # Where the other size is greater, or unknown and so possibly greater, this operand was repeated.
        if mine == 1 and theirs != 1:
            kept.append(axis)
        elif mine is None and theirs != 1:
            # An unknown size may turn out to be 1, and then the gradient must be summed over this axis.
            return _UNDECIDED
    return _Axes(range(missing), kept)


def _sum(grad: Tensor, axes: Sequence[int], keep_dims: bool) -> Tensor:
    if not axes:
        return grad
    return make("Sum", grad, np.array(axes, np.int32), keep_dims=keep_dims)


def unbroadcast(x: Tensor, y: Tensor, grad_x: Gradient | None, grad_y: Gradient | None) -> GradientPair:
    """Return the gradients of a broadcasting op of `x` and `y`, each summed to the shape of its own operand.

    `grad_x` and `grad_y` have the shape of the op's output. None stays None, and IndexedSlices stay IndexedSlices
    unless they must be summed.
    """
    dynamic: tuple[tuple[Tensor, Tensor], list[Tensor]] | None = None
    results: list[Gradient | None] = []
    for index, (own, other, grad) in enumerate(((x, y, grad_x), (y, x, grad_y))):
        if grad is None or _same_shape(own, other, grad):
            results.append(grad)
            continue
        axes = _static_axes(own.dims, other.dims)
        if axes is not _UNDECIDED and not axes.kept and not axes.dropped:
            results.append(grad)
            continue
        grad = convert_to_tensor(grad)
        if axes is not _UNDECIDED:
            # Two sums, because only the first one keeps its axes, with size 1.
            results.append(_sum(_sum(grad, axes.kept, True), axes.dropped, False))
            continue
        if dynamic is None:
            # Computed once for both operands, and only if one of them needs it.
            shapes = make("Shape", x), make("Shape", y)
            dynamic = (shapes, make_list("BroadcastGradientArgs", *shapes))
        summed = make("Sum", grad, dynamic[1][index], keep_dims=False)
        # The sum removes all its axes. The operand's own shape restores those of size 1.
        results.append(make("Reshape", summed, dynamic[0][index]))
    return results[0], results[1]


def _same_shape(own: Tensor, other: Tensor, grad: Gradient) -> bool:
    """Return whether the gradient is known to have the operand's shape already."""
    # x op x: the output has the shape of x, whatever that is.
    if own is other:
        return True
    # With an unknown size, equal dims may still differ at run time.
    dims = own.dims
    if dims is None or None in dims:
        return False
    return dims == other.dims or (isinstance(grad, Tensor) and dims == grad.dims)


def negated(grad: Gradient) -> Gradient:
    """Return -grad; a sparse gradient stays sparse."""
    if isinstance(grad, IndexedSlices):
        return grad.with_values(make("Neg", grad.values))
    return make("Neg", grad)


def conjugate(x: Tensor) -> Tensor:
    """Return the complex conjugate; a real tensor unchanged.

    The gradient of a product multiplies by the conjugate of the other factor.
    """
    return make("Conj", x) if x.dtype.is_complex else x


def same_dtype(x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of one dtype. A Python value takes the dtype of the other operand.

    Raises:
        DTypeError: the operands are tensors of different dtypes, or a value is of a different kind.
    """
    # The tensor decides on the dtype, whether it comes first or second. Of two values the first decides.
    if _is_value(x) and not _is_value(y):
        second = convert_to_tensor(y)
        return _beside(second, x), second
    first = convert_to_tensor(x)
    return first, _beside(first, y)


def _beside(tensor: Tensor, other: TensorLike) -> Tensor:
    try:
        return convert_to_tensor(other, tensor.dtype)
    except DTypeError as error:
        raise mixed_dtypes("the operands", tensor, other) from error


def _is_value(x: TensorLike) -> bool:
    return isinstance(x, bool | int | float | complex | str | bytes | list | tuple | np.ndarray | np.generic)
