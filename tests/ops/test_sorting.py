"""Arg max, top k, sorting and counting: values, errors, and gradients by finite differences."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.ops.apply import make
from aioflow.ops.math.sorting import in_top_k, nth_element, top_k
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients

X = np.random.default_rng(0).permutation(24).reshape(2, 3, 4).astype(np.float64)


def values(build: Any, *arrays: Any) -> list[Any]:
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype, np.shape(a)) for a in arrays]
        made = build(*xs)
        return evaluate(list(made) if isinstance(made, tuple) else [made], dict(zip(xs, arrays, strict=True)))


@pytest.mark.parametrize("kind", ["int16", "uint16", "int32", "int64"])
def test_arg_output_types(kind: str) -> None:
    assert values(lambda t: aioflow.argmax(t, 1, output_type=kind), X)[0].dtype == np.dtype(kind)
    assert values(lambda t: aioflow.argmax(t, output_type=kind), X[0, 0])[0].dtype == np.dtype(kind)


def test_argmax_rejects_empty_and_missing_axes() -> None:
    x, axis = aioflow.placeholder("float32"), aioflow.placeholder("int32")
    y = aioflow.argmax(x, axis, name="best")
    for array, at in ((np.zeros((2, 0)), 1), (np.zeros((2, 3)), 2), (np.zeros((2, 3)), -3)):
        with pytest.raises(InvalidArgumentError) as caught:
            evaluate([y], {x: array, axis: at})
        assert caught.value.node == "best"
        assert caught.value.expected
    with pytest.raises(InvalidArgumentError):
        aioflow.argmax(np.zeros((2, 3)), 2)
    with pytest.raises(InvalidArgumentError, match="dimension"):
        aioflow.argmax(np.zeros((2, 3)), 0, dimension=0)


@pytest.mark.parametrize("k", [0, 1, 3, 50, 700, 1000])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_top_k_against_a_stable_sort(k: int, dtype: str) -> None:
    x = (np.random.default_rng(1).random((3, 1000)) * 200).astype(dtype)
    wide = x.astype(np.float64)
    order = np.argsort(-wide, axis=-1, kind="stable")[:, :k]
    top, places = values(lambda t: tuple(top_k(t, k)), x)
    assert places.dtype == np.int32
    assert np.array_equal(places, order)
    assert np.array_equal(top, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("rank", [3, 33, 64])
@pytest.mark.parametrize("width", [3, 600])
def test_top_k_and_nth_element_of_many_dimensions(rank: int, width: int) -> None:
    # NumPy sorts arrays of at most 32 dimensions.
    rows = np.random.default_rng(1).permutation(2 * width).reshape(2, width).astype(np.float32)
    x = rows.reshape(2, *(1,) * (rank - 2), width)
    for k in (1, 2):
        for found, expected in zip(*(values(lambda t: tuple(top_k(t, k)), a) for a in (x, rows)), strict=True):  # noqa: B023
            np.testing.assert_array_equal(found, expected.reshape(*x.shape[:-1], k))
    (found,) = values(lambda t: nth_element(t, 1), x)
    np.testing.assert_array_equal(found, np.sort(rows)[:, 1].reshape(x.shape[:-1]))


def test_top_k_errors() -> None:
    with pytest.raises(InvalidArgumentError) as built:
        top_k([1.0, 2.0], 3)
    assert (built.value.expected, built.value.actual) == (">= 3", 2)
    with pytest.raises(InvalidArgumentError):
        top_k([1.0, 2.0], -1)
    k = aioflow.placeholder("int32", [])
    y = top_k([1.0, 2.0], k, name="top").values
    for wrong in (3, -1):
        with pytest.raises(InvalidArgumentError) as caught:
            evaluate([y], {k: wrong})
        assert (caught.value.node, caught.value.actual) == ("top", wrong)


def test_nth_element() -> None:
    x = np.array([[5, 1, 3], [2, 2, 9]], np.int32)
    assert values(lambda t: nth_element(t, 1), x)[0].tolist() == [3, 2]
    assert values(lambda t: nth_element(t, 0, reverse=True), x)[0].tolist() == [5, 9]
    with aioflow.Graph().as_default():
        n = aioflow.placeholder("int32", [])
        for wrong in (3, -1):
            with pytest.raises(InvalidArgumentError):
                evaluate([nth_element(x, n)], {n: wrong})
            with pytest.raises(InvalidArgumentError):
                nth_element(x, wrong)


def test_in_top_k() -> None:
    predictions = np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [np.nan, 1, 0], [0.1, 0.2, 0.7]], np.float32)
    targets = np.array([2, 0, 1, 3], np.int32)
    assert values(lambda p, t: in_top_k(p, t, 2), predictions, targets)[0].tolist() == [True, True, False, False]
    assert values(lambda p, t: in_top_k(p, t, 1), predictions, targets)[0].tolist() == [False] * 4
    with aioflow.Graph().as_default():
        p, t = aioflow.placeholder("float32"), aioflow.placeholder("int32")
        with pytest.raises(InvalidArgumentError):
            evaluate([in_top_k(p, t, 1)], {p: predictions, t: [0, 1]})


@pytest.mark.parametrize("direction", ["ASCENDING", "DESCENDING"])
def test_sorts_of_small_integers(direction: Literal["ASCENDING", "DESCENDING"]) -> None:
    x = np.random.default_rng(2).integers(0, 5, (4, 6)).astype(np.int8)
    for axis in (0, 1, -1):
        expected = np.sort(x, axis)
        if direction == "DESCENDING":
            expected = np.flip(expected, axis)
        found, places = values(
            lambda t, axis=axis: (aioflow.sort(t, axis, direction), aioflow.argsort(t, axis, direction)), x
        )
        assert np.array_equal(found, expected)
        assert np.array_equal(np.take_along_axis(x, places, axis), expected)


def test_an_ascending_argsort_is_stable() -> None:
    x = np.array([1, 0, 1, 0, 1], np.int32)
    assert values(lambda t: aioflow.argsort(t, stable=True), x)[0].tolist() == [1, 3, 0, 2, 4]


def test_sort_rejects_wrong_arguments() -> None:
    for arguments in ({"direction": "UP"}, {"axis": 1}, {"axis": aioflow.placeholder("int32", [])}):
        with pytest.raises(InvalidArgumentError):
            aioflow.sort([1.0], **arguments)


def test_bincount() -> None:
    x = np.array([[1, 1], [3, 0]], np.int32)
    assert values(aioflow.bincount, x)[0].tolist() == [1, 2, 0, 1]
    assert values(lambda t: aioflow.bincount(t, minlength=6), x)[0].tolist() == [1, 2, 0, 1, 0, 0]
    assert values(lambda t: aioflow.bincount(t, maxlength=2), x)[0].tolist() == [1, 2]
    assert values(aioflow.bincount, x[:0])[0].tolist() == []
    weights = np.array([[2**53, 1], [1, 1]], np.int64)
    assert values(lambda t, w: aioflow.bincount(t, w), x, weights)[0].tolist() == [1, 2**53 + 1, 0, 1]
    assert values(lambda t, w: aioflow.bincount(t, w, maxlength=2), x, weights)[0].tolist() == [1, 2**53 + 1]


def test_bincount_rejects_values_that_do_not_fit() -> None:
    for arr, size, weights in (([-1], 2, [1.0]), ([1, 1], 2, [1.0]), ([1], -1, [1.0])):
        with aioflow.Graph().as_default():
            n = aioflow.placeholder("int32", [])
            y = make("Bincount", aioflow.constant(arr), n, aioflow.constant(weights), name="counts")
            with pytest.raises(InvalidArgumentError) as caught:
                evaluate([y], {n: size})
        assert caught.value.node == "counts"


def test_histogram() -> None:
    x = np.array([-1, 0, 1.5, 2, 5, 15], np.float32)
    assert values(lambda t: aioflow.histogram_fixed_width(t, [0.0, 5.0], 5), x)[0].tolist() == [2, 1, 1, 0, 2]
    assert values(lambda t: aioflow.histogram_fixed_width_bins(t, [0.0, 5.0], 5), x)[0].tolist() == [0, 0, 1, 2, 4, 4]
    x[0] = np.inf
    assert values(lambda t: aioflow.histogram_fixed_width(t, [0.0, 5.0], 5), x)[0].tolist() == [1, 1, 1, 0, 3]
    with aioflow.Graph().as_default():
        span, bins = aioflow.placeholder("float32", [2]), aioflow.placeholder("int32", [])
        y = aioflow.histogram_fixed_width([1.0], span, bins)
        for wrong in ({span: [1, 1], bins: 3}, {span: [0, 1], bins: 0}):
            with pytest.raises(InvalidArgumentError):
                evaluate([y], wrong)


@pytest.mark.parametrize(("labels", "predictions"), [([0, 2], [0, 0]), ([0, 0], [0, 2]), ([-1, 0], [0, 0])])
def test_confusion_matrix_rejects_classes_out_of_range(labels: Any, predictions: Any) -> None:
    with pytest.raises(OpError):
        values(lambda a, b: aioflow.confusion_matrix(a, b, 2), np.array(labels), np.array(predictions))


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gradients_of_bincount() -> None:
    check_gradients(lambda w: aioflow.bincount([0, 2, 2], w), np.array([1.0, 2.0, 3.0]))
    check_gradients(lambda w: aioflow.bincount([0, 2, 2], w, maxlength=2), np.array([1.0, 2.0, 3.0]))


def test_index_results_have_no_gradient() -> None:
    x = aioflow.placeholder("float32", [2, 3])
    for y in (aioflow.argmax(x), in_top_k(x, [0, 1], 1), aioflow.histogram_fixed_width(x, [0.0, 1.0])):
        number = make("Cast", y, DstT=aioflow.as_dtype("float32"))
        assert aioflow.gradients(number, x) == [None]
