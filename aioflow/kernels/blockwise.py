"""Large arrays on the CPU, made and read block by block: between two blocks the work can be stopped, and others get
their turn. (What NumPy does with objects, and with bfloat16, keeps all other threads waiting.)

A device with memory of its own works beside the interpreter, so that its arrays go through in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aioflow.kernels.convert import check_room
from aioflow.stopping import blocks, claim

__all__ = ["BLOCK", "claim_array", "full", "is_large", "on_host", "rows_written", "taken", "written"]

BLOCK: Final = 1 << 18  # elements, each of which costs some nanoseconds
_OBJECTS: Final = 1 << 14  # elements that keep others waiting


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
    """`values.take(indices, axis)`, for indices that are in range."""
    shape = (*values.shape[:axis], *indices.shape, *values.shape[axis + 1 :])
    if math.prod(shape) <= _block(values.dtype) or type(values) is not np.ndarray:
        return values.take(indices, axis)
    if axis == 0:
        flat = indices.reshape(-1)
        found = rows_written((flat.size, *shape[indices.ndim :]), values.dtype, lambda part: values.take(flat[part], 0))
        return found.reshape(shape)
    return rows_written(shape, values.dtype, lambda part: values[part].take(indices, axis))
