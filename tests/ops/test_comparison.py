"""Comparisons and logic: NaN, lenient shapes, located errors, and no gradients."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.ops.math.comparison import approximate_equal
from aioflow.testing.evaluate import evaluate


def value(tensor: Any, feeds: Any = None) -> Any:
    return evaluate([tensor], feeds)[0]


def test_nan_equals_nothing() -> None:
    x = np.array([np.nan, 1.0])
    assert value(af.equal(x, x)).tolist() == [False, True]
    assert value(af.not_equal(x, x)).tolist() == [True, False]
    assert value(af.less(x, x)).tolist() == [False, False]


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


def test_logical_builders_refuse_integers() -> None:
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
