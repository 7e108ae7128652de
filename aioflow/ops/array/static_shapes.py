"""Shapes as constants where they are static.

Gradients and builders of the array family make many nodes whose inputs are shapes. If a static shape is fully known,
they use a constant instead of a Shape node: graphs stay small and kernels can be specialized.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.shapes import Dims, check_axis
from aioflow.ops.apply import constant, convert_to_tensor, make, make_list


def known_dims(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the static shape if every size is known, else None."""
    return _known(tensor.dims)


def _known(dims: Dims) -> tuple[int, ...] | None:
    if dims is None or None in dims:
        return None
    return tuple(d for d in dims if d is not None)


def int_constant(value: object, dtype: DType = dtypes.int32, name: str = "Const") -> Tensor:
    """Return a constant of integers, also for an empty list.

    Raises:
        InvalidArgumentError: a value is too large for the dtype.
    """
    try:
        array = np.asarray(value, dtype=dtype.np_dtype)
    except OverflowError as error:
        raise InvalidArgumentError(
            "a size is too large for its dtype", expected=f"at most {dtype.max}", actual=value
        ) from error
    return constant(array, name=name)


def shape_of(tensor: Tensor, out_type: DType = dtypes.int32) -> Tensor:
    """Return the shape vector: a constant if the static shape is known."""
    dims = known_dims(tensor)
    return make("Shape", tensor, out_type=out_type) if dims is None else int_constant(dims, out_type, "Shape")


def all_axes(tensor: Tensor) -> Tensor:
    """Return the vector of all axes, to reduce over."""
    if tensor.dims is None:
        return make("Range", 0, make("Rank", tensor), 1)
    return int_constant(list(range(len(tensor.dims))))


def reshape_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return `tensor` in the shape of `like`, without a node if both shapes are known to agree."""
    dense = convert_to_tensor(tensor)
    wanted = known_dims(like)
    if wanted is not None and wanted == known_dims(dense):
        return dense
    return make("Reshape", dense, shape_of(like))


def or_zeros(op: Operation, grads: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the gradients of the outputs, with zeros in the place of None."""
    return [zeros_of(op.outputs[i]) if grad is None else grad for i, grad in enumerate(grads)]


def zeros_of(tensor: Tensor) -> Tensor:
    """Return zeros in the shape and dtype of `tensor`, without reading it if its shape is known."""
    dims = known_dims(tensor)
    if dims is None:
        return make("ZerosLike", tensor)
    zero = constant(np.zeros((), dtype=tensor.dtype.np_dtype))
    return make("Fill", int_constant(dims), zero)


def reduce_to(grad: Tensor, like: Tensor) -> Tensor:
    """Sum `grad` over the dimensions along which `like` was broadcast to its shape."""
    # A sparse gradient (IndexedSlices) has no shape of its own.
    grad = convert_to_tensor(grad)
    wanted, given = known_dims(like), known_dims(grad)
    if wanted is None or given is None:
        shape = shape_of(like)
        axes = make_list("BroadcastGradientArgs", shape, shape_of(grad))[0]
        return make("Reshape", make("Sum", grad, axes, keep_dims=False), shape)
    if wanted == given:
        return grad
    padded = (1,) * (len(given) - len(wanted)) + wanted
    axes_list = [i for i, (w, g) in enumerate(zip(padded, given, strict=True)) if w == 1 and g != 1]
    # The leading axes that `like` lacks are summed, too, whatever their size.
    axes_list += [i for i in range(len(given) - len(wanted)) if i not in axes_list]
    summed = make("Sum", grad, int_constant(sorted(axes_list)), keep_dims=False) if axes_list else grad
    return summed if known_dims(summed) == wanted else make("Reshape", summed, int_constant(wanted))


def swap_with_last(tensor: Tensor, axis: int) -> list[int] | Tensor:
    """Return the permutation that swaps `axis` with the last axis: a tensor if the rank is unknown.

    The permutation is its own inverse.

    Raises:
        InvalidArgumentError: the tensor has no such axis.
    """
    dims = tensor.dims
    if dims is None:
        return _swap_at_run_time(tensor, axis)
    order = list(range(len(dims)))
    axis = check_axis(axis, len(dims))
    order[axis], order[-1] = order[-1], order[axis]
    return order


def _swap_at_run_time(tensor: Tensor, axis: int) -> Tensor:
    rank = make("Rank", tensor)
    here, last, every = make("FloorMod", axis, rank), make("Sub", rank, int_constant(1)), make("Range", 0, rank, 1)
    with_last = make("SelectV2", make("Equal", every, here), last, every)
    return make("SelectV2", make("Equal", every, last), here, with_last)
