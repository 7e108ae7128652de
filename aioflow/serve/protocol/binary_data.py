"""Tensors as bytes after the JSON: little-endian, row-major. A string is its length in four bytes, then its bytes."""

from __future__ import annotations

import math
import struct
import sys
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.memory.copying import native
from aioflow.memory.values import Array, Buffer
from aioflow.serve.protocol.datatypes import spelled
from aioflow.serve.protocol.errors import MalformedRequestError

_LENGTH: Final = struct.Struct("<I")
_SWAPPED: Final = sys.byteorder == "big"


def from_bytes(data: Buffer, begin: int, size: int, dtype: DType, shape: tuple[int, ...], name: str) -> Array:
    """Return the array in the `size` bytes from `begin` on, as a view of them unless it has strings.

    Raises:
        MalformedRequestError: the number of bytes does not match the shape, or the bytes are not valid for the dtype.
    """
    count = math.prod(shape)
    if dtype is dtypes.string:
        return _strings(memoryview(data)[begin : begin + size], count, name).reshape(shape)
    if size != count * dtype.size:
        raise MalformedRequestError(
            f"input {name!r} has another number of bytes than its shape and datatype take",
            expected=f"{count * dtype.size} for {spelled(dtype)} {list(shape)}",
            actual=size,
        )
    # `frombuffer` refuses an empty buffer.
    array = np.frombuffer(data, dtype.np_dtype, count, begin) if count else np.empty(0, dtype.np_dtype)
    # NumPy treats other bytes as true in some operations and not in others.
    if dtype is dtypes.bool_ and count and array.view(np.uint8).max() > 1:
        raise MalformedRequestError(f"input {name!r} has bytes that are no bools", expected="0 or 1", actual="others")
    if _SWAPPED:
        array = array.byteswap()
    return array.reshape(shape)


def _strings(data: memoryview, count: int, name: str) -> Array:
    # First, so that no more elements are allocated than the body can hold.
    if count * _LENGTH.size > len(data):
        raise _wrong_strings(name, count)
    found = np.empty(count, np.object_)
    at, end = 0, len(data)
    for index in range(count):
        if at + _LENGTH.size > end:
            raise _wrong_strings(name, count)
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > end:
            raise _wrong_strings(name, count)
        found[index] = bytes(data[at : at + length])
        at += length
    if at != end:
        raise _wrong_strings(name, count)
    return found


def _wrong_strings(name: str, count: int) -> MalformedRequestError:
    return MalformedRequestError(
        f"the bytes of input {name!r} are not its strings",
        expected=f"{count} times a length of 4 bytes, and so many bytes",
        actual="other lengths",
    )


def to_bytes(array: Array, dtype: DType) -> Buffer:
    """Return the bytes of an array as a bytes-like object: a view of the array if it is contiguous."""
    if dtype is dtypes.string:
        items = array.ravel().tolist()
        return b"".join([part for item in items for part in (_LENGTH.pack(len(item)), item)])
    array = np.ascontiguousarray(native(array))
    if _SWAPPED:
        array = array.byteswap()
    # Viewed as bytes, because the buffer protocol has no format for bfloat16.
    return array.reshape(-1).view(np.uint8).data
