"""Helpers of the sparse kernels: checks of the three parts, row-major order, groups of entries with equal indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import is_large, joined, taken
from aioflow.kernels.math.large_sorts import order_of
from aioflow.memory.copying import row_blocks
from aioflow.memory.values import Array


def as_vector(value: npt.ArrayLike) -> Array:
    """Return the value as a NumPy array, also if it is a bare scalar or string."""
    return (
        value
        if isinstance(value, np.ndarray)
        else np.asarray(value, dtype=object if isinstance(value, bytes) else None)
    )


def int64_array(value: npt.ArrayLike) -> Array:
    """Return the value as an int64 array on the host."""
    return np.asarray(value, dtype=np.int64)


def check_entries(indices: Array, values: Array, shape: Array) -> None:
    """Check that the three parts fit one another.

    Raises:
        InvalidArgumentError: a part has the wrong rank, the numbers of entries or dimensions differ, or a size is
            negative.
    """
    if np.ndim(indices) != 2 or np.ndim(values) != 1 or np.ndim(shape) != 1:
        raise InvalidArgumentError(
            "the parts of a sparse tensor have the wrong ranks",
            expected="a matrix of indices, vectors of values and sizes",
            actual=f"{np.shape(indices)}, {np.shape(values)} and {np.shape(shape)}",
        )
    if indices.shape != (values.shape[0], shape.shape[0]):
        raise InvalidArgumentError(
            "the indices of a sparse tensor do not fit",
            expected=f"[{values.shape[0]}, {shape.shape[0]}]",
            actual=indices.shape,
        )
    if (shape < 0).any():
        raise InvalidArgumentError("a size is negative", expected=">= 0", actual=shape.tolist())


def check_bounds(indices: Array, shape: Array) -> None:
    """Check that every index is inside the shape.

    Raises:
        InvalidArgumentError: an index is out of bounds.
    """
    if not indices.size:
        return
    for part in row_blocks(indices):
        rows = indices[part]
        wrong = (rows < 0) | (rows >= shape)
        if wrong.any():
            row = part.start + int(np.flatnonzero(wrong.any(axis=1))[0])
            raise InvalidArgumentError(
                f"index {row} of a sparse tensor is out of bounds",
                expected=f"inside {shape.tolist()}",
                actual=indices[row].tolist(),
            )


def check_columns(*parts: Array) -> None:
    """Check that indices, as matrices or as single rows, belong to tensors of equal rank.

    Raises:
        InvalidArgumentError: the ranks differ.
    """
    shapes = [np.shape(part) for part in parts]
    if not all(shape and len(shape) <= 2 for shape in shapes) or len({shape[-1] for shape in shapes if shape}) > 1:
        raise InvalidArgumentError(
            "the tensors do not have equal ranks",
            expected="[n, rank] each",
            actual=shapes,
        )


def row_major(indices: Array) -> Array:
    """Return the stable order that sorts the rows.

    It does not use the product of the sizes, which may exceed 64 bits.
    """
    if indices.shape[1] == 0:
        return np.arange(indices.shape[0])
    # For `lexsort` the last key is the most significant one.
    if not is_large(indices):
        return np.lexsort(indices.T[::-1])
    # `lexsort` of a large matrix could not be stopped, so sort by one column after the other, the last one first.
    order = np.arange(len(indices))
    for column in reversed(range(indices.shape[1])):
        keys = taken(indices[:, column], order)
        if not _ascends(keys):
            order = taken(order, order_of(keys))
    return order


def _ascends(keys: Array) -> bool:
    """Return whether no number is smaller than the one before it."""
    return all((keys[part][1:] >= keys[part][:-1]).all() for part in overlapping(keys))


def overlapping(array: Array) -> Iterator[slice]:
    """Yield blocks of rows, each with the row before it."""
    return (slice(max(part.start - 1, 0), part.stop) for part in row_blocks(array))


class Groups(NamedTuple):
    """Entries grouped by equal indices.

    Attributes:
        number: The group number of each entry, in the order given; groups are in row-major order.
        first: One entry of each group.
    """

    number: Array
    first: Array

    @property
    def total(self) -> int:
        """The number of groups."""
        return len(self.first)


def group(indices: Array) -> Groups:
    """Group equal rows."""
    order = row_major(indices)
    number = np.empty(len(order), dtype=np.int64)
    first = [order[:1]]
    total = len(first[0])
    number[first[0]] = 0
    # The blocks overlap by a row, so that each row is compared with the one before it.
    for part in overlapping(indices):
        own = order[part]
        rows = indices.take(own, 0)
        begins = (rows[1:] != rows[:-1]).any(axis=1)
        number[own[1:]] = np.cumsum(begins) + (total - 1)
        first.append(own[1:][begins])
        total += len(first[-1])
    return Groups(number, joined(first))
