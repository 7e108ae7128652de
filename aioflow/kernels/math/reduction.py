"""Kernels of reductions and scans.

Each keeps the input's dtype: small floats are summed in float32, and integers wrap as in TensorFlow where NumPy would
widen them. Sums of a contiguous float array over its leading or trailing axes are BLAS products with ones. These take
between a half and a tenth of the time of NumPy's own reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import check_axes, check_axis
from aioflow.kernels.blockwise import BLOCK, is_large
from aioflow.kernels.convert import as_int, as_ints
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, ArrayFunction, Namespace, NpDType

_HOST = {"reduction_indices": as_ints}
_SMALL_FLOATS = (dtypes.float16, dtypes.bfloat16)


Reduce: TypeAlias = Callable[[Array, tuple[int, ...], bool], Array]


def _reducing(binding: Binding, reduce: Reduce) -> KernelBody:
    """Return the body of a reduction node, from a function of (input, checked axes, keep_dims)."""
    keep = binding.attrs["keep_dims"]
    dims, axes = binding.input_dims[0], binding.constants[1]
    if dims is None or axes is None:
        return lambda x, given: reduce(x, check_axes(given, np.ndim(x)), keep)
    known = check_axes(as_ints(axes), len(dims))
    return lambda x, given: reduce(x, known, keep)


# ── sums ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _wide(dtype: DType) -> NpDType:
    """Return the NumPy dtype in which sums and products of `dtype` are computed."""
    return np.dtype(np.float32) if dtype in _SMALL_FLOATS else dtype.np_dtype


def _adder(xp: Namespace, dtype: DType) -> Reduce:
    add = xp.add.reduce
    wide, own = _wide(dtype), dtype.np_dtype
    if wide != own:
        return lambda x, axes, keep: add(x, axis=axes, dtype=wide, keepdims=keep).astype(own)
    if own.kind in "iu":  # quantized dtypes, too
        return lambda x, axes, keep: add(x, axis=axes, dtype=own, keepdims=keep)
    return lambda x, axes, keep: add(x, axis=axes, keepdims=keep)


def _blas_adder(xp: Namespace, rank: int, axes: tuple[int, ...], otherwise: Reduce) -> Reduce | None:
    """Return a sum over leading or trailing axes as a product with ones, or None for other axes."""
    count, ordered = len(axes), tuple(sorted(axes))
    leading = ordered == tuple(range(count))
    if not 0 < count < rank or not (leading or ordered == tuple(range(rank - count, rank))):
        return None
    split = count if leading else rank - count
    # The ones of the last call. The tuple is read and replaced as a whole, because steps may run concurrently.
    held: tuple[int, Any] = (-1, None)

    def ones(size: int, dtype: NpDType) -> Array:
        nonlocal held
        found: tuple[int, Array] = held
        if found[0] != size:
            found = held = (size, xp.ones(size, dtype))
        return found[1]

    def add(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        if not x.flags.c_contiguous:
            return otherwise(x, axes, keep)
        shape = x.shape
        rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
        matrix = x if rank == 2 else x.reshape(rows, columns)
        if leading:
            total, left = xp.dot(ones(rows, x.dtype), matrix), shape[split:]
        else:
            total, left = xp.dot(matrix, ones(columns, x.dtype)), shape[:split]
        if keep:
            return total.reshape((1,) * split + left if leading else left + (1,) * (rank - split))
        return total if len(left) == 1 else total.reshape(left)

    return add


def _fast_adder(binding: Binding) -> Reduce:
    """Return the fastest sum for the node's dtype, rank and axes."""
    dtype, dims, axes = binding.output_dtypes[0], binding.input_dims[0], binding.constants[1]
    plain = _adder(binding.xp, dtype)
    if dims is None or axes is None:
        return plain
    known = check_axes(as_ints(axes), len(dims))
    if dtype in (dtypes.float32, dtypes.float64):
        return _blas_adder(binding.xp, len(dims), known, plain) or plain
    return plain


def _reduces_to_scalar(binding: Binding) -> bool:
    """Return True if the node is known to sum all of a wide floating-point or complex array, as a loss does."""
    dims, axes, dtype = binding.input_dims[0], binding.constants[1], binding.output_dtypes[0]
    if dims is None or axes is None or binding.attrs["keep_dims"] or dtype in _SMALL_FLOATS or dtype.is_integer:
        return False
    return len(check_axes(as_ints(axes), len(dims))) == len(dims)


