"""The assert functions and predicates: when they fail, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import debugging
from aioflow.errors import DTypeError, InvalidArgumentError
from tests.support.assertion_cases import CALL, CASES, DTYPE, PASSES, STEP, AssertionCase

WAYS = ("known", "fed", "open")


async def outcome(case: AssertionCase, way: str) -> str:
    """Call the function in a graph of its own, and run its node."""
    values = [np.asarray(value) for value in case.values]
    with af.Graph().as_default():
        if way == "known":
            arguments, feeds = [af.constant(value) for value in values], {}
        else:
            shapes = [None if way == "open" else value.shape for value in values]
            arguments = [
                af.placeholder("string" if value.dtype == object else value.dtype, shape)
                for value, shape in zip(values, shapes, strict=True)
            ]
            feeds = dict(zip(arguments, values, strict=True))
        try:
            node = case.build(af, *arguments)
        except DTypeError:
            return DTYPE
        except InvalidArgumentError:
            return CALL
        async with af.Session() as session:
            try:
                await session.run(node, feeds)
            except InvalidArgumentError:
                return STEP
        return PASSES


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
async def test_assertion_holds_or_fails(name: str, way: str) -> None:
    case = CASES[name]
    expected = {"known": case.known, "fed": case.fed, "open": case.open or case.fed}[way]
    assert await outcome(case, way) == expected


async def test_failed_step_shows_the_message_and_the_values() -> None:
    with af.Graph().as_default():
        x = af.placeholder("float32", [3], name="x")
        with af.control_dependencies([af.assert_positive(x, message="sizes", summarize=2)]):
            y = af.identity(x)
        with af.control_dependencies([af.assert_less(x, 2.0, data=["only this", x])]):
            z = af.identity(x)
        async with af.Session() as session:
            with pytest.raises(InvalidArgumentError, match=r"(?s)sizes.*x > 0 did not hold.*x \(x:0\) = .*1.*-2"):
                await session.run(y, {x: [1.0, -2.0, 3.0]})
            with pytest.raises(InvalidArgumentError, match=r"only this .*5"):
                await session.run(z, {x: [1.0, 5.0, 1.0]})
            assert (await session.run(y, {x: [1, 2, 3]})).tolist() == [1, 2, 3]


def test_call_with_known_values_shows_the_message_and_the_values() -> None:
    with af.Graph().as_default():
        with pytest.raises(InvalidArgumentError, match=r"(?s)sizes.*x == y did not hold.*\[1 2\].*y.*3"):
            af.assert_equal([1, 2], 3, message="sizes")
        with pytest.raises(InvalidArgumentError, match=r"a matrix: .*another rank") as raised:
            af.assert_rank(af.placeholder("float32", [None]), 2, message="a matrix")
        assert (raised.value.expected, raised.value.actual) == ("2", "1, shape (?,)")


async def test_a_python_number_takes_the_dtype_of_the_other_operand() -> None:
    with af.Graph().as_default():
        x = af.placeholder("int64", [])
        async with af.Session() as session:
            await session.run([af.assert_less(0, x), af.assert_less(x, 9)], {x: 3})


@pytest.mark.parametrize(
    ("values", "rises", "never_falls"),
    [
        ([1, 2, 3], True, True),
        ([1, 1, 2], False, True),
        ([2, 1], False, False),
        ([], True, True),
        ([[1], [2]], True, True),
    ],
)
async def test_order_of_elements(values: Any, rises: bool, never_falls: bool) -> None:
    with af.Graph().as_default():
        for dtype in ("int32", "float64", "uint8"):
            x = af.placeholder(dtype, None)
            async with af.Session() as session:
                found = await session.run([af.is_strictly_increasing(x), af.is_non_decreasing(x)], {x: values})
            assert found == [rises, never_falls]


def test_order_needs_numbers() -> None:
    with af.Graph().as_default(), pytest.raises(DTypeError):
        af.is_non_decreasing(af.constant(["a"]))


def test_numeric_tensors() -> None:
    with af.Graph().as_default():
        numbers: list[Any] = [1, 1.0, 1j, np.uint8(1)]
        for value in numbers:
            assert af.is_numeric_tensor(af.constant(value))
        assert af.is_numeric_tensor(af.Variable(1.0))
        for other in (True, "a"):
            assert not af.is_numeric_tensor(af.constant(other))
        assert not af.is_numeric_tensor(np.ones(2))


def test_dtype_of_floats_is_found() -> None:
    with af.Graph().as_default():
        doubles, halves = af.constant(1.0, "float64"), af.Variable(np.float16(1))
        assert af.assert_same_float_dtype() is af.float32
        assert af.assert_same_float_dtype([doubles, None, doubles]) is af.float64
        assert af.assert_same_float_dtype([halves], "float16") is af.float16
        assert af.assert_same_float_dtype(dtype=af.bfloat16) is af.bfloat16
        wrong: list[tuple[Any, Any]] = [([doubles, halves], None), ([doubles], "float32"), ([af.constant(1)], None)]
        for tensors, dtype in [*wrong, (None, "int32")]:
            with pytest.raises(ValueError):
                af.assert_same_float_dtype(tensors, dtype)


def test_single_values_are_no_collections() -> None:
    with af.Graph().as_default():
        for values in ([1], (), {"a": 1}, iter([1])):
            af.assert_proper_iterable(values)
        for single in (af.constant([1.0]), np.ones(2), "text", b"bytes", 1, None):
            with pytest.raises(TypeError):
                af.assert_proper_iterable(single)


def test_namespace_has_the_same_functions() -> None:
    for name in debugging.__all__:
        if name not in ("assert_all_finite", "assert_shapes"):
            assert getattr(debugging, name) is (getattr(af, name, None) or getattr(af.math, name))
    assert debugging.assert_all_finite is af.verify_tensor_all_finite


def test_static_values_are_found() -> None:
    def found(value: Any, partial: bool = False) -> Any:
        return getattr(af.get_static_value(value, partial), "tolist", lambda: None)()

    with af.Graph().as_default():
        x = af.placeholder("float32", [None, 3])
        constant = af.constant([1.0, 2.0])
        assert found(constant) == [1, 2]
        assert found(af.shape(af.zeros([2, 3]))) == [2, 3]
        assert found(af.range(3) * 2) == [0, 2, 4]
        assert found(x) is None
        assert found(x, partial=True) is None
        assert found(af.shape(x)) is None
        assert found(af.shape(x), partial=True) == [None, 3]
        copied: Any = af.get_static_value(constant)
        copied[0] = 5
        assert found(constant) == [1, 2]
