"""Kernels that create tensors from sizes and scalars."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil, isfinite
from typing import Any

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.blockwise import BLOCK, claim_array, full, written
from aioflow.kernels.convert import as_int, as_number, as_sizes, check_rank
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array


@binder("Fill", host={"dims": as_sizes}, fresh=True, elastic=True)
def fill(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    value = binding.constants[1]
    # `zeros` receives cleared memory from the operating system, which is faster than writing zeros.
    if value is not None and np.ndim(value) == 0 and dtype.kind != "O" and _is_all_zero_bytes(value):

        def cleared(dims: tuple[int, ...], value: Array) -> Array:
            claim_array(dims, dtype)
            return xp.zeros(dims, dtype)

        return cleared

    def repeated(dims: tuple[int, ...], value: Array) -> Array:
        check_rank("the value to fill with", value, 0)
        claim_array(dims, dtype)
        return full(xp, dims, value, dtype)

    return repeated


@binder("ZerosLike", fresh=True)
def zeros_like(binding: Binding) -> Callable[[Array], Array]:
    xp, dtype = binding.xp, binding.output_dtypes[0]
    if dtype is dtypes.string:
        return lambda value: full(xp, value.shape, b"", np.dtype(object))
    return lambda value: xp.zeros(value.shape, dtype.np_dtype)


@binder("OnesLike", fresh=True)
def ones_like(binding: Binding) -> Callable[[Array], Array]:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    return lambda value: full(xp, value.shape, 1, dtype)


def _is_all_zero_bytes(value: Array) -> bool:
    """Return True if cleared memory represents the value. -0.0 equals 0 but has a sign bit."""
    return not np.asarray(value).tobytes().strip(b"\0")


@binder("Range", host={"start": as_number, "limit": as_number, "delta": as_number}, fresh=True, elastic=True)
def range_(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    whole = binding.output_dtypes[0].is_integer
    on_host = binding.is_host

    def count_up(start: float, limit: float, delta: float) -> Array:
        if delta == 0 or (start < limit and delta < 0) or (start > limit and delta > 0):
            raise InvalidArgumentError(
                "the range never ends", expected="a delta that leads from start to limit", actual=(start, limit, delta)
            )
        if not all(map(isfinite, (start, limit, delta))):
            raise InvalidArgumentError(
                "a range needs finite numbers", expected="finite numbers", actual=(start, limit, delta)
            )
        # Integers are divided as integers, since floats do not represent all beyond 2**53.
        count: Any = abs(-((limit - start) // -delta)) if whole else ceil(abs((limit - start) / delta))
        claim_array((count,), dtype)
        # Each number is start + i * delta, so errors do not accumulate, and the result does not depend on the blocks.
        wide: Any = np.float64 if dtype == np.float64 else np.float32

        def numbers(part: slice) -> Array:
            if whole:
                return xp.arange(start + part.start * delta, start + part.stop * delta, delta, dtype=dtype)
            steps = xp.arange(part.start, part.stop).astype(wide)
            found: Array = (steps * wide(delta) + wide(start)).astype(dtype, copy=False)
            return found

        if count > BLOCK and on_host:
            return written((count,), dtype, numbers)
        return numbers(slice(0, count))

    return count_up


@binder("LinSpace", host={"start": as_number, "stop": as_number, "num": as_int}, fresh=True, elastic=True)
def lin_space(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    on_host = binding.is_host

    def space(start: float, stop: float, num: int) -> Array:
        if num <= 0:
            raise InvalidArgumentError("linspace needs a positive number of elements", expected="num > 0", actual=num)
        claim_array((num,), dtype)
        if num > BLOCK and on_host:
            step = (stop - start) / (num - 1)
            result = written((num,), dtype, lambda part: np.arange(part.start, part.stop) * step + start)
        else:
            result = xp.linspace(start, stop, num).astype(dtype)
        # The last element is exact, whatever the rounding of the step.
        result[-1] = start if num == 1 else stop
        return result

    return space


def _as_depth(value: Array) -> int:
    depth = as_int(value)
    if depth < 0:
        raise InvalidArgumentError("the depth of one_hot is negative", expected="depth >= 0", actual=depth)
    return depth


@binder("OneHot", host={"depth": _as_depth}, fresh=True, elastic=True)
def one_hot(binding: Binding) -> KernelBody:
    xp, dtype, axis = binding.xp, binding.output_dtypes[0].np_dtype, binding.attrs["axis"]
    off = binding.constants[3]
    off_is_zero = off is not None and dtype.kind != "O" and _is_all_zero_bytes(off)

    def encode(indices: Array, depth: int, on_value: Array, off_value: Array) -> Array:
        if not -1 <= axis <= indices.ndim:
            raise InvalidArgumentError(
                "the axis of one_hot is out of range", expected=f"-1 <= axis <= {indices.ndim}", actual=axis
            )
        for name, value in (("on_value", on_value), ("off_value", off_value)):
            check_rank(name, value, 0)
        flat = indices.reshape(-1)
        sizes = (flat.size, depth)
        claim_array(sizes, dtype)
        result = xp.zeros(sizes, dtype) if off_is_zero else full(xp, sizes, off_value, dtype)
        for part in blocks(flat.size, BLOCK):
            places = flat[part]
            rows = xp.arange(part.start, part.stop)
            # An index outside [0, depth) leaves its row at `off_value`.
            inside = (places >= 0) & (places < depth)
            if not inside.all():
                rows, places = rows[inside], places[inside]
            result[rows, places] = on_value
        result = result.reshape((*indices.shape, depth))
        return result if axis in (-1, indices.ndim) else xp.moveaxis(result, -1, axis)

    return encode


@binder("Timestamp", fresh=True)
def timestamp(binding: Binding) -> Callable[[], np.float64]:
    return lambda: np.float64(time.time())
