"""Conversion of results to narrower dtypes, with NumPy's bits in less time."""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.memory.values import Array, NpDType

_FLOAT16: Final = np.dtype(np.float16)
_FLOAT32: Final = np.dtype(np.float32)
_FEW: Final = 2048  # elements; below, the calls of NumPy cost more than they save
_SELDOM: Final = 32  # one subnormal of so many elements costs as much as the bit operations on all
_BLOCK: Final = 8192  # elements whose intermediate values stay in the cache


def narrowed(x: Array, dtype: NpDType) -> Array:
    """Return x with another dtype, as `x.astype(dtype)`.

    NumPy takes about 85 ns for each float32 that is subnormal in float16, as most gradients are: it sets a flag of the
    processor for each. This takes 1 to 2 ns.
    """
    if dtype is _FLOAT16 and type(x) is np.ndarray and x.dtype is _FLOAT32 and x.size >= _FEW:
        return _in_float16(x)
    return x.astype(dtype)


def _in_float16(x: Array) -> Array:
    if not x.flags.forc:
        x = np.ascontiguousarray(x)
    found = np.empty(x.shape, _FLOAT16, "C" if x.flags.c_contiguous else "F")
    source, target = x.ravel("K"), found.ravel("K").view(np.uint16)  # views, since both are contiguous
    for start in range(0, x.size, _BLOCK):
        part = source[start : start + _BLOCK]
        target[start : start + _BLOCK] = _rounded(part)
    return found


def _rounded(x: Array) -> Array:
    """Round float32 to nearest, ties to even, on the bits: a sign, 8 bits of exponent (now 5) and 23 of digits (10)."""
    bits = x.view(np.uint32)
    magnitude = bits & 0x7FFF_FFFF
    # Subnormals are those below 2^-14. Zero less 1 is the largest number. NumPy is faster if there are few, and knows
    # what becomes of numbers from 2^16 on: overflow, infinity or NaN.
    slow = np.count_nonzero(magnitude - 1 < 0x387F_FFFF)
    if slow * _SELDOM < x.size or magnitude.max() >= 0x4780_0000:
        return x.astype(_FLOAT16).view(np.uint16)
    # 13 digits are dropped. Adding just under a half of the last one, plus that one, carries as rounding does. The
    # upper bits of the summand subtract the difference of the exponents' offsets, 127 - 15, modulo 2^32.
    found = magnitude >> 13
    found &= 1
    found += magnitude
    found += 0xC800_0FFF
    found >>= 13
    subnormal = magnitude < 0x3880_0000  # or zero
    # In 0.5 ≤ y < 1 the last digit of a float32 is 2^-24, the smallest float16: the addition itself rounds.
    shifted: Array = magnitude.view(np.float32)
    shifted += np.float32(0.5)
    magnitude -= 0x3F00_0000
    np.copyto(found, magnitude, where=subnormal)
    sign = bits >> 16
    sign &= 0x8000
    found |= sign
    return found
