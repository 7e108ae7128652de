"""Copies of arrays that may be large: block by block, so that they can be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import blocks, checkpoint, reserve
from aioflow.memory.values import Array

_BLOCK: Final = 4 << 20  # in bytes: copied within milliseconds even if every page is new
_TILE: Final = 128  # rows and columns of a matrix that fit into the cache in both orders
_NARROW: Final = 512  # rows or columns up to which copying row by row is as fast
_OBJECTS: Final = 1 << 16  # elements of dtype object: their reference counts are changed while no other thread can run


def copied(value: Array) -> Array:
    """Return a copy of an array, in row-major order.

    Raises:
        ResourceExhaustedError: the copy would exceed the limit of a value (a view may be larger than its memory).
    """
    # NumPy's scalars, and arrays of other devices, have a `copy` of their own.
    if type(value) is not np.ndarray or value.nbytes <= _BLOCK:
        return value.copy()
    reserve(value.nbytes)
    result = np.empty(value.shape, value.dtype)
    copy_into(result, value)
    return result


def native(array: Any) -> Any:
    """Return the array, or a copy in native byte order if it has another one."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def copy_into(target: Array, source: Array) -> None:
    """Copy an array into one of the same shape, with unchecked casts and with checkpoints."""
    most = _OBJECTS if target.dtype.hasobject else max(1, _BLOCK // max(target.itemsize, source.itemsize))
    if target.size <= most or not target.ndim:
        np.copyto(target, source, casting="unsafe")
        return
    row = target.size // len(target)
    # The elements of a column are closer together in the source than those of a row.
    if target.ndim == 2 and min(target.shape) > _NARROW and abs(source.strides[0]) < abs(source.strides[1]):
        _turn_into(target, source)
        return
    if row <= most:
        for part in blocks(len(target), most // row):
            np.copyto(target[part], source[part], casting="unsafe")
        return
    # A single row is larger than a block, so each is split along its own first axis.
    for i in range(len(target)):
        checkpoint()
        copy_into(target[i], source[i])


def _turn_into(target: Array, source: Array) -> None:
    """Copy a transposed matrix by tiles: row by row, each element would be on a cache line of its own."""
    for rows in blocks(len(target), _TILE):
        for begin in range(0, target.shape[1], _TILE):
            tile = (rows, slice(begin, begin + _TILE))
            np.copyto(target[tile], source[tile], casting="unsafe")


def put(target: Array, source: Array) -> None:
    """Assign `target[...] = source` for arrays of the same shape, on any device."""
    if type(source) is np.ndarray and source.nbytes > _BLOCK:
        copy_into(target, source)
    else:
        target[...] = source


def row_blocks(array: Array) -> Iterator[slice]:
    """Yield slices of the first dimension, each of at most a block or of one row, with a checkpoint between them."""
    # An array without rows, or with rows of no bytes, must not divide by zero.
    row = max(1, array.nbytes // max(1, len(array)))
    return blocks(len(array), max(1, _BLOCK // row))
