"""Comparisons and logic: values, dtypes, static shapes, located errors, and no gradients."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.ops.math.comparison import approximate_equal
from aioflow.testing.evaluate import evaluate

ORDERS = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


def value(tensor: Any, feeds: Any = None) -> Any:
    return evaluate([tensor], feeds)[0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.uint64])
@pytest.mark.parametrize("name", ORDERS)
def test_orders_follow_numpy(name: str, dtype: Any) -> None:
    x, y = np.array([[0, 1, 2], [2, 1, 0]]).astype(dtype), np.array([1, 1, 1]).astype(dtype)
    result = value(getattr(af, name)(x, y))
    assert result.dtype == np.bool_
    assert np.array_equal(result, ORDERS[name](x, y))


def test_nan_equals_nothing() -> None:
    x = np.array([np.nan, 1.0])
    assert value(af.equal(x, x)).tolist() == [False, True]
    assert value(af.not_equal(x, x)).tolist() == [True, False]
    assert value(af.less(x, x)).tolist() == [False, False]


def test_strings_are_compared() -> None:
    x = np.array([b"a", b"b\0"], dtype=object)
    assert value(af.equal(x, "a")).tolist() == [True, False]
    assert value(af.not_equal(af.constant("a"), "a")).tolist() is False


def test_shapes_that_do_not_fit_are_refused_while_building() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        af.equal(np.zeros((2, 3)), np.zeros((2,)), name="mine")
    assert caught.value.node == "mine"
    assert caught.value.actual == "(2, 3) and (2,)"
    assert __file__ in str(caught.value.source)


def test_shapes_that_do_not_fit_are_refused_at_run_time() -> None:
    x = af.placeholder("float32")
    y = af.less(x, np.zeros(3, np.float32), name="compare")
    with pytest.raises(InvalidArgumentError) as caught:
        value(y, {x: np.zeros(2)})
    assert caught.value.node == y.op.name


@pytest.mark.parametrize(("name", "otherwise"), [("Equal", False), ("NotEqual", True)])
def test_equality_can_be_lenient_about_shapes(name: str, otherwise: bool) -> None:
    x = af.placeholder("int32")
    y = af.extend.make(name, x, np.array([1, 2, 3]), incompatible_shape_error=False)
    assert value(y, {x: [1, 2]}).tolist() is otherwise
    assert value(y, {x: [1, 0, 3]}).tolist() == [not otherwise, otherwise, not otherwise]


def test_lenient_equality_of_unknown_sizes_has_an_unknown_shape() -> None:
    def lenient(x: Any, y: Any) -> Any:
        return af.extend.make("Equal", x, y, incompatible_shape_error=False)

    x, y = af.placeholder("int32", [None]), af.placeholder("int32", [None])
    assert lenient(x, y).dims is None, "a scalar for two sizes that differ"
    assert lenient(x, x).dims == (None,)
    assert lenient(x, [1]).dims == (None,)
    assert lenient(x, [1, 2]).dims is None
    equal = lenient(x, y)
    feeds = {x: [1, 2], y: [1, 2, 3]}
    assert value(equal, feeds).tolist() is False
    assert value(af.rank(equal), feeds) == 0


def test_approximate_equality_has_no_broadcasting() -> None:
    x = af.placeholder("float32")
    y = approximate_equal(x, x + 1e-6)
    assert value(y, {x: [1.0, 2.0]}).tolist() == [True, True]
    fed = af.placeholder("float32")
    with pytest.raises(InvalidArgumentError) as caught:
        value(approximate_equal(x, fed), {x: [1.0, 2.0], fed: [1.0]})
    assert (caught.value.expected, caught.value.actual) == ((2,), (1,))
    with pytest.raises(InvalidArgumentError, match="not compatible"):
        approximate_equal(np.zeros(2), np.zeros(1))


def test_approximate_equality_of_unsigned_integers_does_not_wrap() -> None:
    x, y = np.array([3, 4, 9], np.uint8), np.array([4, 3, 3], np.uint8)
    assert value(approximate_equal(x, y, tolerance=1.5)).tolist() == [True, True, False]


def test_classes_of_floats() -> None:
    x = np.array([0.0, np.nan, np.inf, -np.inf])
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        typed = x.astype(dtype)
        assert value(af.is_nan(typed)).tolist() == [False, True, False, False]
        assert value(af.is_inf(typed)).tolist() == [False, False, True, True]
        assert value(af.is_finite(typed)).tolist() == [True, False, False, False]


@pytest.mark.parametrize("symbol", [operator.and_, operator.or_, operator.xor])
def test_operators_are_logic_on_bools_and_bits_on_integers(symbol: Any) -> None:
    flags, others = np.array([True, True, False]), np.array([True, False, False])
    bits = np.array([6, 5, 0], np.int64)
    assert np.array_equal(value(symbol(af.constant(flags), others)), symbol(flags, others))
    assert np.array_equal(value(symbol(af.constant(bits), 3)), symbol(bits, 3))
    assert np.array_equal(value(symbol(3, af.constant(bits))), symbol(3, bits))
    with pytest.raises(DTypeError):
        symbol(af.constant(1.0), 2.0)


def test_not() -> None:
    assert value(~af.constant([True, False])).tolist() == [False, True]
    assert value(~af.constant([0, 5])).tolist() == [-1, -6]
    with pytest.raises(DTypeError):
        ~af.constant(1.0)


def test_logical_builders() -> None:
    x, y = af.constant([True, True, False, False]), af.constant([True, False, True, False])
    found = evaluate([af.logical_and(x, y), af.logical_or(x, y), af.logical_xor(x, y), af.logical_not(x)])
    assert [f.tolist() for f in found] == [
        [True, False, False, False],
        [True, True, True, False],
        [False, True, True, False],
        [False, False, True, True],
    ]
    with pytest.raises(InvalidArgumentError):
        af.logical_and(af.constant(1), True)
    with pytest.raises(InvalidArgumentError):
        af.logical_xor(af.constant(1), af.constant(2))


def test_no_gradient_flows_through_a_comparison() -> None:
    x = af.placeholder("float64", [3])
    ys = [af.less(x, 1.0), af.equal(x, 1.0), af.is_nan(x), approximate_equal(x, x)]
    for y in ys:
        assert af.gradients(af.cast(y, "float64"), x) == [None]


def test_scalars_stay_bools() -> None:
    x = af.placeholder("float32", [])
    y = af.logical_not((x < 2) & (x > 0) | af.equal(x, 7.0))
    result = value(y, {x: 1.0})
    assert (result.dtype, result.shape, bool(result)) == (np.bool_, (), False)
