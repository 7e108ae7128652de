"""Addresses of arrays, for libraries that take bare addresses.

Memory safety: code that passes an address on must hold the array until the call has returned.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_char
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from aioflow.memory.values import Array

if TYPE_CHECKING:
    from collections.abc import Callable

# The first byte of an array that is contiguous and writable. Raises TypeError or ValueError for others.
# NumPy before 2.1 does not declare arrays as buffers, hence the cast.
first_byte: Final = cast("Callable[[np.ndarray[Any, np.dtype[Any]]], c_char]", c_char.from_buffer)


def address(array: Array) -> int:
    """Return the address of the array's first element."""
    try:
        # Takes a sixth of the time that NumPy needs to report it.
        return addressof(first_byte(array))
    except (TypeError, ValueError):  # read-only, not contiguous, or empty
        begin: int = array.__array_interface__["data"][0]
        return begin


def address_of(function: Any) -> int:
    """Return the address of a library's function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
