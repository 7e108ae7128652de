"""Kernels of order and counting: arg max and min, top k, n-th element, histograms."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_array, as_int
from aioflow.kernels.registry import Binding, Body, binder, kernel

__all__: list[str] = []

# Above this width a partition is worth more than a full sort, if few elements are wanted.
_WIDE: Final = 256


@binder("ArgMax", host={"dimension": as_int}, fresh=True)
@binder("ArgMin", host={"dimension": as_int}, fresh=True)
def bind_arg(binding: Binding) -> Body:
    name, output = binding.op_type.lower(), binding.output_dtypes[0].np_dtype

    def find(x: Any, axis: int) -> Any:
        shape = x.shape
        if not -len(shape) <= axis < len(shape) or not shape[axis]:
            return _arg_of_scalar(shape, axis, output)
        found = x.argmax(axis) if name == "argmax" else x.argmin(axis)
        return found if found.dtype == output else found.astype(output)

    return find


def _arg_of_scalar(shape: tuple[int, ...], axis: int, output: np.dtype[Any]) -> Any:
    """0 for axis 0 of a scalar; otherwise raises InvalidArgumentError, since the axis is missing or empty."""
    if not shape and axis == 0:
        return output.type(0)
    if -len(shape) <= axis < len(shape):
        raise InvalidArgumentError(f"reduction axis {axis} is empty", expected="at least one element", actual=shape)
    raise InvalidArgumentError("axis out of range", expected=f"-{len(shape)} <= axis < {len(shape)}", actual=axis)


@kernel("TopK", fresh=True)
def top_k(xp: Any, x: Any, *, k: int) -> tuple[Any, Any]:
    return _top(xp, x, k, xp.int32)


@binder("TopKV2", host={"k": as_int}, fresh=True)
def bind_top_k(binding: Binding) -> Body:
    xp, index = binding.xp, binding.output_dtypes[1].np_dtype
    return lambda x, k: _top(xp, x, k, index)


def _top(xp: Any, x: Any, k: int, index: Any) -> tuple[Any, Any]:
    if not x.ndim or k < 0 or x.shape[-1] < k:
        raise InvalidArgumentError(
            f"input must have at least k={k} columns", expected=f"0 <= k <= {x.shape[-1:]}", actual=k
        )
    width = x.shape[-1]
    if not x.size or not k:
        empty = (*x.shape[:-1], k)
        return xp.empty(empty, dtype=x.dtype), xp.empty(empty, dtype=index)
    if k == 1:
        best = x.argmax(-1)[..., None]
    elif width > _WIDE and k * 8 <= width:
        best = _top_few(xp, x, k)
    else:
        best = _descending(xp, x)[..., :k]
    return xp.take_along_axis(x, best, -1), best.astype(index)


def _descending(xp: Any, x: Any) -> Any:
    """The indices of a stable descending sort: a stable ascending one of the mirrored array, mirrored."""
    return x.shape[-1] - 1 - xp.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]


def _top_few(xp: Any, x: Any, k: int) -> Any:
    """As `_descending(x)[..., :k]`, by a partition, which chooses freely among ties at the boundary."""
    width = x.shape[-1]
    chosen = xp.sort(xp.argpartition(x, width - k, axis=-1)[..., width - k :], axis=-1)
    values = xp.take_along_axis(x, chosen, -1)
    least = values.min(axis=-1, keepdims=True)
    if ((x == least).sum(-1) != (values == least).sum(-1)).any():
        return _descending(xp, x)[..., :k]
    return xp.take_along_axis(chosen, _descending(xp, values), -1)


@kernel("NthElement", host={"n": as_int}, fresh=True)
def nth_element(xp: Any, x: Any, n: int, *, reverse: bool) -> Any:
    width = x.shape[-1] if x.ndim else 0
    if not 0 <= n < width:
        raise InvalidArgumentError(f"input must have more than n={n} columns", expected=f"0 <= n < {width}", actual=n)
    place = width - 1 - n if reverse else n
    return xp.partition(x, place, axis=-1)[..., place].copy()


@kernel("InTopK", fresh=True)
def in_top_k(xp: Any, predictions: Any, targets: Any, *, k: int) -> Any:
    return _in_top(xp, predictions, targets, k)


@kernel("InTopKV2", host={"k": as_int}, fresh=True)
def in_top_k_v2(xp: Any, predictions: Any, targets: Any, k: int) -> Any:
    return _in_top(xp, predictions, targets, k)


def _in_top(xp: Any, predictions: Any, targets: Any, k: int) -> Any:
    if predictions.ndim != 2 or targets.shape != predictions.shape[:1]:
        raise InvalidArgumentError(
            "predictions and targets do not fit",
            expected="[batch, classes] and [batch]",
            actual=f"{predictions.shape} and {targets.shape}",
        )
    classes = predictions.shape[1]
    if not predictions.size:
        return xp.zeros(targets.shape, dtype=bool)
    inside = (targets >= 0) & (targets < classes)
    own = xp.take_along_axis(predictions, xp.where(inside, targets, 0)[:, None], 1)
    return inside & ((predictions > own).sum(1) < k) & xp.isfinite(predictions).all(1)


@binder("Bincount", host={"size": as_int}, fresh=True)
def bind_bincount(binding: Binding) -> Body:
    xp, own = binding.xp, binding.output_dtypes[0].np_dtype

    def count(arr: Any, size: int, weights: Any) -> Any:
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
        kept = flat < size
        if not weights.size:
            return xp.bincount(flat[kept], minlength=size).astype(own)
        result = xp.zeros(size, dtype=own)  # not bincount's weights, which go through float64 and would round integers
        xp.add.at(result, flat[kept], weights.reshape(-1)[kept])
        return result

    return count


@binder("HistogramFixedWidth", host={"value_range": as_array, "nbins": as_int}, fresh=True)
def bind_histogram(binding: Binding) -> Body:
    xp, output = binding.xp, binding.output_dtypes[0].np_dtype

    def histogram(values: Any, value_range: np.ndarray[Any, Any], nbins: int) -> Any:
        if nbins <= 0:
            raise InvalidArgumentError("nbins should be a positive number", expected="> 0", actual=nbins)
        if value_range.shape != (2,) or not value_range[0] < value_range[1]:
            raise InvalidArgumentError(
                "the range of a histogram is two ascending values", expected="[low, high]", actual=value_range.tolist()
            )
        low, high = value_range
        flat = xp.asarray(values).reshape(-1)
        step = (float(high) - float(low)) / nbins
        places = (xp.maximum(flat, low) - low).astype(xp.float64) / step
        places = xp.nan_to_num(places, nan=0.0, posinf=nbins - 1)
        return xp.bincount(xp.minimum(places, nbins - 1).astype(xp.int64), minlength=nbins).astype(output)

    return histogram
