"""Scattering of rows into an array, for sparse updates of variables among others.

The work is proportional to the rows touched. `ufunc.at` is fastest for single elements and for few of them. For many
wide rows it is up to tens of times slower than a sort, a `reduceat` that folds repeated indices, and one update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, folded_rows, is_large
from aioflow.kernels.math.large_sorts import is_long, order_of
from aioflow.memory.copying import row_blocks
from aioflow.memory.values import Array, Namespace

_FEW: Final = 512  # elements up to which `ufunc.at` is faster, measured with NumPy 2.4


def in_bounds(indices: Array, limit: int) -> bool:
    """Return True if every index is in [0, limit)."""
    if indices.size == 0:
        return True
    # Viewed as unsigned, a negative index is huge, so a single comparison checks both bounds.
    unsigned = indices.astype(np.uint64)
    return bool(unsigned.max() < limit)


def checked_rows(xp: Namespace, indices: Array, limit: int) -> Array:
    """Return the indices as a flat vector, each in [0, limit).

    Raises:
        InvalidArgumentError: an index is out of bounds; the error names it and its position.
    """
    given = xp.asarray(indices)
    flat: Array = given.reshape(-1)
    if not in_bounds(flat, limit):
        bad = int(xp.flatnonzero((flat < 0) | (flat >= limit))[0])
        where = ",".join(str(int(i)) for i in np.unravel_index(bad, given.shape)) if given.ndim else ""
        raise InvalidArgumentError(
            f"indices[{where}] = {int(flat[bad])} is not in [0, {limit})",
            expected=f"0 <= index < {limit}",
            actual=int(flat[bad]),
        )
    return flat


def flat_rows(
    xp: Namespace, indices: Array, sizes: tuple[int, ...], skip_bad: bool = False
) -> tuple[Array, Array | None]:
    """Return index vectors (the last axis of `indices`) into the leading `sizes` as flat row numbers.

    With `skip_bad`, only vectors in bounds get a row number; if some are not, the result has a mask of those that are.

    Raises:
        InvalidArgumentError: an index vector is out of bounds.
    """
    given = xp.asarray(indices)
    count = math.prod(given.shape[:-1])
    vectors = given.reshape(count, len(sizes))
    rows, good = _numbered(xp, vectors, sizes)
    if bool(good.all()):
        return rows, None
    if skip_bad:
        return rows[good], good
    bad = int(xp.flatnonzero(~good)[0])
    where = ",".join(str(int(i)) for i in np.unravel_index(bad, given.shape[:-1])) if given.ndim > 1 else ""
    raise InvalidArgumentError(
        f"indices[{where}] = {vectors[bad].tolist()} does not index into shape {list(sizes)}",
        expected=f"index vectors in [0, {list(sizes)})",
        actual=vectors[bad].tolist(),
    )


def _numbered(xp: Namespace, vectors: Array, sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return for each index vector the row, and whether it is in bounds."""
    rows = xp.zeros(len(vectors), dtype=xp.int64)
    good = xp.ones(len(vectors), dtype=bool)
    if is_large(vectors):
        for part in blocks(len(vectors), max(1, BLOCK // len(sizes))):
            rows[part], good[part] = _numbered(xp, vectors[part], sizes)
        return rows, good
    for axis, size in enumerate(sizes):
        column = vectors[:, axis]
        good &= (column >= 0) & (column < size)
        # Row-major numbers. That of a vector out of bounds has no meaning, and the caller drops it.
        rows = rows * size + column
    return rows, good


def scatter_rows(xp: Namespace, mode: str, target: Array, rows: Array, updates: Array) -> None:
    """Apply `updates[i]` to `target[rows[i]]` in place, for every i; rows may repeat.

    Args:
        xp: The array namespace.
        mode: "update" (the last one wins), "add", "sub", "mul", "div", "min" or "max".
        target: The array to change.
        rows: [n] indices in bounds.
        updates: [n, ...] with the inner shape of `target`.

    Raises:
        InvalidArgumentError: an integer is divided by zero.
    """
    if rows.size:
        _MODES[mode](xp, target, rows, updates)


def _update(xp: Namespace, target: Any, rows: Array, updates: Array) -> None:
    if not isinstance(target, np.ndarray):
        # A GPU writes repeated rows in no defined order, so every update of a row writes the last one's values.
        updates = xp.broadcast_to(updates, rows.shape + target.shape[1:])[_last(xp, rows, target)]
    if is_large(updates):
        for part in blocks(len(updates), max(1, BLOCK * len(updates) // updates.size)):
            target[rows[part]] = updates[part]
    else:
        target[rows] = updates


def _last(xp: Namespace, rows: Array, target: Array) -> Array:
    """Return for each update the number of the last update of its row."""
    numbers = xp.arange(len(rows), dtype=xp.int32)
    winners = xp.zeros(len(target), dtype=xp.int32)
    xp.maximum.at(winners, rows, numbers)
    last: Array = winners[rows]
    return last


def _folded(apply: str, fold: str) -> Callable[[Namespace, Array, Array, Array], None]:
    """Return a function that combines the updates of a row by `fold`, and the result with the row by `apply`."""

    def scatter(xp: Namespace, target: Array, rows: Array, updates: Array) -> None:
        function = getattr(xp, apply)
        if target.ndim == 1 and is_large(updates):
            for part in row_blocks(updates):
                folded_rows(function, target, rows[part], updates[part])
            return
        if target.ndim == 1 or updates.size <= _FEW:
            folded_rows(function, target, rows, updates)
            return
        # An assignment by index keeps one of several updates of a row, so they are folded to one first.
        if repeats(xp, rows):
            order = order_of(rows) if is_long(rows) else xp.argsort(rows, kind="stable")
            ordered = rows[order]
            starts = xp.flatnonzero(xp.concatenate([xp.ones(1, dtype=bool), ordered[1:] != ordered[:-1]]))
            rows = ordered[starts]
            updates = getattr(xp, fold).reduceat(updates[order], starts, axis=0, dtype=updates.dtype)
        present = xp.take(target, rows, axis=0)  # 3 times as fast as target[rows]
        target[rows] = function(present, updates, out=present)

    return scatter


def repeats(xp: Namespace, rows: Array) -> bool:
    """Return True if a row number occurs twice."""
    if is_long(rows):
        ordered = rows[order_of(rows)]
    else:
        ordered = xp.sort(rows)  # much faster than a stable argsort
    return bool((ordered[1:] == ordered[:-1]).any())


def _divide(xp: Namespace, target: Array, rows: Array, updates: Array) -> None:
    if target.dtype.kind in "iu" and not bool(xp.all(updates)):
        raise InvalidArgumentError("integer division by zero", expected="divisors other than 0", actual=0)
    # Not by the product of a row's divisors, which may overflow, and which rounds floats differently.
    order = xp.argsort(rows, kind="stable")
    ordered = rows[order]
    while len(order):  # one round for each repetition of the most repeated row
        first = xp.concatenate([xp.ones(1, dtype=bool), ordered[1:] != ordered[:-1]])
        chosen = ordered[first]
        target[chosen] = _quotient(xp, target[chosen], updates[order[first]])
        order, ordered = order[~first], ordered[~first]


def _quotient(xp: Namespace, a: Array, b: Array) -> Array:
    """Return a / b, rounded towards zero for integers."""
    if a.dtype.kind not in "iu":
        quotient: Array = xp.divide(a, b)
        return quotient
    # Floor division rounds down. Where the signs differ and a remainder is left, the quotient is one too small.
    floor: Array = a // b
    result: Array = floor + ((a % b != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return result


_MODES: Final[Mapping[str, Callable[[Namespace, Array, Array, Array], None]]] = {
    "update": _update,
    "add": _folded("add", "add"),
    # x - a - b is x - (a + b).
    "sub": _folded("subtract", "add"),
    "mul": _folded("multiply", "multiply"),
    "div": _divide,
    "min": _folded("minimum", "minimum"),
    "max": _folded("maximum", "maximum"),
}
