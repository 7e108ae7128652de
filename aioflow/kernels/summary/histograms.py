"""Histograms of summaries in TensorFlow's buckets, whose edges grow by a tenth each from 1e-12 to 1e20."""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.memory.values import Array
from aioflow.protos import Message

_BLOCK: Final = 1 << 16  # numbers between two checkpoints


@cache
def _edges() -> Array:
    """Return the upper ends of the buckets; a number equal to an edge belongs to the next bucket."""
    positive = []
    edge = 1e-12
    while edge < 1e20:
        positive.append(edge)
        edge *= 1.1
    positive.append(sys.float_info.max)
    return np.array([*(-edge for edge in reversed(positive)), 0.0, *positive])


def add_histogram(histogram: Message, values: Array) -> None:
    """Fill in a `HistogramProto`. The numbers are added in order, so the sums equal TensorFlow's to the last bit.

    Raises:
        InvalidArgumentError: a number is NaN or infinite.
    """
    edges = _edges()
    counts = np.zeros(len(edges), dtype=np.int64)
    lowest, highest, total, squares = edges[-1], edges[0], 0.0, 0.0
    flat = values.reshape(-1)
    for part in blocks(flat.size, _BLOCK):
        numbers = flat[part].astype(np.float64)
        _check_finite(numbers)
        places = np.minimum(np.searchsorted(edges, numbers, side="right"), len(edges) - 1)
        counts += np.bincount(places, minlength=len(edges))
        lowest, highest = min(lowest, numbers.min()), max(highest, numbers.max())
        with np.errstate(over="ignore"):
            total = _added(total, numbers)
            squares = _added(squares, numbers * numbers)
    histogram.min, histogram.max, histogram.num = lowest, highest, flat.size
    histogram.sum, histogram.sum_squares = total, squares
    # A run of empty buckets becomes one bucket.
    last_of_run = (counts > 0) | np.append(counts[1:] > 0, True)
    histogram.bucket_limit.extend(edges[last_of_run].tolist())
    histogram.bucket.extend(counts[last_of_run].tolist())


def _added(before: float, numbers: Array) -> float:
    # `np.sum` adds in pairs, which rounds differently.
    return float(np.add.accumulate(np.append(before, numbers))[-1])


def _check_finite(numbers: Array) -> None:
    if not np.isfinite(numbers).all():
        found = "NaN" if np.isnan(numbers).any() else "infinity"
        raise InvalidArgumentError("a histogram is of finite numbers", expected="no NaN, no infinity", actual=found)