@binder("Sum", host=_HOST, fresh=True)
def bind_sum(binding: Binding) -> KernelBody:
    if _reduces_to_scalar(binding):
        add_all = binding.xp.add.reduce
        return lambda x, given: add_all(x, None)
    return _reducing(binding, _fast_adder(binding))


@binder("Mean", host=_HOST, fresh=True)
def bind_mean(binding: Binding) -> KernelBody:
    dtype = binding.output_dtypes[0]
    if _reduces_to_scalar(binding):
        add_all = binding.xp.add.reduce
        return lambda x, given: add_all(x, None) / x.size
    if dtype.is_integer:
        return _reducing(binding, _integer_mean(binding.xp, dtype))
    if dtype in _SMALL_FLOATS:
        return _reducing(binding, _small_mean(binding.xp, dtype))
    add = _fast_adder(binding)

    def mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        # The mean of no elements, 0 / 0, is NaN and no exception, because the total is never a Python number.
        found: Array
        if len(axes) == 1:
            found = add(x, axes, keep) / x.shape[axes[0]]
        elif len(axes) == x.ndim:
            found = add(x, axes, keep) / x.size
        else:
            found = add(x, axes, keep) / math.prod([x.shape[a] for a in axes])
        return found

    return _reducing(binding, mean)


def _small_mean(xp: Namespace, dtype: DType) -> Reduce:
    def mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        count = np.float32(math.prod([x.shape[a] for a in axes]))
        return (xp.add.reduce(x, axis=axes, dtype=xp.float32, keepdims=keep) / count).astype(dtype.np_dtype)

    return mean


