"""Scattering of rows against plain loops, for every mode and dtype, with repeated, empty and invalid indices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.array.scatter import checked_rows, flat_rows, scatter_rows

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda a, b: b,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "min": np.minimum,
    "max": np.maximum,
}


def by_loop(mode: str, target: Any, rows: Any, updates: Any) -> Any:
    result = target.copy()
    integer = target.dtype.kind in "iu"
    combine = (
        operator.floordiv if mode == "div" and integer else COMBINE[mode]
    )  # the values are positive, so floor division truncates
    for row, update in zip(rows, updates, strict=True):
        result[row] = combine(result[row], update)
    return result


@pytest.mark.parametrize("mode", COMBINE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("inner", [(), (3,), (2, 10), (0,)])
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_scatter_rows_equals_a_loop(mode: str, dtype: Any, inner: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(count + len(inner))
    integer = np.dtype(dtype).kind in "iu"
    target = rng.integers(1, 5, (7, *inner)).astype(dtype)
    updates = (rng.integers(1, 3, (count, *inner)) if integer else rng.choice([0.5, 1.0, 2.0], (count, *inner))).astype(
        dtype
    )
    rows = rng.integers(0, 7, count)
    with np.errstate(over="ignore"):
        expected = by_loop(mode, target, rows, updates)
    scatter_rows(np, mode, target, rows, updates)
    assert target.dtype == dtype
    loose = 0.1 if np.dtype(dtype).itemsize == 2 else 1e-6
    np.testing.assert_allclose(target.astype(np.float64), expected.astype(np.float64), rtol=0 if integer else loose)


@pytest.mark.parametrize("mode", COMBINE)
@pytest.mark.parametrize("rank", [32, 33, 64])
def test_scatter_rows_supports_ranks_above_32(mode: str, rank: int) -> None:
    """Scatter at a rank of 33, at which NumPy's `ufunc.at` crashes the process."""
    inner = (*(1,) * (rank - 2), 3)
    rows = np.array([1, 0, 1])
    updates = np.arange(1, 10, dtype=np.int32).reshape(3, *inner)
    target = np.full((2, *inner), 100, np.int32)
    expected = by_loop(mode, target, rows, updates)
    scatter_rows(np, mode, target, rows, updates)
    np.testing.assert_array_equal(target, expected)
    reversed_in_memory = np.full((*inner[::-1], 2), 100, np.int32).T
    scatter_rows(np, mode, reversed_in_memory, rows, updates)
    np.testing.assert_array_equal(reversed_in_memory, expected)


def test_integer_division_truncates_and_is_applied_in_order() -> None:
    target = np.array([-7, 7, 100], np.int32)
    scatter_rows(np, "div", target, np.array([0, 1, 2, 2]), np.array([2, -2, 3, 4], np.int32))
    assert target.tolist() == [-3, -3, 8]
    with pytest.raises(InvalidArgumentError):
        scatter_rows(np, "div", target, np.array([0]), np.array([0], np.int32))


def test_last_of_equal_indices_wins() -> None:
    target = np.zeros((3, 2), np.float32)
    scatter_rows(np, "update", target, np.array([1, 1, 1]), np.array([[1, 1], [2, 2], [3, 3]], np.float32))
    assert target.tolist() == [[0, 0], [3, 3], [0, 0]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("indices", "where", "bad"),
    [([0, 3], "1", 3), ([[0, -1], [5, 0]], "0,1", -1), (7, "", 7), ([2**31 - 1], "0", 2**31 - 1)],
)
def test_invalid_row_is_named_in_the_error(dtype: Any, indices: Any, where: str, bad: int) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        checked_rows(np, np.array(indices, dtype), 3)
    assert f"indices[{where}] = {bad} is not in [0, 3)" in str(caught.value)
    assert caught.value.actual == bad


def test_valid_rows_are_returned_flat() -> None:
    assert checked_rows(np, np.array([[0, 2], [1, 1]]), 3).tolist() == [0, 2, 1, 1]
    assert checked_rows(np, np.array([], np.int32), 0).tolist() == []
    assert checked_rows(np, np.array(2), 3).tolist() == [2]


def test_index_vectors_become_row_numbers() -> None:
    rows, good = flat_rows(np, np.array([[1, 2], [0, 1]]), (2, 3))
    assert rows.tolist() == [5, 1]
    assert good is None
    rows, _ = flat_rows(np, np.zeros((4, 0), np.int32), ())
    assert rows.tolist() == [0, 0, 0, 0]
    with pytest.raises(InvalidArgumentError) as caught:
        flat_rows(np, np.array([[1, 2], [0, 3]]), (2, 3))
    assert "indices[1] = [0, 3] does not index into shape [2, 3]" in str(caught.value)
    rows, good = flat_rows(np, np.array([[1, 2], [0, 3]]), (2, 3), skip_bad=True)
    assert rows.tolist() == [5]
    assert good is not None
    assert good.tolist() == [True, False]
