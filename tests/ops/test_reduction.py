"""Reductions and scans: values, shapes, errors, and gradients by finite differences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.ops.apply import make
from aioflow.ops.math.reduction import reduce_variance
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients

REDUCTIONS: dict[str, Any] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
}


def value(build: Any, *arrays: Any) -> Any:
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype, np.shape(a)) for a in arrays]
        return evaluate([build(*xs)], dict(zip(xs, arrays, strict=True)))[0]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), (1, 2), (0, 2), (2, 0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_values_of_arrays_in_fortran_order(name: str, axis: Any, keepdims: bool) -> None:
    x = np.asarray(np.random.default_rng(0).standard_normal((3, 4, 5)), np.float32, order="F")
    actual = value(lambda t: getattr(aioflow, name)(t, axis=axis, keepdims=keepdims), x)
    expected = REDUCTIONS[name](x.astype(np.float64), axis=axis, keepdims=keepdims)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_sums_by_blas_keep_their_accuracy() -> None:
    x = np.random.default_rng(0).random((20_000, 7)).astype(np.float32)
    np.testing.assert_allclose(value(lambda t: aioflow.reduce_sum(t, 0), x), x.astype(np.float64).sum(0), rtol=1e-5)
    np.testing.assert_allclose(value(lambda t: aioflow.reduce_mean(t, 0), x), x.astype(np.float64).mean(0), rtol=1e-5)


def test_non_finite_elements_affect_only_their_own_sum() -> None:
    x = np.array([[1, np.inf, 2], [3, 4, np.nan]], np.float32)
    assert np.array_equal(value(lambda t: aioflow.reduce_sum(t, 0), x), [4, np.inf, np.nan], equal_nan=True)
    assert np.array_equal(value(lambda t: aioflow.reduce_sum(t, 1), x), [np.inf, np.nan], equal_nan=True)


def test_sum_size_may_change_between_runs() -> None:
    x = aioflow.placeholder("float32", [None, 3])
    y = aioflow.reduce_sum(x, 0)
    for rows in (4, 0, 7):
        assert evaluate([y], {x: np.ones((rows, 3), np.float32)})[0].tolist() == [rows] * 3


def test_integer_sums_wrap() -> None:
    assert value(aioflow.reduce_sum, np.array([100, 100], np.int8)) == np.int8(-56)


def test_integer_means_truncate_towards_zero() -> None:
    assert value(aioflow.reduce_mean, np.array([-3, 0], np.int32)) == -1
    assert value(aioflow.reduce_mean, np.array([2**31 - 1, 2**31 - 1], np.int32)) == 2**31 - 1  # TensorFlow overflows


def test_small_floats_are_summed_in_float32() -> None:
    x = np.ones(5000, np.float16)
    assert value(aioflow.reduce_sum, x) == 5000
    assert value(aioflow.reduce_mean, np.ones(5000, ml_dtypes.bfloat16)) == 1


def test_minimum_of_no_small_integers_is_their_largest() -> None:
    assert value(lambda t: aioflow.reduce_min(t, 0), np.zeros((0, 2), np.int8)).tolist() == [127, 127]


def test_boolean_reductions_accept_an_empty_list() -> None:
    assert evaluate([aioflow.reduce_all([]), aioflow.reduce_any([]), aioflow.reduce_all([], 0)]) == [True, False, True]


@pytest.mark.parametrize(("axis", "actual"), [(2, 2), (-3, -3)])
def test_an_axis_out_of_range_is_refused_when_built(axis: int, actual: int) -> None:
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError) as caught:
        aioflow.reduce_sum(aioflow.constant([[1.0]]), axis)
    assert caught.value.expected == "axis in [-2, 2)"
    assert caught.value.actual == actual
    assert caught.value.op_type == "Sum"


@pytest.mark.parametrize("axis", [[0, 0], [0, -2]])
def test_an_axis_named_twice_is_refused(axis: list[int]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        value(lambda t: aioflow.reduce_max(t, axis, name="top"), np.ones((2, 2), np.float32))
    assert caught.value.node == "top"
    assert caught.value.expected == "distinct axes"
    assert caught.value.actual == axis


def test_fed_axes_are_checked() -> None:
    with aioflow.Graph().as_default():
        x, axis = aioflow.placeholder("float32"), aioflow.placeholder("int32")
        y = aioflow.reduce_sum(x, axis, name="total")
        assert evaluate([y], {x: np.ones((2, 3)), axis: [1]})[0].tolist() == [3, 3]
        with pytest.raises(InvalidArgumentError) as caught:
            evaluate([y], {x: np.ones((2, 3)), axis: 5})
    assert (caught.value.node, caught.value.actual) == ("total", 5)


def test_old_and_new_argument_names_cannot_be_combined() -> None:
    with pytest.raises(InvalidArgumentError, match="reduction_indices"):
        aioflow.reduce_sum([1.0], 0, reduction_indices=0)
    with pytest.raises(InvalidArgumentError, match="keep_dims"):
        aioflow.reduce_sum([1.0], keepdims=True, keep_dims=True)
    with pytest.raises(DTypeError):
        reduce_variance([1, 2])


def test_logsumexp_does_not_overflow() -> None:
    x = np.array([[1000.0, 1000.0], [-1000.0, -np.inf], [-np.inf, -np.inf]], np.float32)
    expected = [1000 + np.log(2), -1000, -np.inf]
    np.testing.assert_allclose(value(lambda t: aioflow.reduce_logsumexp(t, 1), x), expected, rtol=1e-6)


def test_scans() -> None:
    x = np.array([1, 2, 3], np.int32)
    assert value(aioflow.cumsum, x).tolist() == [1, 3, 6]
    assert value(lambda t: aioflow.cumsum(t, exclusive=True), x).tolist() == [0, 1, 3]
    assert value(lambda t: aioflow.cumsum(t, reverse=True), x).tolist() == [6, 5, 3]
    assert value(lambda t: aioflow.cumprod(t, exclusive=True, reverse=True), x).tolist() == [6, 3, 1]
    assert value(aioflow.cumsum, x).dtype == np.int32
    assert x.tolist() == [1, 2, 3]


def test_scan_rejects_an_axis_out_of_range() -> None:
    with aioflow.Graph().as_default():
        x = aioflow.placeholder("float32")
        y = aioflow.cumsum(x, 1, name="scan")
        with pytest.raises(InvalidArgumentError) as caught:
            evaluate([y], {x: np.ones(3)})
    assert (caught.value.node, caught.value.expected, caught.value.actual) == ("scan", "axis in [-1, 1)", 1)
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError):
        aioflow.cumsum(np.ones(3), 1)


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────

X = np.random.default_rng(3).standard_normal((2, 3, 4))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_of_unknown_shapes(name: str) -> None:
    def build(t: Any) -> Any:
        unknown = aioflow.placeholder_with_default(t, None)
        axes = aioflow.placeholder_with_default(np.array([2, 0], np.int32), None)
        return getattr(aioflow, name)(unknown, axes)

    check_gradients(build, X)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_second_gradients_equal_central_differences(name: str) -> None:
    def build(t: Any) -> Any:
        return aioflow.gradients(aioflow.square(getattr(aioflow, name)(t, 1)), t)[0]

    check_gradients(build, X)


def test_bools_have_no_gradient() -> None:
    x = aioflow.constant([True])
    y = make("Cast", aioflow.reduce_any(x), DstT=aioflow.as_dtype("float32"))
    assert aioflow.gradients(y, x) == [None]
