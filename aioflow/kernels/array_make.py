"""Kernels that make tensors from sizes and scalars."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.array_shape import as_sizes
from aioflow.kernels.convert import as_array, as_int
from aioflow.kernels.registry import Binding, binder

__all__: list[str] = []


@binder("Fill", host={"dims": as_sizes}, fresh=True)
def fill(binding: Binding) -> Callable[..., Any]:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    value = binding.constants[1]
    if value is not None and dtype.kind != "O" and _is_all_zero_bytes(value):
        return lambda dims, value: xp.zeros(dims, dtype)
    return lambda dims, value: xp.full(dims, value, dtype)


@binder("ZerosLike", fresh=True)
def zeros_like(binding: Binding) -> Callable[[Any], Any]:
    xp, dtype = binding.xp, binding.output_dtypes[0]
    if dtype is dtypes.string:
        return lambda value: xp.full(value.shape, b"", object)
    return lambda value: xp.zeros(value.shape, dtype.np_dtype)


@binder("OnesLike", fresh=True)
def ones_like(binding: Binding) -> Callable[[Any], Any]:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    return lambda value: xp.ones(value.shape, dtype)


def _is_all_zero_bytes(value: Any) -> bool:
    """Whether memory that is cleared holds it; -0.0 is equal to 0, and is not that."""
    return not np.asarray(value).tobytes().strip(b"\0")


def _as_number(value: Any) -> Any:
    """A scalar as a Python number, exactly (bfloat16 has no `item` of its own kind)."""
    item = as_array(value).reshape(-1)[0]
    return int(item) if item.dtype.kind in "iu" else float(item)


@binder("Range", host={"start": _as_number, "limit": _as_number, "delta": _as_number}, fresh=True)
def range_(binding: Binding) -> Callable[..., Any]:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    whole = binding.output_dtypes[0].is_integer

    def count_up(start: Any, limit: Any, delta: Any) -> Any:
        if delta == 0 or (start < limit and delta < 0) or (start > limit and delta > 0):
            raise InvalidArgumentError(
                "the range never ends", expected="delta that leads from start to limit", actual=(start, limit, delta)
            )
        if whole:
            return xp.arange(start, limit, delta, dtype=dtype)
        wide = np.float64 if dtype == np.float64 else np.float32
        steps = xp.arange(ceil(abs((limit - start) / delta)), dtype=wide)
        return (steps * wide(delta) + wide(start)).astype(dtype, copy=False)

    return count_up


@binder("LinSpace", host={"start": _as_number, "stop": _as_number, "num": as_int}, fresh=True)
def lin_space(binding: Binding) -> Callable[..., Any]:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype

    def space(start: float, stop: float, num: int) -> Any:
        if num <= 0:
            raise InvalidArgumentError("linspace needs a positive number of elements", expected="num > 0", actual=num)
        result = xp.linspace(start, stop, num).astype(dtype)
        result[-1] = start if num == 1 else stop
        return result

    return space


def _as_depth(value: Any) -> int:
    depth = as_int(value)
    if depth < 0:
        raise InvalidArgumentError("the depth of one_hot is negative", expected="depth >= 0", actual=depth)
    return depth


@binder("OneHot", host={"depth": _as_depth}, fresh=True)
def one_hot(binding: Binding) -> Callable[..., Any]:
    xp, dtype, axis = binding.xp, binding.output_dtypes[0].np_dtype, binding.attrs["axis"]
    off = binding.constants[3]
    off_is_zero = off is not None and dtype.kind != "O" and _is_all_zero_bytes(off)

    def encode(indices: Any, depth: int, on_value: Any, off_value: Any) -> Any:
        flat = indices.reshape(-1)
        sizes = (flat.size, depth)
        result = xp.zeros(sizes, dtype) if off_is_zero else xp.full(sizes, off_value, dtype)
        rows = xp.arange(flat.size)
        inside = (flat >= 0) & (flat < depth)
        if not inside.all():
            rows, flat = rows[inside], flat[inside]
        result[rows, flat] = on_value
        result = result.reshape((*indices.shape, depth))
        return result if axis in (-1, indices.ndim) else xp.moveaxis(result, -1, axis)

    return encode


@binder("Timestamp", fresh=True)
def timestamp(binding: Binding) -> Callable[[], Any]:
    return lambda: np.float64(time.time())