def _integer_mean(xp: Namespace, dtype: DType) -> Reduce:
    """Return the mean rounded towards zero, 0 for no elements. Unlike TensorFlow's, the 64-bit sums do not wrap."""
    wide = xp.uint64 if dtype.is_unsigned else xp.int64

    def mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        count = wide(max(math.prod([x.shape[a] for a in axes]), 1))
        total = xp.add.reduce(x, axis=axes, dtype=wide, keepdims=keep)
        rounded: Array = xp.sign(total) * (xp.abs(total) // count)
        return rounded.astype(dtype.np_dtype)

    return mean


@binder("Prod", host=_HOST, fresh=True)
def bind_prod(binding: Binding) -> KernelBody:
    multiply, dtype = binding.xp.multiply.reduce, binding.output_dtypes[0]
    wide, own = _wide(dtype), dtype.np_dtype
    if wide == own:
        return _reducing(binding, lambda x, axes, keep: multiply(x, axis=axes, dtype=own, keepdims=keep))
    return _reducing(binding, lambda x, axes, keep: multiply(x, axis=axes, dtype=wide, keepdims=keep).astype(own))


@binder("EuclideanNorm", host=_HOST, fresh=True)
def bind_euclidean_norm(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0]
    wide = np.dtype(np.float64) if dtype.is_integer else _wide(dtype)

    def norm(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        squares = (x * x.conj()).real if dtype.is_complex else xp.square(x.astype(wide, copy=False))
        return xp.sqrt(xp.add.reduce(squares, axis=axes, keepdims=keep)).astype(dtype.np_dtype)

    return _reducing(binding, norm)


# ── extremes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _extreme(binding: Binding, name: str, of_nothing: float) -> KernelBody:
    """Return the body of a maximum or minimum, whose result over no elements is `of_nothing`."""
    xp = binding.xp
    # On the CPU the ufunc's `reduce`, which avoids a Python wrapper; CuPy's ufuncs lack it.
    reduce: ArrayFunction = getattr(xp, name + "imum").reduce if binding.is_host else getattr(xp, name)

    def extreme(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        if x.size:
            return reduce(x, axis=axes, keepdims=keep)
        # NumPy raises an error for the extreme of no elements.
        sizes = [1 if a in axes else s for a, s in enumerate(x.shape) if keep or a not in axes]
        return xp.full(tuple(sizes), of_nothing, dtype=x.dtype)

    return _reducing(binding, extreme)


@binder("Max", host=_HOST, fresh=True)
def bind_max(binding: Binding) -> KernelBody:
    dtype = binding.output_dtypes[0]
    return _extreme(binding, "max", -math.inf if dtype.is_floating else dtype.min)


@binder("Min", host=_HOST, fresh=True)
def bind_min(binding: Binding) -> KernelBody:
    dtype = binding.output_dtypes[0]
    return _extreme(binding, "min", math.inf if dtype.is_floating else dtype.max)


@binder("All", host=_HOST, fresh=True)
def bind_all(binding: Binding) -> KernelBody:
    xp = binding.xp
    reduce = xp.logical_and.reduce if binding.is_host else xp.all
    return _reducing(binding, lambda x, axes, keep: reduce(x, axis=axes, keepdims=keep))


@binder("Any", host=_HOST, fresh=True)
def bind_any(binding: Binding) -> KernelBody:
    xp = binding.xp
    reduce = xp.logical_or.reduce if binding.is_host else xp.any
    return _reducing(binding, lambda x, axes, keep: reduce(x, axis=axes, keepdims=keep))


# ── scans ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("Cumsum", host={"axis": as_int}, fresh=True)
def cumsum(xp: Namespace, x: Array, axis: int, *, exclusive: bool, reverse: bool) -> Array:
    return _scan(xp, "add", 0, x, axis, exclusive, reverse)


@kernel("Cumprod", host={"axis": as_int}, fresh=True)
def cumprod(xp: Namespace, x: Array, axis: int, *, exclusive: bool, reverse: bool) -> Array:
    return _scan(xp, "multiply", 1, x, axis, exclusive, reverse)


def _scan(xp: Namespace, name: str, first: int, x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    axis = check_axis(axis, np.ndim(x))
    before = (slice(None),) * axis
    source = x[(*before, slice(None, None, -1))] if reverse else x
    wide = np.dtype(np.float32) if x.dtype in (t.np_dtype for t in _SMALL_FLOATS) else x.dtype
    if is_large(x):
        result = np.empty(x.shape, x.dtype)
        target = result[(*before, slice(None, None, -1))] if reverse else result
        if exclusive:
            # An exclusive scan is the inclusive one moved by an element, after the neutral element.
            target[(*before, slice(0, 1))] = first
            source, target = source[(*before, slice(None, -1))], target[(*before, slice(1, None))]
        _scan_into(target, source, axis, getattr(np, name), wide)
        return result
    scan = {"add": xp.cumsum, "multiply": xp.cumprod}[name]
    if exclusive:
        result = xp.full(x.shape, first, dtype=wide)
        result[(*before, slice(1, None))] = scan(source[(*before, slice(None, -1))], axis=axis, dtype=wide)
    else:
        result = scan(source, axis=axis, dtype=wide)
    if reverse:
        result = result[(*before, slice(None, None, -1))]
    return result.astype(x.dtype, copy=False)


def _scan_into(target: Array, source: Array, axis: int, ufunc: np.ufunc, wide: NpDType) -> None:
    """Scan block by block, and carry the last value of a block over to the next."""
    if source.size <= BLOCK:
        target[...] = ufunc.accumulate(source, axis, dtype=wide)
        return
    row = source.size // len(source)
    # Indices before the axis select independent scans.
    if axis:
        for part in blocks(len(source), max(1, BLOCK // row)):
            if row <= BLOCK:
                target[part] = ufunc.accumulate(source[part], axis, dtype=wide)
            else:
                _scan_into(target[part.start], source[part.start], axis - 1, ufunc, wide)
    elif row > BLOCK and source.shape[1] == 1:
        # A dimension of size 1 cannot be divided into blocks of columns, so it is dropped.
        _scan_into(target[:, 0], source[:, 0], 0, ufunc, wide)
    elif row > BLOCK:
        # Columns are independent scans, too.
        columns = source.shape[1]
        for part in blocks(columns, max(1, BLOCK * columns // row)):
            _scan_into(target[:, part], source[:, part], 0, ufunc, wide)
    else:
        last: Array | None = None
        for part in blocks(len(source), BLOCK // row):
            few = source[part].astype(wide)
            if last is not None:
                few[0] = ufunc(last, few[0])
            target[part] = few = ufunc.accumulate(few, 0)
            last = few[-1]
