"""Products of 8-bit integers with constant weights by oneDNN, on processors that have instructions for them (VNNI).

Sums are of int32 and exact, so the results are those of the kernel below, which converts the integers to floats.
Measured in a step, products of 1 to 1,024 rows with matrices of 256 to 3,072 columns take a fifth to three fourths of
the time. Where the sums need float64 and the weights are large, which NumPy then converts in each step, they take a
twentieth and less.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.memory.values import Array, NpDType
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import ArgumentRole, DataType, Query
from aioflow_onednn.library import library
from aioflow_onednn.primitives import MemoryLayout, Primitive, address, described

WORTHWHILE: Final = 2**18  # multiplications: below, NumPy is as fast
_BLOCK: Final = 2**24  # minimum multiplications of a block: for fewer, waking a thread takes as long
_LARGEST: Final = 2**27  # approximate maximum of the same: about a millisecond
_DEEPEST: Final = 2**15  # maximum terms of a sum, which int32 then holds
_KEPT: Final = 1024  # prepared products
_INTEGERS: Final = {np.dtype(np.uint8): DataType.U8, np.dtype(np.int8): DataType.S8}
_ARGUMENTS: Final = {ArgumentRole.SRC: Query.SRC, ArgumentRole.WEIGHTS: Query.WEIGHTS, ArgumentRole.DST: Query.DST}


def are_quicker() -> bool:
    """Return True if this processor has instructions for products of 8-bit integers.

    Without them oneDNN adds pairs of products in 16 bits, which saturate.
    """
    return library().has_int8


class IntegerWeights:
    """Constant weights, as 8-bit integers.

    Attributes:
        values: The weights as int8.
        sums: The sum of each column, as int32.
    """

    def __init__(self, weights: Array) -> None:
        self.values = weights.astype(np.int8, order="C", copy=False)
        self.sums = self.values.sum(axis=0, dtype=np.int32)


def integer_weights(weights: Array) -> IntegerWeights | None:
    """Return the weights as integers; None if they are empty, not 8-bit integers, or too many to sum in int32."""
    if not weights.size or len(weights) > _DEEPEST:
        return None
    # NaN compares false.
    if not (weights.min() >= -128 and weights.max() <= 127):
        return None
    if weights.dtype.kind == "f" and np.any(weights != np.rint(weights)):
        return None
    return IntegerWeights(weights)


def matmul(a: Array, weights: IntegerWeights, zero: int, dtype: NpDType) -> Array:
    """Return the product of a - zero and the weights, for a contiguous matrix a that is not empty.

    The zero point is a number of a's dtype.
    """
    (rows, inner), columns = a.shape, weights.values.shape[1]
    made, offsets, size = np.empty((rows, columns), dtype), weights.sums * np.int32(zero), rows * inner * columns
    blocks = max(1, min(max(min(size // _BLOCK, thread_count()), size // _LARGEST), max(rows, columns)))

    def multiply(number: int) -> None:
        down, across = slice(0, rows), slice(0, columns)
        if rows >= columns:
            down = slice(rows * number // blocks, rows * (number + 1) // blocks)
        else:
            across = slice(columns * number // blocks, columns * (number + 1) // blocks)
        part, right = a[down], weights.values[:, across]
        sums = scratch("sums", (len(part), right.shape[1]), np.dtype(np.int32))
        prepared = _prepared(*part.shape, right.shape[1], columns, _INTEGERS[a.dtype])
        prepared.run(address(part), address(right), address(sums))
        # The difference is that of int32; only the result is converted.
        np.subtract(sums, offsets[across], out=made[down, across], casting="unsafe")

    for_each(multiply, range(blocks))
    return made


@lru_cache(maxsize=_KEPT)
def _prepared(rows: int, inner: int, columns: int, stride: int, integers: DataType) -> Primitive:
    """Return the product for weights whose rows are `stride` numbers apart."""
    dnnl = library()
    layouts = (
        MemoryLayout((rows, inner), (inner, 1), integers),
        MemoryLayout((inner, columns), (stride, 1), DataType.S8),
        MemoryLayout((rows, columns), (columns, 1), DataType.S32),
    )
    with described(dnnl, layouts) as (left, right, product):
        made = dnnl.made("matmul_primitive_desc_create", dnnl.engine, left, right, None, product, dnnl.attributes)
    return Primitive(dnnl, made, _ARGUMENTS)
