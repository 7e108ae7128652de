"""Kernels of reductions of chosen rows by segments, and of their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array, taken
from aioflow.kernels.convert import as_int, check_rank
from aioflow.kernels.math.large_sorts import is_long, order_of
from aioflow.kernels.math.segment import Reducer, check_sorted
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace

_COUNT = {"num_segments": as_int}


def _check_below(what: str, numbers: Array, end: int) -> None:
    """Raise InvalidArgumentError unless all numbers are in 0 … end - 1."""
    if len(numbers):
        least, most = int(numbers.min()), int(numbers.max())
        if least < 0 or most >= end:
            raise InvalidArgumentError(
                f"{what} out of range", expected=f"0 <= it < {end}", actual=least if least < 0 else most
            )


def _divisors(xp: Namespace, kind: str, ids: Array, count: int) -> Array:
    """Return what the sum of each segment is divided by; 1 for a segment without rows."""
    sizes = xp.maximum(xp.bincount(ids, minlength=count), 1).astype(np.float64)
    return xp.sqrt(sizes) if kind == "SqrtN" else sizes


def _divided(rows: Array, divisors: Array) -> Array:
    column = divisors.astype(rows.dtype).reshape(len(rows), *(1,) * (rows.ndim - 1))
    found: Array = rows / column
    return found


@binder("SparseSegmentSum", fresh=True, elastic=True, synchronises=True)
@binder("SparseSegmentMean", fresh=True, elastic=True, synchronises=True)
@binder("SparseSegmentSqrtN", fresh=True, elastic=True, synchronises=True)
@binder("SparseSegmentSumWithNumSegments", host=_COUNT, fresh=True, elastic=True, synchronises=True)
@binder("SparseSegmentMeanWithNumSegments", host=_COUNT, fresh=True, elastic=True, synchronises=True)
@binder("SparseSegmentSqrtNWithNumSegments", host=_COUNT, fresh=True, elastic=True, synchronises=True)
def bind_sparse_segment(binding: Binding) -> KernelBody:
    kind = binding.op_type.removeprefix("SparseSegment").removesuffix("WithNumSegments")
    reducer, xp = Reducer(binding, "Sum", 0), binding.xp

    def segments(data: Array, indices: Array, ids: Array, count: int | None = None) -> Array:
        data, indices, ids = xp.asarray(data), xp.asarray(indices), xp.asarray(ids)
        check_rank("the indices", indices, 1)
        _check_data(data)
        found = check_sorted(xp, indices, ids)
        if count is None:
            count = found
        elif count < found:
            raise InvalidArgumentError("a segment id is out of range", expected=f"ids below {count}", actual=found - 1)
        _check_below("an index is", indices, len(data))
        claim_array((len(indices), *data.shape[1:]), data.dtype)
        sums = reducer.into(taken(data, indices), ids, count)
        if kind != "Sum":
            sums = _divided(sums, _divisors(xp, kind, ids, count))
        return sums.astype(reducer.own, copy=False)

    return segments


def _check_data(data: Any) -> None:
    if not np.ndim(data):
        raise InvalidArgumentError("the data have no rows", expected="rank >= 1", actual="rank 0")


@binder("SparseSegmentSumGrad", host={"output_dim0": as_int}, fresh=True, elastic=True, synchronises=True)
@binder("SparseSegmentMeanGrad", host={"output_dim0": as_int}, fresh=True, elastic=True, synchronises=True)
@binder("SparseSegmentSqrtNGrad", host={"output_dim0": as_int}, fresh=True, elastic=True, synchronises=True)
def bind_sparse_segment_grad(binding: Binding) -> KernelBody:
    kind = binding.op_type.removeprefix("SparseSegment").removesuffix("Grad")
    reducer, xp = Reducer(binding, "Sum", 0), binding.xp

    def spread(grad: Array, indices: Array, ids: Array, count: int) -> Array:
        grad, indices, ids = xp.asarray(grad), xp.asarray(indices), xp.asarray(ids)
        check_rank("the indices", indices, 1)
        _check_data(grad)
        if np.shape(ids) != np.shape(indices):
            raise InvalidArgumentError(
                "each index needs a segment id", expected=np.shape(indices), actual=np.shape(ids)
            )
        if count < 0:
            raise InvalidArgumentError("the number of rows is negative", expected=">= 0", actual=count)
        _check_below("an index is", indices, count)
        _check_below("a segment id is", ids, len(grad))
        wide = grad.astype(reducer.wide, copy=False)
        if kind != "Sum":
            wide = _divided(wide, _divisors(xp, kind, ids, len(grad)))
        order = order_of(indices) if is_long(indices) else xp.argsort(indices, kind="stable")
        claim_array((len(indices), *grad.shape[1:]), wide.dtype)
        rows = taken(wide, taken(ids, order))
        return reducer.into(rows, taken(indices, order), count).astype(reducer.own, copy=False)

    return spread
