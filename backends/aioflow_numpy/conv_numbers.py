"""The dtype in which a convolution or pool computes, and the conversions to and from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aioflow.memory.values import NpDType

if TYPE_CHECKING:
    from aioflow.memory.values import Array

# The magnitude up to which float64 represents every integer.
_EXACT_IN_FLOAT64 = 1 << 53


@dataclass(frozen=True, slots=True)
class Numbers:
    """The dtype `compute` of a computation whose arguments and results have the dtype `result`."""

    compute: NpDType
    result: NpDType

    def widen(self, array: Array) -> Array:
        """Return `array` in the dtype of the computation, without a copy if it has that dtype."""
        return array.astype(self.compute, copy=False)

    def narrow(self, array: Array) -> Array:
        """Return `array` in the dtype of the result; integers wrap."""
        if self.result.kind in "iu" and array.dtype.kind == "f":
            array = array.astype(np.int64)  # exact; converting a float out of int32's range directly is undefined
        return array.astype(self.result, copy=False)


def product_numbers(a: Array, b: Array, terms: int) -> Numbers:
    """Return the dtypes for sums of `terms` products of an element of `a` and one of `b`, returned in a's dtype.

    The BLAS has no integer product. Integers are computed in float64 where every sum is exact, else by NumPy's own
    loop.
    """
    result = a.dtype
    if result.kind not in "iu":
        return float_numbers(result)
    # No partial sum exceeds this product, in whatever order the BLAS adds.
    exact = _magnitude(a) * _magnitude(b) * terms < _EXACT_IN_FLOAT64
    return Numbers(np.dtype(np.float64 if exact else np.int64), result)


def float_numbers(result: NpDType) -> Numbers:
    """Return the dtypes for sums and comparisons: floats narrower than float32 compute in float32, others unchanged."""
    return Numbers(np.dtype(np.float32) if result.itemsize < 4 and result.kind not in "iu" else result, result)


def _magnitude(array: Array) -> int:
    # Python's integers, because the smallest int64 has no absolute value in int64.
    return max(abs(int(array.max(initial=0))), abs(int(array.min(initial=0))))
