"""Clipping by the norm of one tensor, or by the common norm of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.tensor_like import DenseLike
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.math.reduction import reduce_sum
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.indexed_slices import Gradient, convert_n_to_tensor_or_indexed_slices

__all__ = ["clip_by_average_norm", "clip_by_global_norm", "clip_by_norm", "global_norm"]


@overload
def clip_by_norm(
    t: DenseLike, clip_norm: TensorLike, axes: TensorLike | None = None, name: str | None = None
) -> Tensor: ...


@overload
def clip_by_norm(
    t: IndexedSlices, clip_norm: TensorLike, axes: TensorLike | None = None, name: str | None = None
) -> IndexedSlices: ...


def clip_by_norm(
    t: TensorLike, clip_norm: TensorLike, axes: TensorLike | None = None, name: str | None = None
) -> Tensor | IndexedSlices:
    """Scale `t` down where its L2 norm is above `clip_norm` (Pascanu et al. 2013).

    Args:
        t: Floating tensor, or IndexedSlices, whose values are clipped.
        clip_norm: Scalar of the same dtype, above 0.
        axes: Axes to compute the norm over; all by default.
        name: Name scope of the nodes.
    """
    values = t.values if isinstance(t, IndexedSlices) else convert_to_tensor(t, name="t")
    with name_scope(name, "clip_by_norm", [values]):
        limit = convert_to_tensor(clip_norm, values.dtype)
        squares = reduce_sum(values * values, axes, keepdims=True)
        positive = squares > constant(0, squares.dtype)
        # Where the sum is 0, the square root is computed of 1 instead: its gradient is infinite at 0.
        safe = make("SelectV2", positive, squares, make("OnesLike", squares))
        norm = make("SelectV2", positive, make("Sqrt", safe), squares)
        # With the maximum as divisor a norm below the limit yields limit / limit = 1.
        clipped = values * limit / make("Maximum", norm, limit)
        clipped.set_shape(values.dims)
        result = make("Identity", clipped)
    return IndexedSlices(result, t.indices, t.dense_shape) if isinstance(t, IndexedSlices) else result


def clip_by_average_norm(t: TensorLike, clip_norm: TensorLike, name: str | None = None) -> Tensor:
    """Scale `t` down where its L2 norm divided by its number of elements is above `clip_norm`."""
    tensor = convert_to_tensor(t, name="t")
    with name_scope(name, "clip_by_average_norm", [tensor]):
        limit = convert_to_tensor(clip_norm, tensor.dtype)
        count = make("Cast", make("Size", tensor), DstT=tensor.dtype)
        # 1 / mean norm = count / norm, compared with 1 / limit.
        inverse = make("Rsqrt", reduce_sum(tensor * tensor))
        result = make("Identity", tensor * limit * make("Minimum", inverse * count, 1 / limit))
    return result


def global_norm(t_list: Sequence[TensorLike | None], name: str | None = None) -> Tensor:
    """Return the L2 norm of all tensors together; None is ignored.

    Raises:
        DTypeError: `t_list` is a single tensor and not a sequence.
        InvalidArgumentError: `t_list` contains no tensors.
    """
    tensors = _values(t_list)
    with name_scope(name, "global_norm", tensors):
        # L2Loss is half the sum of squares, hence the factor of 2 below.
        halves = [make("L2Loss", t) for t in tensors if t is not None]
        if not halves:
            raise InvalidArgumentError(
                "global_norm needs at least one tensor", expected="at least one tensor", actual="none"
            )
        total = halves[0] if len(halves) == 1 else make("AddN", halves)
        result = make("Sqrt", total * constant(2, total.dtype), name="global_norm")
    return result


def clip_by_global_norm(
    t_list: Sequence[TensorLike | None],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = None,
    name: str | None = None,
) -> tuple[list[Tensor | IndexedSlices | None], Tensor]:
    """Scale all tensors by the same factor, so that their common L2 norm is at most `clip_norm`.

    After Pascanu et al. 2013.

    Args:
        t_list: Tensors, IndexedSlices and None.
        clip_norm: Scalar above 0.
        use_norm: The common norm, if it is known already.
        name: Name scope of the nodes.

    Returns:
        The clipped list and the norm before clipping. If the norm is not finite, every element becomes NaN.

    Raises:
        DTypeError, InvalidArgumentError: as for `global_norm`.
    """
    # Called for its check of `t_list`, also if `use_norm` is given.
    _values(t_list)
    norm = global_norm(t_list, name) if use_norm is None else convert_to_tensor(use_norm)
    with name_scope(name, "clip_by_global_norm", [norm]):
        limit = convert_to_tensor(clip_norm, norm.dtype)
        scale = limit * make("Minimum", 1 / norm, constant(1, norm.dtype) / limit)
        # norm - norm is 0, but NaN if the norm is not finite: an overflow must not pass as a gradient of zeros.
        scale = scale + (norm - norm)
        clipped = [_scaled(t, scale) for t in convert_n_to_tensor_or_indexed_slices(t_list)]
    return clipped, norm


def _scaled(t: Gradient | None, scale: Tensor) -> Gradient | None:
    if t is None:
        return None
    values = t.values if isinstance(t, IndexedSlices) else t
    factor = scale if values.dtype is scale.dtype else make("Cast", scale, DstT=values.dtype)
    scaled = make("Identity", values * factor)
    return IndexedSlices(scaled, t.indices, t.dense_shape) if isinstance(t, IndexedSlices) else scaled


def _values(t_list: object) -> list[Tensor | None]:
    if not isinstance(t_list, list | tuple):
        raise DTypeError("a sequence of tensors is needed", expected="a list or tuple", actual=type(t_list).__name__)
    converted = convert_n_to_tensor_or_indexed_slices(t_list)
    return [t.values if isinstance(t, IndexedSlices) else t for t in converted]
