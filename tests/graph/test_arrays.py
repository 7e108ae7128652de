"""Conversion of Python values to arrays: inferred dtypes, rejected values, and exact strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import string_array, to_array
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.shapes import TensorShape


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "int32"),
        (-(2**31), "int32"),
        (2**31 - 1, "int32"),
        (2**31, "int64"),
        (-(2**31) - 1, "int64"),
        ([1, 2**40], "int64"),
        (2**63, "uint64"),
        (1.0, "float32"),
        ([1, 2.5], "float32"),
        ([], "float32"),
        ([[]], "float32"),
        (True, "bool"),
        ([1, True], "int32"),
        (1j, "complex128"),
        ([1.0, 1j], "complex128"),
        (range(3), "int32"),
        (TensorShape([2, 3]), "int32"),
        (TensorShape([]), "int32"),
        ([TensorShape([])], "int32"),
        ([TensorShape([2, 3]), (4, 5)], "int32"),
        (TensorShape([2**31]), "int64"),
        (np.float64(1), "float64"),
        (np.int64(1), "int64"),
        (np.float16(1), "float16"),
        (np.zeros(2), "float64"),
        (np.zeros(2, np.int64), "int64"),
        (np.zeros(2, ml_dtypes.bfloat16), "bfloat16"),
        ([np.float64(1)], "float32"),  # in a list NumPy's defaults are Python's
        ([np.int64(1)], "int32"),
        ([np.float16(1)], "float16"),
        ([np.uint8(1)], "uint8"),
    ],
    ids=repr,
)
def test_dtype_is_inferred_from_the_value(value: Any, dtype: str) -> None:
    assert as_dtype(to_array(value).dtype).name == dtype


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "float32"),
        (1, "complex64"),
        (True, "int32"),
        (True, "float32"),
        (1.5, "complex64"),
        (255, "uint8"),
        (-128, "int8"),
        ([], "int32"),
        ([], "bool"),
        (np.zeros(2, np.int64), "uint8"),
        (np.zeros(2), "float16"),
        (np.ones(2, np.float32), "bfloat16"),
        (2**64 - 1, "uint64"),
        (np.array([[1], [2]], dtype=object), "int64"),
        (np.array([1, np.int64(2), True], dtype=object), "float32"),
        (np.array([0.5, 2], dtype=object), "float64"),
        (np.empty((0, 3), dtype=object), "int32"),
    ],
    ids=repr,
)
def test_values_are_converted_to_a_dtype(value: Any, dtype: str) -> None:
    wanted = as_dtype(dtype)
    array = to_array(value, wanted)
    assert array.dtype == wanted.np_dtype
    assert np.array_equal(array.astype(object), np.asarray(value, dtype=object))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, "int32"),
        (1.0, "int32"),  # a float is another kind, whatever its value
        (1j, "float32"),
        (1, "bool"),
        (0.0, "bool"),
        ("1", "float32"),
        (b"1", "int32"),
        (1, "string"),
        ([b"a", 1], "string"),
        (np.zeros(0), "int32"),
        (np.array(["a"]), "float32"),
        (np.array("2020", "M8[Y]"), "int64"),
        ({"a": 1}, "float32"),
        (None, "float32"),
        (TensorShape([None]), "int32"),
        pytest.param(object(), "int32", id="an object"),
    ],
    ids=repr,
)
def test_values_of_another_kind_are_refused(value: Any, dtype: str) -> None:
    with pytest.raises(DTypeError) as caught:
        to_array(value, as_dtype(dtype))
    assert caught.value.expected is not None
    assert caught.value.actual is not None


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, "uint8"),
        (-1, "uint64"),
        (2**31, "int32"),
        (2**63, "int64"),
        (np.array([2**63], np.uint64), "int64"),
        (2**64, "uint64"),
        (2**64, "int32"),
        (2**64, None),
        ([1, -(2**70)], None),
    ],
    ids=repr,
)
def test_integers_that_do_not_fit_are_refused(value: Any, dtype: str | None) -> None:
    with pytest.raises(InvalidArgumentError, match="does not fit") as caught:
        to_array(value, None if dtype is None else as_dtype(dtype))
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("value", [[[1], [2, 3]], [1, [2]], [np.zeros(2), np.zeros(3)]], ids=repr)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_ragged_nesting_is_refused(value: Any, dtype: str | None) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        to_array(value, None if dtype is None else as_dtype(dtype))
    assert "rectangular" in str(caught.value.expected)


def test_a_matching_array_is_not_copied() -> None:
    array = np.zeros(3, np.float32)
    assert to_array(array, dtypes.float32) is array
    assert to_array(array) is array


@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
def test_numbers_are_converted_to_native_byte_order(dtype: str | None) -> None:
    """Libraries receive the address of an array and assume the native byte order."""
    numbers = np.array([1.0, 2.5, -3.0], np.dtype(np.float32).newbyteorder("S"))
    found = to_array(numbers, None if dtype is None else as_dtype(dtype))
    assert found.dtype.isnative
    assert found.dtype == (dtype or "float32")
    assert found.tolist() == [1.0, 2.5, -3.0]


def test_long_values_are_shortened_in_the_error() -> None:
    with pytest.raises(DTypeError) as caught:
        to_array("x" * 1000, dtypes.float32)
    assert len(str(caught.value.actual)) < 120


# -- strings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "items"),
    [
        ("ä", ["ä".encode()]),
        (b"\xff\x00", [b"\xff\x00"]),
        (["a", b"b"], [b"a", b"b"]),
        ([b"a\x00", b"bb\x00\x00"], [b"a\x00", b"bb\x00\x00"]),  # NumPy's own "S" drops trailing NULs
        (["a\x00"], [b"a\x00"]),
        ([""], [b""]),
        ([], []),
        (np.array(["a", "bc"]), [b"a", b"bc"]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array([b"x\x00", "y"], object), [b"x\x00", b"y"]),
        (np.str_("z"), [b"z"]),
        (np.bytes_(b"z"), [b"z"]),
    ],
    ids=repr,
)
def test_strings_become_bytes(value: Any, items: list[bytes]) -> None:
    for array in (to_array(value, dtypes.string), string_array(value)):
        assert array.dtype == object
        assert array.reshape(-1).tolist() == items
        assert all(type(i) is bytes for i in array.reshape(-1))
    if items:
        assert to_array(value).reshape(-1).tolist() == items


def test_the_shape_of_a_string_array() -> None:
    assert string_array("a").shape == ()
    assert string_array([["a", "b"]]).shape == (1, 2)
    assert string_array([[], []]).shape == (2, 0)


def test_text_without_a_utf8_form_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="not valid text"):
        to_array(["\ud800"])


def test_numbers_and_text_do_not_mix() -> None:
    with pytest.raises(DTypeError):
        to_array([1, "a"])
    with pytest.raises(DTypeError):
        to_array(["a", None])


def _nested(levels: int) -> Any:
    value: Any = 1.0
    for _ in range(levels):
        value = [value]
    return value


def _of_itself(times: int) -> Any:
    value: list[Any] = []
    value += [value] * times
    return value


@pytest.mark.parametrize("value", [[1.0, 2.0], ["a", "b"]])
def test_masked_elements_are_refused(value: Any) -> None:
    """A masked element may hold any value. If it were read as a number, the answer would be wrong."""
    masked = np.ma.masked_array(value, mask=[False, True])
    dtype = as_dtype("string" if value == ["a", "b"] else "float32")
    for each in (masked, [masked, masked], [np.array(value), masked]):
        with pytest.raises(DTypeError, match="masked elements"):
            to_array(each, dtype)
    assert to_array(np.ma.masked_array(value), dtype).shape == (2,)  # none of these is masked


@pytest.mark.parametrize("value", [_nested(5000), _of_itself(1), _of_itself(2), [1.0, _nested(5000)]], ids=range(4))
@pytest.mark.parametrize(
    "make", [to_array, af.constant, af.convert_to_tensor, lambda v: af.add(v, af.zeros([])), af.group]
)
def test_endlessly_nested_values_are_rejected(make: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(DTypeError):
        make(value)


async def test_endlessly_nested_feeds_are_rejected() -> None:
    """Converting them on the event loop would block it beyond any timeout."""
    x = af.placeholder("float32")
    async with af.Session() as session:
        for value in (_nested(5000), _of_itself(1), _of_itself(2)):
            with pytest.raises(DTypeError, match="nested too deeply"):
                await session.run(x, {x: value}, timeout=10)


@pytest.mark.filterwarnings("ignore:The chararray class:DeprecationWarning")  # of NumPy 2.5
def test_an_array_of_characters_keeps_its_spaces() -> None:
    """NumPy's `chararray` strips trailing spaces from its elements."""
    assert to_array(np.char.array(["a ", "b"]), dtypes.string).tolist() == [b"a ", b"b"]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, dtypes.int32), (np.float32(2), dtypes.int8), ([0, 1], dtypes.bool_), ([1.0], dtypes.uint64)],
)
def test_the_cast_error_shows_a_working_conversion(value: Any, dtype: Any) -> None:
    with pytest.raises(DTypeError) as raised:
        to_array(value, dtype)
    hint = raised.value.message.split("`")[1]
    assert to_array(eval(hint, {"np": np, "value": value}), dtype).dtype == dtype.np_dtype


@pytest.mark.parametrize(("value", "dtype"), [("1", dtypes.int32), (1j, dtypes.int32), (object(), dtypes.bool_)])
def test_the_error_suggests_no_impossible_cast(value: Any, dtype: Any) -> None:
    with pytest.raises(DTypeError) as raised:
        to_array(value, dtype)
    assert "asarray" not in raised.value.message
