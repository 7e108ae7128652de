"""Copies of arrays that may be large: block by block, so that they can be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from aioflow.work.stopping import blocks, checkpoint, claim

__all__ = ["copied", "copy_into", "native", "put", "row_blocks"]

_BLOCK: Final = 4 << 20  # bytes, copied within milliseconds even where every page is new
_TILE: Final = 128  # rows and columns of a matrix that are in the cache at once, in both orders
_NARROW: Final = 512  # rows or columns of a matrix that is as quickly copied row by row
_OBJECTS: Final = 1 << 16  # elements, each of which is counted once more while nothing else can run


def copied(value: Any) -> Any:
    """A copy of an array, in row-major order.

    Raises:
        ResourceExhaustedError: it would be larger than a value may be (a view may be larger than its memory).
    """
    if type(value) is not np.ndarray or value.nbytes <= _BLOCK:
        return value.copy()
    claim(value.nbytes)
    result = np.empty(value.shape, value.dtype)
    copy_into(result, value)
    return result


def native(array: Any) -> Any:
    """The array, or a copy where it is not in the byte order of the processor, in which memory is read and written."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def copy_into(target: Any, source: Any) -> None:
    """Copy an array into one of the same shape, cast without checks if need be, with checkpoints."""
    most = _OBJECTS if target.dtype.hasobject else max(1, _BLOCK // max(target.itemsize, source.itemsize))
    if target.size <= most or not target.ndim:
        np.copyto(target, source, casting="unsafe")
        return
    row = target.size // len(target)
    if target.ndim == 2 and min(target.shape) > _NARROW and abs(source.strides[0]) < abs(source.strides[1]):
        _turn_into(target, source)
        return
    if row <= most:
        for part in blocks(len(target), most // row):
            np.copyto(target[part], source[part], casting="unsafe")
        return
    for i in range(len(target)):
        checkpoint()
        copy_into(target[i], source[i])


def _turn_into(target: Any, source: Any) -> None:
    """`copy_into` for a transposed matrix: row by row, each element would be alone on its line of the cache."""
    for rows in blocks(len(target), _TILE):
        for begin in range(0, target.shape[1], _TILE):
            tile = (rows, slice(begin, begin + _TILE))
            np.copyto(target[tile], source[tile], casting="unsafe")


def put(target: Any, source: Any) -> None:
    """`target[...] = source` for one of the same shape, an array of whatever device."""
    if type(source) is np.ndarray and source.nbytes > _BLOCK:
        copy_into(target, source)
    else:
        target[...] = source


def row_blocks(array: Any) -> Iterator[slice]:
    """Slices of the first dimension, each of a block at most, or of one row, with a checkpoint between them."""
    row = max(1, array.nbytes // max(1, len(array)))
    return blocks(len(array), max(1, _BLOCK // row))
