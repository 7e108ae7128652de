"""Segment reductions: values, errors, and gradients by finite differences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients

SORTED = ["segment_sum", "segment_mean", "segment_max", "segment_min", "segment_prod"]
UNSORTED = [
    "unsorted_segment_sum",
    "unsorted_segment_max",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_mean",
    "unsorted_segment_sqrt_n",
]
X = np.random.default_rng(0).standard_normal((4, 3))


def value(build: Any, *arrays: Any) -> Any:
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype, np.shape(a)) for a in arrays]
        return evaluate([build(*xs)], dict(zip(xs, arrays, strict=True)))[0]


def test_many_rows_against_a_loop() -> None:
    rng = np.random.default_rng(1)
    x, ids = rng.standard_normal((1000, 3)), rng.integers(-1, 50, 1000)
    expected = np.zeros((50, 3))
    np.add.at(expected, ids[ids >= 0], x[ids >= 0])
    np.testing.assert_allclose(value(lambda t, i: aioflow.unsorted_segment_sum(t, i, 50), x, ids), expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_small_floats_are_summed_in_float32(dtype: Any) -> None:
    x, ids = np.ones(4096, dtype), np.zeros(4096, np.int32)
    for build in (aioflow.segment_sum, lambda t, i: aioflow.unsorted_segment_sum(t, i, 1)):
        found = value(build, x, ids)
        assert found.dtype == dtype
        assert float(found[0]) == 4096


@pytest.mark.parametrize(
    ("ids", "message"),
    [([0, 2, 1, 2], "not increasing"), ([-1, 0, 1, 2], ">= 0"), ([0, 1], "same size"), ([[0, 0], [1, 1]], None)],
)
@pytest.mark.parametrize("name", SORTED)
def test_bad_sorted_ids_are_refused(name: str, ids: Any, message: str | None) -> None:
    with aioflow.Graph().as_default():
        x, i = aioflow.placeholder("float32"), aioflow.placeholder("int32")
        y = getattr(aioflow, name)(x, i, name="segments")
        with pytest.raises(InvalidArgumentError, match=message) as caught:
            evaluate([y], {x: X, i: ids})
    assert caught.value.node == "segments"
    assert caught.value.expected
    assert caught.value.actual is not None


@pytest.mark.parametrize(("ids", "count"), [([0, 1, 2, 3], 3), ([0, 1], 3), ([0, 0, 0, 0], -1)])
@pytest.mark.parametrize("name", UNSORTED[:4])
def test_bad_unsorted_ids_are_refused(name: str, ids: Any, count: int) -> None:
    with aioflow.Graph().as_default():
        x, i, n = (aioflow.placeholder(t) for t in ("float32", "int32", "int32"))
        y = getattr(aioflow, name)(x, i, n, name="segments")
        with pytest.raises(InvalidArgumentError) as caught:
            evaluate([y], {x: X, i: ids, n: count})
    assert caught.value.node == "segments"


def test_shapes_that_do_not_fit_are_refused_when_built() -> None:
    with pytest.raises(InvalidArgumentError):
        aioflow.segment_sum(X, [[0, 0, 1, 1]])
    with pytest.raises(InvalidArgumentError):
        aioflow.unsorted_segment_sum(X, [0, 1], 2)


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", UNSORTED[4:])
def test_gradients_of_averages_of_rank_three(name: str) -> None:
    check_gradients(lambda t, i: getattr(aioflow, name)(t, i, 2), X[:, :, None], np.array([1, 0, 1, 0]), wrt=[0])


@pytest.mark.parametrize("name", [*SORTED, *UNSORTED])
def test_gradients_of_unknown_shapes(name: str) -> None:
    def build(t: Any, i: Any) -> Any:
        unknown = [aioflow.placeholder_with_default(v, None) for v in (t, i)]
        return getattr(aioflow, name)(*unknown, *([] if name in SORTED else [3]))

    check_gradients(build, X, np.array([0, 1, 1, 2]))
