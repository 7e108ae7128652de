"""What kernels of sparse tensors share: checks of the three parts, row-major order, entries that meet at one index."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aioflow.errors import InvalidArgumentError

__all__ = ["Groups", "as_vector", "check_bounds", "check_columns", "check_entries", "group", "int64_array", "row_major"]


def as_vector(value: Any) -> Any:
    """The value as a NumPy array, also where it is a bare scalar or string."""
    return (
        value
        if isinstance(value, np.ndarray)
        else np.asarray(value, dtype=object if isinstance(value, bytes) else None)
    )


def int64_array(value: Any) -> Any:
    """The value as an int64 array on the host."""
    return np.asarray(value, dtype=np.int64)


def check_entries(indices: Any, values: Any, shape: Any) -> None:
    """The three parts must fit one another.

    Raises:
        InvalidArgumentError: a part has a wrong rank, or their numbers of entries or dimensions differ.
    """
    if np.ndim(indices) != 2 or np.ndim(values) != 1 or np.ndim(shape) != 1:
        raise InvalidArgumentError(
            "the parts of a sparse tensor have wrong ranks",
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


def check_bounds(indices: Any, shape: Any) -> None:
    """Every index must be inside of the shape.

    Raises:
        InvalidArgumentError: one is not.
    """
    if not indices.size:
        return
    wrong = ((indices < 0) | (indices >= shape)).any(axis=1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidArgumentError(
            f"index {row} of a sparse tensor is out of bounds",
            expected=f"inside of {shape.tolist()}",
            actual=indices[row].tolist(),
        )


def check_columns(*parts: Any) -> None:
    """Indices, as matrices or as single rows, must be of tensors of one rank.

    Raises:
        InvalidArgumentError: they are not.
    """
    shapes = [np.shape(part) for part in parts]
    if not all(shape and len(shape) <= 2 for shape in shapes) or len({shape[-1] for shape in shapes if shape}) > 1:
        raise InvalidArgumentError(
            "the indices are not of tensors of one rank",
            expected="[n, rank] each",
            actual=shapes,
        )


def row_major(indices: Any) -> Any:
    """The stable order of the rows that sorts them; without the product of sizes, which may exceed 64 bits."""
    if indices.shape[1] == 0:
        return np.arange(indices.shape[0])
    return np.lexsort(indices.T[::-1])


class Groups(NamedTuple):
    """Entries by equal indices.

    Attributes:
        number: For each entry, in the order given, the number of its group; groups are in row-major order.
        first: For each group one of its entries.
    """

    number: Any
    first: Any

    @property
    def total(self) -> int:
        """How many groups there are."""
        return len(self.first)


def group(indices: Any) -> Groups:
    """Put the rows into groups of equal ones."""
    order = row_major(indices)
    ordered = indices[order]
    begins = np.ones(len(ordered), dtype=bool)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    number = np.empty(len(ordered), dtype=np.int64)
    number[order] = np.cumsum(begins) - 1
    return Groups(number, order[begins])
