"""The sum of squares of an array, as a fast test for NaN and for large numbers.

Some of oneDNN's primitives treat NaN as a number. They are used only where the sum of squares is small.
"""

from __future__ import annotations

from typing import Final

from aioflow.memory.values import Array
from aioflow_numpy.products import dot

FAR: Final = 1e38  # below infinity, with a margin for the rounding of sums


def sum_of_squares(array: Array) -> float:
    """Return the sum of squares of a contiguous array: NaN if an element is NaN, infinity if float32 overflows."""
    flat = array.reshape(-1)
    return float(dot(flat, flat))
