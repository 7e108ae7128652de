"""Kernels of sorting and counting: arg max and min, top k, n-th element, histograms, counts in bins."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import batches, blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import check_axis
from aioflow.kernels.blockwise import BLOCK, claim_array, is_large, on_host
from aioflow.kernels.convert import as_array, as_int
from aioflow.kernels.math.large_sorts import is_long, largest, nth, order_of
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, Namespace, NpDType

# Above this width a partition is faster than a full sort, if few elements are wanted.
_WIDE: Final = 256


@binder("ArgMax", host={"dimension": as_int}, fresh=True)
@binder("ArgMin", host={"dimension": as_int}, fresh=True)
def bind_arg(binding: Binding) -> KernelBody:
    name, output = binding.op_type.lower(), binding.output_dtypes[0].np_dtype

    def find(x: Array, axis: int) -> Any:
        shape = x.shape
        if not -len(shape) <= axis < len(shape) or not shape[axis]:
            return _arg_of_scalar(shape, axis, output)
        found = x.argmax(axis) if name == "argmax" else x.argmin(axis)
        return found if found.dtype == output else found.astype(output)

    return find


def _arg_of_scalar(shape: tuple[int, ...], axis: int, output: NpDType) -> Any:
    """Return 0 for axis 0 of a scalar. Otherwise raise InvalidArgumentError: the axis is missing or empty."""
    if not shape and axis == 0:
        return output.type(0)
    check_axis(axis, len(shape))
    raise InvalidArgumentError(f"reduction axis {axis} is empty", expected="at least one element", actual=shape)


@kernel("TopK", fresh=True, synchronises=True)
def top_k(xp: Namespace, x: Array, *, k: int) -> tuple[Array, Array]:
    return _top(xp, x, k, np.dtype(np.int32))


@binder("TopKV2", host={"k": as_int}, fresh=True, synchronises=True)
def bind_top_k(binding: Binding) -> KernelBody:
    xp, index = binding.xp, binding.output_dtypes[1].np_dtype
    return lambda x, k: _top(xp, x, k, index)


def _top(xp: Namespace, x: Array, k: int, index: NpDType) -> tuple[Array, Array]:
    if not x.ndim or k < 0 or x.shape[-1] < k:
        raise InvalidArgumentError(
            f"input must have at least k={k} columns", expected=f"0 <= k <= {x.shape[-1:]}", actual=k
        )
    width = x.shape[-1]
    if not x.size or not k:
        empty = (*x.shape[:-1], k)
        return xp.empty(empty, dtype=x.dtype), xp.empty(empty, dtype=index)
    if x.ndim > 2 or (is_large(x) and x.ndim > 1):
        return _top_of_rows(xp, x, k, index)
    if k == 1:
        # `argmax` returns the first of equal elements, as the stable sort does.
        best = x.argmax(-1)[..., None]
    elif width > _WIDE and k * 8 <= width:
        best = _top_few(xp, x, k)
    else:
        best = _descending(xp, x)[..., :k]
    return xp.take_along_axis(x, best, -1), best.astype(index)


def _top_of_rows(xp: Namespace, x: Array, k: int, index: NpDType) -> tuple[Array, Array]:
    """Find the largest elements by rows, since NumPy sorts at most 32 dimensions; a large array in blocks of rows."""
    rows = x.reshape(-1, x.shape[-1])
    if not is_large(x):
        values, best = _top(xp, rows, k, index)
    else:
        values, best = np.empty((len(rows), k), x.dtype), np.empty((len(rows), k), index)
        for part in blocks(len(rows), max(1, BLOCK // x.shape[-1])):
            few = rows[part] if len(rows) > 1 else rows[0]
            values[part], best[part] = _top(np, few, k, index)
    return values.reshape(*x.shape[:-1], k), best.reshape(*x.shape[:-1], k)


def _descending(xp: Namespace, x: Array) -> Array:
    """Return the indices of a stable descending sort: a stable ascending one of the mirrored array, mirrored."""
    mirrored = x[..., ::-1]
    order = order_of(mirrored) if is_long(x) else xp.argsort(mirrored, axis=-1, kind="stable")
    descending: Array = x.shape[-1] - 1 - order[..., ::-1]
    return descending


def _top_few(xp: Namespace, x: Array, k: int) -> Array:
    """Return the same as `_descending(x)[..., :k]`, by a partition."""
    if is_long(x):
        candidates = largest(x, k)
        return candidates[_descending(xp, x[candidates])[:k]]
    width = x.shape[-1]
    # In ascending order, so that the stable sort below keeps the first of equal elements in front.
    chosen = xp.sort(xp.argpartition(x, width - k, axis=-1)[..., width - k :], axis=-1)
    values = xp.take_along_axis(x, chosen, -1)
    least = values.min(axis=-1, keepdims=True)
    # A partition chooses arbitrarily among ties at the boundary; the result must be the first of them.
    if ((x == least).sum(-1) != (values == least).sum(-1)).any():
        return _descending(xp, x)[..., :k]
    return xp.take_along_axis(chosen, _descending(xp, values), -1)


@kernel("NthElement", host={"n": as_int}, fresh=True)
def nth_element(xp: Namespace, x: Array, n: int, *, reverse: bool) -> Array:
    width = x.shape[-1] if x.ndim else 0
    if not 0 <= n < width:
        raise InvalidArgumentError(f"input must have more than n={n} columns", expected=f"0 <= n < {width}", actual=n)
    place = width - 1 - n if reverse else n
    if is_long(x):
        return nth(x, place)
    if is_large(x) and x.ndim > 1:
        rows = x.reshape(-1, width)
        found = [nth(row, place) if is_long(row) else np.partition(row, place)[place] for row in batches(rows, 64)]
        return np.array(found, x.dtype).reshape(x.shape[:-1])
    rows = x.reshape(math.prod(x.shape[:-1]), width)  # NumPy sorts at most 32 dimensions
    return xp.partition(rows, place, axis=-1)[:, place].reshape(x.shape[:-1]).copy()


@kernel("InTopK", fresh=True)
def in_top_k(xp: Namespace, predictions: Array, targets: Array, *, k: int) -> Array:
    return _in_top(xp, predictions, targets, k)


@kernel("InTopKV2", host={"k": as_int}, fresh=True)
def in_top_k_v2(xp: Namespace, predictions: Array, targets: Array, k: int) -> Array:
    return _in_top(xp, predictions, targets, k)


def _in_top(xp: Namespace, predictions: Array, targets: Array, k: int) -> Array:
    if predictions.ndim != 2 or targets.shape != predictions.shape[:1]:
        raise InvalidArgumentError(
            "predictions and targets do not fit",
            expected="[batch, classes] and [batch]",
            actual=f"{predictions.shape} and {targets.shape}",
        )
    classes = predictions.shape[1]
    if not predictions.size:
        return xp.zeros(targets.shape, dtype=bool)
    if is_large(predictions):
        rows = max(1, BLOCK // classes)
        parts = blocks(len(predictions), rows)
        return np.concatenate([_in_top_rows(np, predictions[part], targets[part], k) for part in parts])
    return _in_top_rows(xp, predictions, targets, k)


def _in_top_rows(xp: Namespace, predictions: Array, targets: Array, k: int) -> Array:
    inside = (targets >= 0) & (targets < predictions.shape[1])
    own = xp.take_along_axis(predictions, xp.where(inside, targets, 0)[:, None], 1)
    # Ties with the target do not count against it. A row with an infinite or NaN prediction never qualifies.
    found: Array = inside & ((predictions > own).sum(1) < k) & xp.isfinite(predictions).all(1)
    return found


@binder("Bincount", host={"size": as_int}, fresh=True, elastic=True, synchronises=True)
def bind_bincount(binding: Binding) -> KernelBody:
    xp, own = binding.xp, binding.output_dtypes[0].np_dtype

    def count(arr: Array, size: int, weights: Array) -> Array:
        if size < 0:
            raise InvalidArgumentError("size must be non-negative", expected=">= 0", actual=size)
        flat = xp.asarray(arr).reshape(-1)
        if weights.size and weights.shape != arr.shape:
            raise InvalidArgumentError(
                "the weights do not have the shape of the values",
                expected=f"{arr.shape} or empty",
                actual=weights.shape,
            )
        if flat.size and int(flat.min()) < 0:
            raise InvalidArgumentError("Input arr must be non-negative!", expected=">= 0", actual=int(flat.min()))
        claim_array((size,), np.dtype(np.float64))
        is_short = not is_large(flat) and (size <= BLOCK or not on_host(xp))
        if not weights.size and is_short:
            return xp.bincount(flat[flat < size], minlength=size).astype(own)
        # Not by bincount's `weights`, which are float64 and would round integers.
        result = xp.zeros(size, dtype=own)
        for part in blocks(flat.size, BLOCK if is_large(flat) else max(1, flat.size)):
            kept = flat[part] < size
            counted = weights.reshape(-1)[part][kept] if weights.size else own.type(1)
            xp.add.at(result, flat[part][kept], counted)
        return result

    return count


@binder(
    "HistogramFixedWidth", host={"value_range": as_array, "nbins": as_int}, fresh=True, elastic=True, synchronises=True
)
def bind_histogram(binding: Binding) -> KernelBody:
    xp, output = binding.xp, binding.output_dtypes[0].np_dtype

    def histogram(values: Array, value_range: Array, nbins: int) -> Array:
        if nbins <= 0:
            raise InvalidArgumentError("nbins should be a positive number", expected="> 0", actual=nbins)
        if value_range.shape != (2,) or not value_range[0] < value_range[1]:
            raise InvalidArgumentError(
                "the range of a histogram is two ascending values", expected="[low, high]", actual=value_range.tolist()
            )
        low, high = value_range
        flat = xp.asarray(values).reshape(-1)
        claim_array((nbins,), np.dtype(np.int64))
        step = (float(high) - float(low)) / nbins
        result = xp.zeros(nbins, xp.int64)
        for part in blocks(flat.size, BLOCK if is_large(flat) else max(1, flat.size)):
            # Values below the range count in the first bin, those above it in the last.
            places = (xp.maximum(flat[part], low) - low).astype(np.float64) / step
            places = xp.nan_to_num(places, nan=0.0, posinf=nbins - 1)
            result += xp.bincount(xp.minimum(places, nbins - 1).astype(np.int64), minlength=nbins)
        return result.astype(output)

    return histogram


# ── counts of values in bins ──────────────────────────────────────────────────────────────────────────────────────────


@binder("DenseBincount", host={"size": as_int}, fresh=True, elastic=True, synchronises=True)
def bind_dense_bincount(binding: Binding) -> KernelBody:
    xp, own, binary = binding.xp, binding.output_dtypes[0].np_dtype, binding.attrs["binary_output"]

    def count(values: Array, size: int, weights: Array) -> Array:
        _check(values, size, weights)
        rows = values.shape[0] if values.ndim == 2 else 1
        claim_array((rows, size), own)
        result = xp.zeros(rows * size, dtype=own)
        flat = values.reshape(-1)
        width = max(1, flat.size // max(1, rows))
        for part in blocks(flat.size, BLOCK if is_large(flat) else max(1, flat.size)):
            ids = flat[part]
            kept = ids < size
            # Element n is in row n // width, whose bins begin at row * size.
            places = (xp.arange(part.start, part.stop) // width * size + ids)[kept]
            if binary:
                result[places] = 1
            else:
                xp.add.at(result, places, weights.reshape(-1)[part][kept] if weights.size else own.type(1))
        return result.reshape((rows, size) if values.ndim == 2 else (size,))

    return count


def _check(values: Array, size: int, weights: Array) -> None:
    if size < 0:
        raise InvalidArgumentError("size must be non-negative", expected=">= 0", actual=size)
    if values.ndim > 2:
        raise InvalidArgumentError("values of too high a rank", expected="at most 2", actual=values.ndim)
    if weights.size and weights.shape != values.shape:
        raise InvalidArgumentError(
            "the weights do not have the shape of the values",
            expected=f"{values.shape} or empty",
            actual=weights.shape,
        )
    if values.size and int(values.min()) < 0:
        raise InvalidArgumentError("Input arr must be non-negative!", expected=">= 0", actual=int(values.min()))


@binder("Bucketize", fresh=True)
def bind_bucketize(binding: Binding) -> KernelBody:
    xp = binding.xp
    bounds = np.asarray(binding.attrs["boundaries"], np.float32)
    if (bounds[1:] < bounds[:-1]).any():
        raise InvalidArgumentError("the boundaries are not in order", expected="ascending", actual=bounds.tolist())
    on_device = xp.asarray(bounds)

    def bucketize(values: Array) -> Array:
        compared = values if values.dtype.kind == "f" else values.astype(np.float32)
        return xp.searchsorted(on_device, compared, side="right").astype(np.int32)

    return bucketize
