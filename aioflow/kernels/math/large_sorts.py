"""Sorting of many numbers on the CPU in blocks, so that it can be stopped: sample sort (Frazer and McKellar, 1970).

Numbers are first distributed to ordered buckets, then each bucket is sorted. The result equals that of a sort in one
call, to the last bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.concurrency.stopping import batches, blocks
from aioflow.kernels.blockwise import BLOCK
from aioflow.memory.values import Array

_MANY: Final = 1 << 20  # numbers up to which one sort takes at most some hundredths of a second
_PIVOTS: Final = 127
_SAMPLES: Final = 32  # samples per pivot


def is_long(x: Array) -> bool:
    """Return True if a vector of numbers is long enough to be sorted in buckets."""
    return type(x) is np.ndarray and x.ndim == 1 and x.size > _MANY and x.dtype.kind != "O"


def order_of(x: Array) -> Array:
    """Return `np.argsort(x, kind="stable")` of a vector of numbers."""
    if not is_long(x):
        return np.argsort(x, kind="stable")
    _, places = _shared_out(x)
    order, ends = bucket_by_bucket(places)
    begin = 0
    for bucket, end in batches(enumerate(ends.tolist()), 1):
        if bucket % 2 == 0 and end - begin > 1:  # odd buckets hold equal numbers
            inside = order[begin:end]
            order[begin:end] = inside[np.argsort(x[inside], kind="stable")]
        begin = end
    return order


def largest(x: Array, count: int) -> Array:
    """Return the positions of the largest `count` of a long vector, and of numbers that may equal them, ascending."""
    _, places = _shared_out(x)
    ends = np.cumsum(_counts(places))
    # The first bucket that has one of the largest `count` numbers.
    least = int(np.searchsorted(ends, x.size - count, side="right"))
    return np.concatenate([part.start + np.flatnonzero(places[part] >= least) for part in blocks(x.size, BLOCK)])


def nth(x: Array, place: int) -> Array:
    """Return the number at that place in the sorted order of a long vector."""
    pivots, places = _shared_out(x)
    ends = np.cumsum(_counts(places))
    bucket = int(np.searchsorted(ends, place, side="right"))
    found: Array
    if bucket % 2:
        found = pivots[bucket // 2]
        return found
    inside = np.concatenate([x[part][places[part] == bucket] for part in blocks(x.size, BLOCK)])
    # Counted from the first number of the bucket.
    place -= int(ends[bucket - 1]) if bucket else 0
    found = np.partition(inside, place)[place]
    return found


def _shared_out(x: Array) -> tuple[Array, Array]:
    """Return the sorted pivots, and the bucket of each number: 2i below pivot i, 2i + 1 if equal to it."""
    sample = np.sort(x[:: max(1, x.size // (_PIVOTS * _SAMPLES))])
    pivots = np.unique(sample[np.linspace(0, len(sample) - 1, _PIVOTS).astype(np.int64)])
    beyond = np.append(pivots, pivots[-1:])  # a placeholder for the last bucket, where numbers are above all pivots
    places = np.empty(x.size, np.uint16)
    for part in blocks(x.size, BLOCK):
        numbers = x[part]
        below = np.searchsorted(pivots, numbers, "left")
        places[part] = 2 * below + ((beyond[below] == numbers) & (below < len(pivots)))
    return pivots, places


def _counts(places: Array) -> Array | int:
    return sum(np.bincount(places[part], minlength=2 * _PIVOTS + 1) for part in blocks(places.size, BLOCK))


def bucket_by_bucket(places: Array) -> tuple[Array, Array]:
    """Return the positions sorted by bucket (uint16), in each bucket ascending, and the end of each bucket."""
    most = max(int(places[part].max()) for part in blocks(places.size, BLOCK)) + 1
    counts = sum(np.bincount(places[part], minlength=most) for part in blocks(places.size, BLOCK))
    ends = np.cumsum(counts)
    free = ends - counts  # the next free place of each bucket
    order = np.empty(places.size, np.int64)
    for part in blocks(places.size, BLOCK):
        moved = np.argsort(places[part], kind="stable")  # a radix sort, since these are 16-bit integers
        bucket = places[part][moved]
        inside = np.bincount(bucket, minlength=most)
        begins = np.cumsum(inside) - inside
        # Each number goes to the next free place of its bucket, in the order of the block.
        order[free[bucket] + np.arange(len(bucket)) - begins[bucket]] = moved + part.start
        free += inside
    return order, ends
