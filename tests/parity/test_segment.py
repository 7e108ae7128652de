"""Segment reductions against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.samples import sample, tolerance

SORTED = ["segment_sum", "segment_mean", "segment_max", "segment_min", "segment_prod"]
UNSORTED = ["unsorted_segment_sum", "unsorted_segment_max", "unsorted_segment_min", "unsorted_segment_prod"]
DTYPES = ["float16", "bfloat16", "float64", "int32", "int64", "uint8", "complex64"]
IDS = [[0, 0, 1, 1], [0, 1, 2, 3], [1, 1, 3, 3], [0, 0, 0, 0], [2, 2, 2, 5]]


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("rest", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("name", SORTED)
def test_sorted(parity: Any, name: str, rest: tuple[int, ...], ids: list[int]) -> None:
    x = sample("float32", (4, *rest))
    for kind in (np.int32, np.int64):
        parity(lambda m, t, i: getattr(m, name)(t, i), x, np.array(ids, kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SORTED)
def test_sorted_dtypes(parity: Any, name: str, dtype: str) -> None:
    if dtype == "complex64" and name in ("segment_max", "segment_min"):
        pytest.skip("complex numbers have no order")
    x = sample(dtype, (4, 3))
    ids = np.array([0, 0, 2, 2], np.int32)
    parity(lambda m, t, i: getattr(m, name)(t, i), x, ids, grad=dtype == "float64", **tolerance(dtype))


@pytest.mark.parametrize("name", SORTED)
def test_no_rows(parity: Any, name: str) -> None:
    parity(lambda m, t, i: getattr(m, name)(t, i), np.zeros((0, 2), np.float32), np.zeros(0, np.int32), grad=False)


@pytest.mark.parametrize("name", SORTED)
def test_sorted_unknown_shapes(parity: Any, name: str) -> None:
    x = sample("float32", (4, 3))
    ids = np.array([0, 0, 2, 2], np.int32)
    parity(lambda m, t, i: getattr(m, name)(t, i), x, ids, shapes=[None, (None,)])
    parity(lambda m, t, i: getattr(m, name)(t, i), x, ids, shapes=[(None, 3), None])


@pytest.mark.parametrize("name", ["segment_max", "segment_min", "segment_prod"])
def test_sorted_ties_and_zeros(parity: Any, name: str) -> None:
    x = np.array([[1, 0], [1, 0], [0, 2], [3, 2]], np.float32)
    parity(lambda m, t, i: getattr(m, name)(t, i), x, np.array([0, 0, 1, 1], np.int32))


UNSORTED_IDS = [[0, 0, 1, 1], [3, 1, 0, 1], [-1, 2, -1, 0], [4, 4, 4, 4], [-1, -1, -1, -1]]


@pytest.mark.parametrize("ids", UNSORTED_IDS)
@pytest.mark.parametrize("rest", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("name", UNSORTED)
def test_unsorted(parity: Any, name: str, rest: tuple[int, ...], ids: list[int]) -> None:
    x = sample("float32", (4, *rest))
    for kind in (np.int32, np.int64):
        parity(lambda m, t, i: getattr(m, name)(t, i, 5), x, np.array(ids, kind))


@pytest.mark.parametrize("name", ["unsorted_segment_mean", "unsorted_segment_sqrt_n"])
@pytest.mark.parametrize("ids", [i for i in UNSORTED_IDS if min(i) >= 0])
@pytest.mark.parametrize("rest", [(), (3,)])
def test_unsorted_averages(parity: Any, name: str, rest: tuple[int, ...], ids: list[int]) -> None:
    parity(lambda m, t, i: getattr(m, name)(t, i, 5), sample("float32", (4, *rest)), np.array(ids, np.int32))


@pytest.mark.parametrize("name", UNSORTED)
def test_ids_of_two_dimensions(parity: Any, name: str) -> None:
    x = sample("float32", (2, 3, 4))
    parity(lambda m, t, i: getattr(m, name)(t, i, 4), x, np.array([[0, 2, 1], [2, -1, 0]], np.int32))
    parity(
        lambda m, t, i, n: getattr(m, name)(t, i, n),
        x,
        np.array([[0, 2, 1], [2, 1, 0]], np.int32),
        np.array(4, np.int32),
    )


@pytest.mark.parametrize("name", UNSORTED)
def test_scalar_id(parity: Any, name: str) -> None:
    parity(lambda m, t, i: getattr(m, name)(t, i, 2), sample("float32", (3,)), np.array(1, np.int32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNSORTED)
def test_unsorted_dtypes(parity: Any, name: str, dtype: str) -> None:
    if dtype == "complex64" and name[-3:] in ("max", "min"):
        pytest.skip("complex numbers have no order")
    x = sample(dtype, (4, 3))
    ids = np.array([2, 0, 2, 0], np.int32)
    parity(lambda m, t, i: getattr(m, name)(t, i, 4), x, ids, grad=dtype == "float64", **tolerance(dtype))


@pytest.mark.parametrize("name", ["unsorted_segment_max", "unsorted_segment_min", "unsorted_segment_prod"])
def test_unsorted_ties_and_zeros(parity: Any, name: str) -> None:
    x = np.array([[1, 0], [1, 0], [0, 2], [3, 2]], np.float32)
    parity(lambda m, t, i: getattr(m, name)(t, i, 3), x, np.array([1, 1, 0, 0], np.int32))


@pytest.mark.parametrize("name", UNSORTED)
@pytest.mark.parametrize("shapes", [[None, None], [None, (None,)], [(None, None), None]])
def test_unsorted_unknown_shapes(parity: Any, name: str, shapes: Any) -> None:
    x = sample("float32", (4, 3))
    parity(lambda m, t, i: getattr(m, name)(t, i, 3), x, np.array([2, 0, 2, 0], np.int32), shapes=shapes)
