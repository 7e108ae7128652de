"""The softmax of float32 rows, or its logarithm, by oneDNN.

oneDNN's exponential turns NaN into a number, so rows with NaN or positive infinity are left to NumPy.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Final

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import Algorithm, ArgumentRole, PropKind, Query
from aioflow_onednn.library import library
from aioflow_onednn.magnitudes import FAR, sum_of_squares
from aioflow_onednn.primitives import MemoryLayout, Primitive, address, described

WORTHWHILE: Final = 2**13  # numbers: below, NumPy is as fast
_BLOCK: Final = 2**15  # minimum numbers of a block: for fewer, waking a thread takes as long
_CACHED: Final = 2**17  # approximate maximum of the same
_KEPT: Final = 1024  # prepared primitives


def softmax(rows: Array, algorithm: Algorithm) -> Array | None:
    """Return the softmax of each row of a contiguous, nonempty matrix; None if it has NaN or positive infinity."""
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
    """Return True if there is no NaN and no positive infinity."""
    # The sum of squares is the faster test. The maximum then admits negative infinity and very large numbers.
    return sum_of_squares(rows) < FAR or float(rows.max()) < inf


@lru_cache(maxsize=_KEPT)
def _prepared(count: int, classes: int, algorithm: Algorithm) -> Primitive:
    dnnl, layout = library(), MemoryLayout((count, classes), (classes, 1))
    with described(dnnl, (layout, layout)) as (source, target):
        made = dnnl.made(
            *("softmax_forward_primitive_desc_create", dnnl.engine, PropKind.FORWARD_INFERENCE, algorithm),
            *(source, target, 1, dnnl.attributes),  # 1: along the classes
        )
    return Primitive(dnnl, made, {ArgumentRole.SRC: Query.SRC, ArgumentRole.DST: Query.DST})
