"""Reductions of chosen rows by segments: errors, and second derivatives, which TensorFlow does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients

NAMES = ["sparse_segment_sum", "sparse_segment_mean", "sparse_segment_sqrt_n"]
X = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("indices", "ids", "count", "message"),
    [
        ([0, 4, 1], [0, 0, 1], None, "index is out of range"),
        ([0, -1, 1], [0, 0, 1], 5, "index is out of range"),
        ([0, 2, 1], [1, 0, 1], None, "not increasing"),
        ([0, 2, 1], [-1, 0, 1], None, ">= 0"),
        ([0, 2, 1], [0, 0, 3], 3, "segment id is out of range"),
        ([0, 2, 1], [0, 0, 3], -1, "segment id is out of range"),
        ([0, 2], [0, 0, 1], None, "same size"),
        ([[0, 1]], [[0, 1]], None, "rank"),
    ],
)
def test_bad_indices_and_ids_are_refused(indices: Any, ids: Any, count: int | None, message: str) -> None:
    for name in NAMES:
        with af.Graph().as_default():
            x, i, s, n = (af.placeholder(kind) for kind in ("float32", "int32", "int64", "int32"))
            y = getattr(af, name)(x, i, s, "segments", None if count is None else n)
            with pytest.raises(InvalidArgumentError, match=message) as caught:
                evaluate([y], {x: X, i: indices, s: ids, n: 0 if count is None else count})
        assert caught.value.node == "segments"


def test_bad_rows_of_gradients_are_refused() -> None:
    with af.Graph().as_default():
        i, s, n = (af.placeholder("int32") for _ in range(3))
        y = af.raw_ops.SparseSegmentMeanGrad(grad=X[:2], indices=i, segment_ids=s, output_dim0=n)
        assert evaluate([y], {i: [3, 0], s: [1, 1], n: 4})[0].tolist() == [
            [1.5, 2, 2.5],
            [0] * 3,
            [0] * 3,
            [1.5, 2, 2.5],
        ]
        for indices, ids, count in (([4], [0], 4), ([-1], [0], 4), ([0], [2], 4), ([0], [-1], 4), ([0], [0, 1], 4)):
            with pytest.raises(InvalidArgumentError):
                evaluate([y], {i: indices, s: ids, n: count})


def test_wrong_shapes_and_dtypes_are_refused_when_built() -> None:
    for name in NAMES:
        function = getattr(af, name)
        wrong: list[tuple[Any, ...]] = [(X, [0, 1], [0]), (1.0, [0], [0]), (X, [[0]], [[0]]), (X, [0], [0], None, -1)]
        for arguments in wrong:
            with pytest.raises(InvalidArgumentError):
                function(*arguments)
        assert function(X, [0], [0]).shape.as_list() == [None, 3]
        assert function(X, [0], [0], num_segments=2).shape.as_list() == [2, 3]
    with pytest.raises(DTypeError):
        af.sparse_segment_mean([1, 2], [0], [0])


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name: str) -> None:
    def slope(x: Any) -> Any:
        return af.gradients(getattr(af, name)(x, [3, 1, 3], [0, 0, 2]) ** 3, x)[0]

    check_gradients(slope, X / 10)


def test_small_floats_are_summed_in_float32() -> None:
    ones = af.constant(np.ones((1, 1), np.float16))
    many = np.zeros(4096, np.int32)
    total = af.sparse_segment_sum(ones, many, many)
    spread: list[Any] = af.gradients(total, ones)
    assert [float(found[0, 0]) for found in evaluate([total, *spread])] == [4096, 4096]
