"""The softmax of rows of float32, or its logarithm, by oneDNN.

oneDNN's exponential makes numbers of what is none, so rows with NaN, or with infinity, are not for it.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Final

import numpy as np

from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import Algorithm, Argument, PropKind, Query
from aioflow_onednn.library import library
from aioflow_onednn.magnitudes import FAR, sum_of_squares
from aioflow_onednn.primitives import Array, Layout, Primitive, address, described

__all__ = ["WORTHWHILE", "softmax"]

WORTHWHILE: Final = 2**13  # numbers: below, NumPy is as quick
_BLOCK: Final = 2**15  # numbers of a block, at least: below, waking a thread takes as long
_CACHED: Final = 2**17  # and about as many at most
_KEPT: Final = 1024  # prepared ones


def softmax(rows: Array, algorithm: Algorithm) -> Array | None:
    """The softmax of each row of a matrix, which is contiguous and not empty; None where there is NaN or infinity."""
    out = np.empty(rows.shape, np.float32)
    count, classes = rows.shape
    blocks = max(1, min(count, max(min(thread_count(), rows.size // _BLOCK), rows.size // _CACHED)))
    strange: list[int] = []

    def normalize(number: int) -> None:
        part = slice(count * number // blocks, count * (number + 1) // blocks)
        if strange:
            return
        if not _is_ordered(rows[part]):
            strange.append(number)
            return
        _prepared(part.stop - part.start, classes, algorithm).run(address(rows[part]), address(out[part]))

    for_each(normalize, range(blocks))
    return None if strange else out


def _is_ordered(rows: Array) -> bool:
    """Whether there is no NaN and no positive infinity. The sum of squares is the quicker answer."""
    return sum_of_squares(rows) < FAR or float(rows.max()) < inf


@lru_cache(maxsize=_KEPT)
def _prepared(count: int, classes: int, algorithm: Algorithm) -> Primitive:
    dnnl, layout = library(), Layout((count, classes), (classes, 1))
    with described(dnnl, (layout, layout)) as (source, target):
        made = dnnl.made(
            *("softmax_forward_primitive_desc_create", dnnl.engine, PropKind.FORWARD_INFERENCE, algorithm),
            *(source, target, 1, dnnl.attributes),
        )
    return Primitive(dnnl, made, {Argument.SRC: Query.SRC, Argument.DST: Query.DST})
