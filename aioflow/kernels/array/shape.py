"""Kernels of ops that change only the shape. They return views wherever the array library can."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import Dims, check_axis
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.convert import as_int, as_ints, as_sizes, check_room, check_shape
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.copying import copied
from aioflow.memory.values import Array, Namespace, NpDType, Value

_FEW: Final = 4096  # elements up to which a filled array is made faster than a broadcast view


def _as_open_sizes(value: Array) -> tuple[int, ...]:
    """Return a shape vector in which one size may be -1. Raise InvalidArgumentError for other negative sizes."""
    sizes = as_ints(value)
    if sizes and (min(sizes) < -1 or sizes.count(-1) > 1):
        raise InvalidArgumentError(
            "a shape has negative sizes", expected="sizes >= 0 and at most one -1", actual=list(sizes)
        )
    check_room(size for size in sizes if size != -1)
    return sizes


@binder("Shape", host_results=True)
def shape(binding: Binding) -> Callable[[Array], Array]:
    dtype = binding.output_dtypes[0].np_dtype
    return lambda value: _in_dtype(value.shape, dtype)


@binder("ShapeN", host_results=True)
def shape_n(binding: Binding) -> Callable[[Sequence[Array]], tuple[Array, ...]]:
    dtype = binding.output_dtypes[0].np_dtype
    return lambda values: tuple(_in_dtype(v.shape, dtype) for v in values)


@binder("Size", host_results=True)
def size(binding: Binding) -> Callable[[Array], Value]:
    dtype = binding.output_dtypes[0].np_dtype
    return lambda value: _in_dtype(value.size, dtype)[()]


def _in_dtype(sizes: int | tuple[int, ...], dtype: NpDType) -> Array:
    try:
        return np.array(sizes, dtype)
    except OverflowError as error:
        raise InvalidArgumentError(
            "a size is too large for the dtype of the result", expected=f"at most {np.iinfo(dtype).max}", actual=sizes
        ) from error


@binder("Rank", host_results=True)
def rank(binding: Binding) -> Callable[[Array], np.generic]:
    to_scalar = binding.output_dtypes[0].as_numpy_dtype
    return lambda value: to_scalar(value.ndim)


@kernel("Reshape", host={"shape": _as_open_sizes})
def reshape(tensor: Array, shape: tuple[int, ...]) -> Array:
    try:
        return tensor.reshape(shape)
    except ValueError as error:
        # NumPy cannot infer -1 beside a 0. TensorFlow infers it from the other sizes.
        if tensor.size == 0 and -1 in shape and 0 in shape:
            return tensor.reshape(_without_elements(tensor.shape, shape))
        raise InvalidArgumentError(
            f"cannot reshape a tensor of {tensor.size} elements",
            expected=f"shape {list(shape)}",
            actual=f"shape {list(tensor.shape)}",
        ) from error


def _without_elements(given: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape `wanted` of no elements, with its -1 computed from the sizes other than 0."""
    whole, known = (math.prod(size for size in sizes if size > 0) for sizes in (given, wanted))
    return tuple(whole // known if size == -1 else size for size in wanted)


@kernel("Transpose", host={"perm": as_ints})
def transpose(x: Array, perm: tuple[int, ...]) -> Array:
    try:
        return x.transpose(perm)
    except ValueError as error:
        raise InvalidArgumentError(
            "not a permutation of the axes", expected=f"each of 0..{x.ndim - 1} once", actual=list(perm)
        ) from error


@binder("ExpandDims", host={"dim": as_int})
def expand_dims(binding: Binding) -> KernelBody:
    dims, constant = binding.input_dims[0], binding.constants[1]
    if dims is not None and constant is not None:
        index = (slice(None),) * check_axis(as_int(constant), len(dims) + 1) + (None, ...)
        return lambda value, dim: value[index]

    def expand(value: Array, dim: int) -> Array:
        return value[(slice(None),) * check_axis(dim, value.ndim + 1) + (None, ...)]

    return expand


@binder("Squeeze")
def squeeze(binding: Binding) -> Callable[[Array], Array]:
    axes: tuple[int, ...] = binding.attrs["squeeze_dims"]

    def remove(value: Array) -> Array:
        # A set, since an axis may be given twice.
        found = {check_axis(a, value.ndim, "squeeze axis") for a in axes}
        wrong = [a for a in found if value.shape[a] != 1]
        if wrong:
            raise InvalidArgumentError(
                "cannot squeeze a dimension whose size is not 1",
                expected=f"1 at axis {wrong[0]}",
                actual=list(value.shape),
            )
        return value.reshape([d for i, d in enumerate(value.shape) if i not in found])

    if axes:
        return remove
    return lambda value: value.reshape([d for d in value.shape if d != 1])


@kernel("BroadcastTo", host={"shape": as_sizes}, elastic=True)
def broadcast_to(xp: Namespace, value: Array, shape: tuple[int, ...]) -> Array:
    claim_array(shape, value.dtype)
    try:
        on_host = isinstance(value, np.ndarray | np.generic)
        if value.size == 1 and on_host and value.ndim <= len(shape) and math.prod(shape) <= _FEW:
            return np.full(shape, value, value.dtype)
        return xp.broadcast_to(value, shape)
    except ValueError as error:
        raise InvalidArgumentError(
            "cannot broadcast the tensor", expected=list(shape), actual=list(value.shape)
        ) from error


@binder("Bitcast")
def bitcast(binding: Binding) -> Callable[[Array], Array]:
    xp = binding.xp
    given, wanted = binding.input_dtypes[0], binding.output_dtypes[0]
    dtype = wanted.np_dtype
    if given.size == wanted.size:
        return lambda value: value.view(dtype)
    # 0 if the new elements are smaller than the given ones.
    ratio = wanted.size // given.size

    def split_up(value: Array) -> Array:
        flat = xp.asarray(value).reshape(-1)
        return xp.ascontiguousarray(flat).view(dtype).reshape((*value.shape, given.size // wanted.size))

    def merge(value: Array) -> Array:
        if not value.shape or value.shape[-1] != ratio:
            raise InvalidArgumentError(
                f"cannot bitcast {given} to {wanted}", expected=f"a last dimension of {ratio}", actual=list(value.shape)
            )
        return xp.ascontiguousarray(value.reshape(-1)).view(dtype).reshape(value.shape[:-1])

    return merge if ratio else split_up


@kernel("Snapshot", fresh=True)
def snapshot(value: Array) -> Array:
    found: Array = copied(value)
    return found


@kernel("EnsureShape", opaque=True)
def ensure_shape(value: Value, *, shape: Dims) -> Value:
    check_shape(value, shape)
    return value
