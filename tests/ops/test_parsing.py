"""Parsing of examples and raw bytes: values, defaults, and errors that name the feature and the example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.formats.example import FeatureKind, encode_example
from aioflow.formats.protobuf import write_piece


def example(**features: tuple[FeatureKind, list[Any]]) -> bytes:
    return encode_example({name.encode(): feature for name, feature in features.items()})


INTEGER = af.FixedLenFeature([], af.int64)


async def parsed(records: list[bytes], features: dict[str, Any], names: list[str] | None = None) -> Any:
    async with af.Session() as session:
        return await session.run(af.parse_example(records, features, example_names=names))


async def test_parse_example_accepts_records_of_different_layouts() -> None:
    # The layout differs between records, since numbers are encoded in 1 to 10 bytes, and layouts recur.
    numbers = [0, 1, 127, 128, -1, 2**63 - 1, 300, 5, -(2**63), 128]
    records = [
        example(n=("int64", [n]), x=("float", [i, -i]), s=("bytes", [b"s" * (n % 3)])) for i, n in enumerate(numbers)
    ]
    features = {"n": INTEGER, "x": af.FixedLenFeature([2], af.float32), "s": af.FixedLenFeature([], af.string)}
    for _ in range(2):
        found = await parsed(records, features)
        assert found["n"].tolist() == numbers
        assert found["x"].tolist() == [[i, -i] for i in range(10)]
        assert found["s"].tolist() == [b"s" * (n % 3) for n in numbers]


async def test_missing_features_have_their_default() -> None:
    records = [example(n=("int64", [7])), example(other=("int64", [1])), example(n=(None, []))]  # type: ignore[arg-type]
    features = {"n": af.FixedLenFeature([], af.int64, 3), "pair": af.FixedLenFeature([2], af.float32, [1.5, 2.5])}
    found = await parsed(records, features)
    assert found["n"].tolist() == [7, 3, 3]
    assert found["pair"].tolist() == [[1.5, 2.5]] * 3


DEFAULTS: dict[str, Callable[[], Any]] = {
    "flat": lambda: [1.0, 2.0, 3.0, 4.0],
    "in its shape": lambda: [[1.0, 2.0], [3.0, 4.0]],
    "of another rank": lambda: [[1.0, 2.0, 3.0, 4.0]],
    "array": lambda: np.arange(1.0, 5.0),
    "tensor": lambda: af.constant([[1.0, 2.0], [3.0, 4.0]]),
    "list of tensors": lambda: [af.constant(1), 2.0, af.constant(3.0), 4.0],
}


@pytest.mark.parametrize("form", DEFAULTS)
async def test_defaults_may_be_flat_or_shaped(form: str) -> None:
    default = DEFAULTS[form]()
    found = await parsed([example()], {"x": af.FixedLenFeature([2, 2], af.float32, default)})
    assert found["x"].tolist() == [[[1.0, 2.0], [3.0, 4.0]]]


async def test_defaults_of_one_value_have_any_rank() -> None:
    records = [example(n=("int64", [7, 8])), example()]
    for default in (3, [3], [[3]], af.constant(3, "int64"), af.constant([3], "int64")):
        features = {
            "one": af.FixedLenFeature([1], af.int64, default),
            "scalar": af.FixedLenFeature([], af.int64, default),
            "n": af.FixedLenSequenceFeature([], af.int64, allow_missing=True, default_value=default),
        }
        found = await parsed(records, features)
        assert found["one"].tolist() == [[3], [3]]
        assert found["scalar"].tolist() == [3, 3]
        assert found["n"].tolist() == [[7, 8], [3, 3]]


@pytest.mark.parametrize("default", [1.0, [1.0], [1.0, 2.0, 3.0], [[1.0, 2.0], [3.0, 4.0]], []])
def test_defaults_of_another_number_of_values_are_refused(default: Any) -> None:
    features = {"pair": af.FixedLenFeature([2], af.float32, default)}
    with pytest.raises(errors.InvalidArgumentError, match="default of feature 'pair' does not fit"):
        af.parse_example(["x"], features)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (example(m=("int64", [1])), "feature 'n' of example 1 (second) is required but missing"),
        (example(n=("int64", [1, 2])), "feature 'n' of example 1 (second) has the wrong number of values"),
        (example(n=("bytes", [b"x"])), "feature 'n' of example 1 (second) has a different dtype"),
        (b"\x0a\x05", "could not parse example 1 (second): damaged"),
        (
            write_piece(
                1, write_piece(1, write_piece(1, b"n") + write_piece(2, write_piece(3, write_piece(1, b"\x80"))))
            ),
            "could not parse example 1 (second): damaged message: an unterminated varint",
        ),
    ],
)
async def test_errors_name_feature_and_example(record: bytes, text: str) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        await parsed([example(n=("int64", [1])), record], {"n": INTEGER}, ["first", "second"])
    assert text in str(caught.value)


async def test_unrequested_features_are_not_parsed() -> None:
    damaged = write_piece(1, b"m") + write_piece(2, write_piece(3, write_piece(1, b"\x80")))
    record = example(n=("int64", [1])) + write_piece(1, write_piece(1, damaged))
    assert (await parsed([record], {"n": INTEGER}))["n"].tolist() == [1]


@pytest.mark.parametrize("dtype", [af.uint8, af.int16, af.float32, af.complex64, af.bool])
@pytest.mark.parametrize("little", [True, False])
async def test_decode_raw_returns_a_writable_array(dtype: af.DType, little: bool) -> None:
    # The array must be writable, so it cannot be a view of the bytes.
    raw = bytes([0, 1, 2, 3, 4, 5, 6, 7]) * 2
    texts = np.array([[raw], [bytes(16)]], object)
    strings = af.placeholder(af.string, [None, 1])
    async with af.Session() as session:
        found = await session.run(af.decode_raw(strings, dtype, little_endian=little), {strings: texts})
    assert found.shape == (2, 1, 16 // found.itemsize)
    assert found.dtype == dtype.np_dtype
    order: Any = "<" if little else ">"
    expected = (
        np.frombuffer(raw, np.uint8) != 0 if dtype is af.bool else np.frombuffer(raw, found.dtype.newbyteorder(order))
    )
    np.testing.assert_array_equal(found[0, 0], expected)
    found[...] = 1
    assert raw == bytes([0, 1, 2, 3, 4, 5, 6, 7]) * 2


RAW_FORMS: dict[str, Any] = {
    "a scalar": lambda one: one,
    "one string": lambda one: [one],
    "rows": lambda one: [[one, one], [one, one]],
    "several elements": lambda one: [one * 3],
}


@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("form", RAW_FORMS)
async def test_decode_raw_of_wide_complex_numbers(form: str, little: bool) -> None:
    # A single element is a special case: its bytes in reverse order are a view.
    made = RAW_FORMS[form](bytes(range(1, 17)))
    async with af.Session() as session:
        found = await session.run(af.decode_raw(made, af.complex128, little_endian=little))
    strings = np.array(made, dtype=object)
    wanted = np.dtype(np.complex128).newbyteorder("<" if little else ">")
    expected = [np.frombuffer(text, wanted) for text in strings.reshape(-1)]
    np.testing.assert_array_equal(found, np.reshape(expected, (*strings.shape, -1)))
    assert found.dtype == np.complex128


async def test_decode_raw_of_empty_and_odd_lengths() -> None:
    async with af.Session() as session:
        assert (await session.run(af.decode_raw([b"", b""], af.int16))).shape == (2, 0)
        for texts in ([b"123"], [b"12", b"1234"]):
            with pytest.raises(errors.InvalidArgumentError):
                await session.run(af.decode_raw(texts, af.int16))


def test_float_list_accepts_an_array() -> None:
    # As in TensorFlow.
    values = np.array([0.5, 0.25], np.float32)
    assert af.train.FloatList(value=values).value == [0.5, 0.25]
    assert af.train.FloatList(value=values[:0]).value == []
    assert af.train.FloatList().value == []
