"""How large numbers are, by their sum of squares: a product tells it while it reads them, and NaN as well.

oneDNN takes NaN for a number here and there, and gets what is far from that alone.
"""

from __future__ import annotations

from typing import Final

from aioflow_numpy.products import dot
from aioflow_onednn.primitives import Array

__all__ = ["FAR", "sum_of_squares"]

FAR: Final = 1e38  # from infinity, with room for the rounding of sums


def sum_of_squares(array: Array) -> float:
    """Of an array in one piece; NaN where a number is, infinite where float32 has no such number."""
    flat = array.reshape(-1)
    return float(dot(flat, flat))
