"""Large arrays on the CPU, made and read block by block: between two blocks the work can be stopped, and others get
their turn. (What NumPy does with objects, and with bfloat16, keeps all other threads waiting.)

A device with memory of its own works beside the interpreter, so that its arrays go through in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import MAX_RANK
from aioflow.kernels.convert import check_room
from aioflow.work.copying import copy_into, row_blocks
from aioflow.work.stopping import blocks, claim

__all__ = [
    "BLOCK",
    "claim_array",
    "counted",
    "folded_in",
    "folded_rows",
    "full",
    "is_large",
    "joined",
    "on_host",
    "put_rows",
    "rows_chosen",
    "rows_written",
    "taken",
    "written",
]

BLOCK: Final = 1 << 18  # elements, each of which costs some nanoseconds
_OBJECTS: Final = 1 << 14  # elements that keep others waiting
_AT_RANK: Final = 32  # NumPy 2.4: `ufunc.at` of an array of more dimensions is the end of the process


def is_large(value: Any) -> bool:
    """Whether a value is an array that is worth taking in blocks."""
    return type(value) is np.ndarray and value.size > (_OBJECTS if value.dtype.kind in "OV" else BLOCK)


def _block(dtype: Any) -> int:
    return _OBJECTS if dtype.kind in "OV" else BLOCK


def claim_array(shape: tuple[int, ...], dtype: Any, nanoseconds: float = 0.0) -> int:
    """`claim` for an array of that shape, each element of which costs so much; returns its number of elements."""
    count = math.prod(shape)
    if not count:
        check_room(shape)
    claim(count * dtype.itemsize, count * nanoseconds * 1e-9)
    return count


def written(shape: tuple[int, ...], dtype: Any, write: Callable[[slice], Any]) -> Any:
    """A new array whose elements, counted through in row-major order, `write` gives part by part."""
    result = np.empty(shape, dtype)
    flat = result.reshape(-1)
    for part in blocks(flat.size, _block(result.dtype)):
        flat[part] = write(part)
    return result


def rows_written(shape: tuple[int, ...], dtype: Any, write: Callable[[slice], Any]) -> Any:
    """A new array whose rows, along the first dimension, `write` gives part by part."""
    result = np.empty(shape, dtype)
    row = max(1, result.size // max(1, len(result)))
    for part in blocks(len(result), max(1, _block(result.dtype) // row)):
        result[part] = write(part)
    return result


def full(xp: Any, shape: tuple[int, ...], value: Any, dtype: Any) -> Any:
    """`xp.full`."""
    if math.prod(shape) <= _block(dtype) or not on_host(xp):
        return xp.full(shape, value, dtype)
    return written(shape, dtype, lambda part: value)


def on_host(xp: Any) -> bool:
    """Whether it is the namespace of arrays on the CPU."""
    return xp.ndarray is np.ndarray


def taken(xp: Any, values: Any, indices: Any, axis: int = 0) -> Any:
    """`values.take(indices, axis)`, for indices that are in range.

    Raises:
        InvalidArgumentError: no array has as many dimensions; NumPy's `take` would end the process.
    """
    shape = (*values.shape[:axis], *indices.shape, *values.shape[axis + 1 :])
    if len(shape) > MAX_RANK:
        raise InvalidArgumentError(
            "the result has too many dimensions", expected=f"at most {MAX_RANK}", actual=len(shape)
        )
    if not shape and values.dtype.hasobject:  # a single element would be plain bytes
        return values.take(indices.reshape(1), axis).reshape(())
    if math.prod(shape) <= _block(values.dtype) or type(values) is not np.ndarray:
        return values.take(indices, axis)
    if axis == 0:
        flat = indices.reshape(-1)
        found = rows_written((flat.size, *shape[indices.ndim :]), values.dtype, lambda part: values.take(flat[part], 0))
        return found.reshape(shape)
    return rows_written(shape, values.dtype, lambda part: values[part].take(indices, axis))


def joined(arrays: Sequence[Any]) -> Any:
    """`np.concatenate(arrays)`, of one dtype."""
    if not any(is_large(array) for array in arrays):
        return np.concatenate(arrays)
    result = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    begin = 0
    for array in arrays:
        copy_into(result[begin : begin + len(array)], array)
        begin += len(array)
    return result


def rows_chosen(array: Any, kept: Any) -> Any:
    """`array[kept]`, for a flag for each row."""
    if not is_large(array):
        return array[kept]
    found = [array[part][kept[part]] for part in row_blocks(array)]
    return joined(found)


def folded_in(ufunc: Any, target: Any, places: Any, values: Any) -> None:
    """`ufunc.at(target, places, values)`, for a vector of places, or a tuple of them, and one of values."""
    rows = places if isinstance(places, tuple) else (places,)
    for part in blocks(len(values), BLOCK if is_large(values) else max(1, len(values))):
        ufunc.at(target, tuple(column[part] for column in rows), values[part])


def folded_rows(ufunc: Any, target: Any, rows: Any, updates: Any) -> None:
    """`ufunc.at(target, rows, updates)`, for a vector of rows and as many updates, each of the shape of a row."""
    if target.ndim <= _AT_RANK:
        ufunc.at(target, rows, updates)
        return
    width = math.prod(target.shape[1:])
    flat = target.reshape(len(target), width)
    ufunc.at(flat, rows, updates.reshape(len(rows), width))
    target[...] = flat.reshape(target.shape)  # which need not be a view


def put_rows(target: Any, places: Any, values: Any) -> None:
    """`target[places] = values`, for a vector of places, or a tuple of them, and one of values."""
    rows = places if isinstance(places, tuple) else (places,)
    for part in blocks(len(values), BLOCK if is_large(values) else max(1, len(values))):
        target[tuple(column[part] for column in rows)] = values[part]


def counted(numbers: Any, total: int) -> Any:
    """`np.bincount(numbers, minlength=total)`, for numbers below that."""
    if not is_large(numbers):
        return np.bincount(numbers, minlength=total)
    counts = np.zeros(total, np.int64)
    for part in blocks(len(numbers), BLOCK):
        np.add.at(counts, numbers[part], 1)
    return counts
