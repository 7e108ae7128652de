"""Kernels of segment reductions: rows are sorted by segment, then one `reduceat` reduces all segments."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.kernels.blockwise import BLOCK, claim_array, folded_rows, full, is_large, joined, on_host, taken, written
from aioflow.kernels.convert import as_int
from aioflow.kernels.math.large_sorts import is_long, order_of
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace, NpDType

_UFUNC: Final = {"Sum": "add", "Mean": "add", "Prod": "multiply", "Max": "maximum", "Min": "minimum"}


class Reducer:
    """A reduction of rows to segments by one ufunc, in float32 if the dtype is a small float."""

    def __init__(self, binding: Binding, kind: str, empty: float) -> None:
        dtype = binding.output_dtypes[0]
        self.xp = binding.xp
        self.ufunc = getattr(binding.xp, _UFUNC[kind])
        self.empty = empty
        self.own = dtype.np_dtype
        small = dtype in (dtypes.float16, dtypes.bfloat16) and kind in ("Sum", "Mean", "Prod")
        self.wide = np.dtype(np.float32) if small else dtype.np_dtype
        self.has_reduceat = binding.is_host

    def into(self, data: Array, ids: Array, count: int) -> Array:
        """Return [count, ...] segments of the rows of `data`, whose ids ascend and are in range."""
        shape = (count, *data.shape[1:])
        claim_array(shape, self.wide)
        result = full(self.xp, shape, self.empty, self.wide)
        if not data.size:
            return result
        starts = _starts(self.xp, ids)
        if self.has_reduceat:
            rows = len(starts) if not is_large(data) else max(1, BLOCK // max(1, data.size // len(starts)))
            for part in blocks(len(starts), rows):  # blocks of whole segments
                begins = starts[part]
                end = starts[part.stop] if part.stop < len(starts) else len(data)
                few = data[begins[0] : end]
                result[ids[begins]] = self.ufunc.reduceat(few, begins - begins[0], axis=0, dtype=self.wide)
        else:
            # The first row of each segment is assigned, and the others are folded into it.
            result[ids[starts]] = data[starts]
            rest = self.xp.ones(len(ids), dtype=bool)
            rest[starts] = False
            folded_rows(self.ufunc, result, ids[rest], data[rest].astype(self.wide, copy=False))
        return result


def _starts(xp: Namespace, ids: Array) -> Array:
    """Return the first position of each of the ascending ids."""
    if not is_large(ids):
        # Ids are not negative, so the first flag is True. It is missing if there are no ids.
        return xp.flatnonzero(xp.concatenate([ids[:1] >= 0, ids[1:] != ids[:-1]]))
    found = [np.zeros(1, np.int64)]
    for part in blocks(len(ids) - 1, BLOCK):
        later = slice(part.start + 1, part.stop + 1)
        found.append(later.start + np.flatnonzero(ids[later] != ids[part]))
    return joined(found)


# ── sorted ids ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_sorted(xp: Namespace, data: Array, ids: Array) -> int:
    """Return the number of segments. Raise InvalidArgumentError unless ids are one per row, ascending, not negative."""
    if ids.ndim != 1 or not data.ndim or len(ids) != data.shape[0]:
        raise InvalidArgumentError(
            "segment ids should be the same size as dimension 0 of input",
            expected=f"{data.shape[:1]}",
            actual=f"{ids.shape}",
        )
    if not len(ids):
        return 0
    if int(ids[0]) < 0:
        raise InvalidArgumentError("segment ids must be >= 0", expected=">= 0", actual=int(ids[0]))
    falling = xp.flatnonzero(ids[1:] < ids[:-1])
    if len(falling):
        at = int(falling[0])
        raise InvalidArgumentError(
            "segment ids are not increasing",
            expected="ascending ids",
            actual=f"{int(ids[at])} before {int(ids[at + 1])}",
        )
    return int(ids[-1]) + 1


@binder("SegmentSum", fresh=True, elastic=True, synchronises=True)
@binder("SegmentProd", fresh=True, elastic=True, synchronises=True)
@binder("SegmentMax", fresh=True, elastic=True, synchronises=True)
@binder("SegmentMin", fresh=True, elastic=True, synchronises=True)
def bind_segment(binding: Binding) -> KernelBody:
    kind = binding.op_type.removeprefix("Segment")
    reducer = Reducer(binding, kind, 1 if kind == "Prod" else 0)

    def segments(data: Array, ids: Array) -> Array:
        count = check_sorted(reducer.xp, data, ids)
        return reducer.into(data, ids, count).astype(reducer.own, copy=False)

    return segments


@binder("SegmentMean", fresh=True, elastic=True, synchronises=True)
def bind_segment_mean(binding: Binding) -> KernelBody:
    reducer, dtype = Reducer(binding, "Mean", 0), binding.output_dtypes[0]
    xp = reducer.xp

    def means(data: Array, ids: Array) -> Array:
        count = check_sorted(xp, data, ids)
        sums = reducer.into(data, ids, count)
        # The mean of an empty segment is 0, not 0 / 0.
        sizes = xp.maximum(xp.bincount(ids, minlength=count), 1).reshape(count, *(1,) * (data.ndim - 1))
        found: Array
        if not dtype.is_integer:
            found = sums / sizes.astype(sums.real.dtype)
        else:
            found = xp.sign(sums) * (xp.abs(sums) // sizes.astype(sums.dtype))
        return found.astype(reducer.own, copy=False)

    return means


# ── unsorted ids ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_unsorted(data: Array, ids: Array, count: int) -> None:
    if data.shape[: ids.ndim] != ids.shape:
        raise InvalidArgumentError(
            "the shape of the data does not start with that of the segment ids",
            expected=f"{ids.shape} and more",
            actual=f"{data.shape}",
        )
    if count < 0:
        raise InvalidArgumentError("the number of segments is negative", expected=">= 0", actual=count)
    top = int(ids.max()) if ids.size else -1
    if top >= count:
        raise InvalidArgumentError(f"segment id {top} is out of range", expected=f"ids below {count}", actual=top)


@binder("UnsortedSegmentSum", host={"num_segments": as_int}, fresh=True, elastic=True, synchronises=True)
@binder("UnsortedSegmentProd", host={"num_segments": as_int}, fresh=True, elastic=True, synchronises=True)
@binder("UnsortedSegmentMax", host={"num_segments": as_int}, fresh=True, elastic=True, synchronises=True)
@binder("UnsortedSegmentMin", host={"num_segments": as_int}, fresh=True, elastic=True, synchronises=True)
def bind_unsorted_segment(binding: Binding) -> KernelBody:
    kind = binding.op_type.removeprefix("UnsortedSegment")
    dtype = binding.output_dtypes[0]
    reducer = Reducer(binding, kind, _empty(kind, dtype))
    xp = reducer.xp
    by_bincount = kind == "Sum" and dtype in (dtypes.float32, dtypes.float64)  # bincount adds in float64

    def segments(data: Array, ids: Array, count: int) -> Array:
        data, ids = xp.asarray(data), xp.asarray(ids)
        _check_unsorted(data, ids, count)
        flat = ids.reshape(-1)
        rows = data.reshape(flat.shape + data.shape[ids.ndim :])
        if flat.size and int(flat.min()) < 0:
            # As in TensorFlow, rows with negative ids are dropped.
            kept = flat >= 0
            flat, rows = flat[kept], rows[kept]
        claim_array((count, *rows.shape[1:]), np.dtype(np.float64))
        if by_bincount and rows.ndim == 1:
            return _added(xp, flat, rows, count, reducer.own)
        if bool((flat[1:] < flat[:-1]).any()):
            # NumPy sorts 16-bit keys by radix, several times faster than wider ones.
            keys = flat.astype(np.uint16) if count <= 1 << 16 else flat
            order = order_of(keys) if is_long(keys) else xp.argsort(keys, kind="stable")
            flat, rows = flat[order], taken(rows, order)
        return reducer.into(rows, flat, count).astype(reducer.own, copy=False)

    return segments


def _added(xp: Namespace, ids: Array, numbers: Array, count: int, dtype: NpDType) -> Array:
    """Return the sum of the numbers of each id, added in float64 in order."""
    if not on_host(xp) or (count <= BLOCK and not is_large(numbers)):
        return xp.bincount(ids, weights=numbers, minlength=count).astype(dtype)
    totals = xp.zeros(count, xp.float64)
    for part in blocks(len(ids), BLOCK if is_large(numbers) else max(1, len(ids))):
        xp.add.at(totals, ids[part], numbers[part].astype(np.float64))
    if not is_large(totals):
        return totals.astype(dtype)
    return written((count,), dtype, lambda part: totals[part])


def _empty(kind: str, dtype: DType) -> Any:
    """Return the value of a segment without elements."""
    if kind in ("Max", "Min"):
        return dtype.min if kind == "Max" else dtype.max
    return 1 if kind == "Prod" else 0
