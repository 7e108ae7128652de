"""Block by block processing of large arrays on the CPU: the work can be stopped between blocks, and other threads run.

NumPy's operations on objects and on bfloat16 hold the GIL, so they would otherwise block all other threads. Arrays of a
device with its own memory are processed in one piece, because the device works beside the interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import blocks, reserve
from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import MAX_RANK
from aioflow.kernels.convert import check_room
from aioflow.memory.copying import copy_into, row_blocks
from aioflow.memory.values import Array, Namespace, NpDType, Value

BLOCK: Final = 1 << 18  # elements of a block, at some nanoseconds each
_OBJECTS: Final = 1 << 14  # elements of a block where NumPy holds the GIL
_AT_RANK: Final = 32  # NumPy 2.4: `ufunc.at` of an array of more dimensions crashes the process


def is_large(value: object) -> bool:
    """Return True if a value is an array that is large enough to be processed in blocks."""
    return type(value) is np.ndarray and value.size > (_OBJECTS if value.dtype.kind in "OV" else BLOCK)


def _block(dtype: NpDType) -> int:
    return _OBJECTS if dtype.kind in "OV" else BLOCK


def claim_array(shape: tuple[int, ...], dtype: NpDType, nanoseconds: float = 0.0) -> int:
    """Claim memory and time for an array of that shape, at `nanoseconds` per element; return its number of elements."""
    count = math.prod(shape)
    # `reserve` accepts an empty array of any shape, but NumPy multiplies its other sizes.
    if not count:
        check_room(shape)
    reserve(count * dtype.itemsize, count * nanoseconds * 1e-9)
    return count


def written(shape: tuple[int, ...], dtype: NpDType, write: Callable[[slice], Value]) -> Array:
    """Return a new array; `write` returns the elements of each block, numbered in row-major order."""
    result = np.empty(shape, dtype)
    flat = result.reshape(-1)
    for part in blocks(flat.size, _block(result.dtype)):
        flat[part] = write(part)
    return result


def rows_written(shape: tuple[int, ...], dtype: NpDType, write: Callable[[slice], Value]) -> Array:
    """Return a new array; `write` returns the rows of each block, along the first dimension."""
    result = np.empty(shape, dtype)
    # Elements of a row. At least one row is written at a time, however wide it is.
    row = max(1, result.size // max(1, len(result)))
    for part in blocks(len(result), max(1, _block(result.dtype) // row)):
        result[part] = write(part)
    return result


def full(xp: Namespace, shape: tuple[int, ...], value: Value, dtype: NpDType) -> Array:
    """Return the same as `xp.full`, written block by block on the CPU."""
    if math.prod(shape) <= _block(dtype) or not on_host(xp):
        return xp.full(shape, value, dtype)
    return written(shape, dtype, lambda part: value)


def on_host(xp: Namespace) -> bool:
    """Return True if `xp` is the namespace of arrays on the CPU."""
    return xp.ndarray is np.ndarray


def taken(values: Array, indices: Array, axis: int = 0) -> Array:
    """Return `values.take(indices, axis)`, for indices in range.

    Raises:
        InvalidArgumentError: the result would have too many dimensions, for which NumPy's `take` crashes the process.
    """
    shape = (*values.shape[:axis], *indices.shape, *values.shape[axis + 1 :])
    if len(shape) > MAX_RANK:
        raise InvalidArgumentError(
            "the result has too many dimensions", expected=f"at most {MAX_RANK}", actual=len(shape)
        )
    if not shape and values.dtype.hasobject:  # `take` would return plain bytes instead of an array
        return values.take(indices.reshape(1), axis).reshape(())
    if math.prod(shape) <= _block(values.dtype) or type(values) is not np.ndarray:
        return values.take(indices, axis)
    # Blocks run along the first dimension of the result, which the indices supply if they replace axis 0.
    if axis == 0:
        flat = indices.reshape(-1)
        found = rows_written((flat.size, *shape[indices.ndim :]), values.dtype, lambda part: values.take(flat[part], 0))
        return found.reshape(shape)
    return rows_written(shape, values.dtype, lambda part: values[part].take(indices, axis))


def joined(arrays: Sequence[Array]) -> Array:
    """Return `np.concatenate(arrays)`, for arrays of one dtype."""
    if not any(is_large(array) for array in arrays):
        return np.concatenate(arrays)
    result = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    begin = 0
    for array in arrays:
        copy_into(result[begin : begin + len(array)], array)
        begin += len(array)
    return result


def rows_chosen(array: Array, kept: Array) -> Array:
    """Return `array[kept]`, for one flag per row."""
    if not is_large(array):
        return array[kept]
    found = [array[part][kept[part]] for part in row_blocks(array)]
    return joined(found)


def folded_in(ufunc: np.ufunc | Namespace, target: Array, places: Array | tuple[Array, ...], values: Array) -> None:
    """Call `ufunc.at(target, places, values)`, for a vector of places, or a tuple of them, and a vector of values."""
    rows = places if isinstance(places, tuple) else (places,)
    for part in blocks(len(values), BLOCK if is_large(values) else max(1, len(values))):
        ufunc.at(target, tuple(column[part] for column in rows), values[part])


def folded_rows(ufunc: np.ufunc | Namespace, target: Array, rows: Array, updates: Array) -> None:
    """Call `ufunc.at(target, rows, updates)`, for a vector of rows and one update of a row's shape for each."""
    if target.ndim <= _AT_RANK:
        ufunc.at(target, rows, updates)
        return
    width = math.prod(target.shape[1:])
    flat = target.reshape(len(target), width)
    ufunc.at(flat, rows, updates.reshape(len(rows), width))
    target[...] = flat.reshape(target.shape)  # `flat` may be a copy of the target


def put_rows(target: Array, places: Array | tuple[Array, ...], values: Array) -> None:
    """Assign `target[places] = values`, for a vector of places, or a tuple of them, and a vector of values."""
    rows = places if isinstance(places, tuple) else (places,)
    for part in blocks(len(values), BLOCK if is_large(values) else max(1, len(values))):
        target[tuple(column[part] for column in rows)] = values[part]


def counted(numbers: Array, total: int) -> Array:
    """Return `np.bincount(numbers, minlength=total)`, for numbers below `total`."""
    if not is_large(numbers):
        return np.bincount(numbers, minlength=total)
    # Not a `bincount` of each block, which would make an array of `total` counts for each.
    counts = np.zeros(total, np.int64)
    for part in blocks(len(numbers), BLOCK):
        np.add.at(counts, numbers[part], 1)
    return counts
