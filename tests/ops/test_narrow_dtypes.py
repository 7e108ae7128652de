"""Floats of at most 8 bits and integers below 8 bits: constants, feeds, casts, data movement, no arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, OpError
from aioflow.formats.tensor_proto import decode_tensor, encode_tensor
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graphdef import TensorData
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate

NARROW = [t for t in dtypes.ALL if t.is_narrow]
INTEGERS = [t for t in NARROW if t.is_integer]
# Bits of exponent and fraction, bias of the exponent, and encoding of NaN and infinity.
LAYOUTS = {
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fn": (4, 3, 7, "all ones"),
    "float8_e4m3fnuz": (4, 3, 8, "minus zero"),
    "float8_e4m3b11fnuz": (4, 3, 11, "minus zero"),
    "float8_e5m2fnuz": (5, 2, 16, "minus zero"),
    "float4_e2m1fn": (2, 1, 1, "none"),
}


def decoded(code: int, exponent_bits: int, fraction_bits: int, bias: int, special: str) -> float:
    """Return the value of a code, by the definition of the type."""
    sign = -1.0 if code >> (exponent_bits + fraction_bits) & 1 else 1.0
    exponent = code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = code & (1 << fraction_bits) - 1
    highest = (1 << exponent_bits) - 1
    if special == "minus zero" and sign < 0 and not exponent and not fraction:
        return math.nan
    if special == "all ones" and exponent == highest and fraction == (1 << fraction_bits) - 1:
        return math.nan
    if special == "ieee" and exponent == highest:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - fraction_bits)
    return sign * math.ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits)


def some(dtype: DType) -> Any:
    """Return 2 x 3 values of `dtype`: zeros and ones, or powers of two for float8_e8m0fnu."""
    values = [[1, 2, 1], [1, 1, 2]] if dtype is dtypes.float8_e8m0fnu else [[0, 1, 1], [1, 0, 1]]
    return np.array(values, np.float32).astype(dtype.np_dtype)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_code_has_the_value_of_its_definition(name: str) -> None:
    exponent_bits, fraction_bits, _, _ = LAYOUTS[name]
    codes = np.arange(1 << (1 + exponent_bits + fraction_bits), dtype=np.uint8)
    expected = np.array([decoded(int(code), *LAYOUTS[name]) for code in codes], np.float64)
    stored = codes.view(af.as_dtype(name).np_dtype)
    (found,) = evaluate([af.cast(af.constant(stored), "float64")])
    np.testing.assert_array_equal(found, expected)
    assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_casts_round_to_nearest_even(name: str) -> None:
    bits = sum(LAYOUTS[name][:2])
    values = np.array([decoded(code, *LAYOUTS[name]) for code in range(1 << bits)], np.float32)
    values = values[np.isfinite(values)]
    middles = (values[:-1] + values[1:]) / 2
    x = np.concatenate([values, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))])
    even = np.where(np.arange(len(middles)) % 2 == 0, values[:-1], values[1:])
    expected = np.concatenate([values, even, values[:-1], values[1:]])
    (found,) = evaluate([af.cast(af.cast(af.constant(x), name), "float32")])
    np.testing.assert_array_equal(found, expected)
    (negative,) = evaluate([af.cast(af.cast(af.constant(-x), name), "float32")])
    np.testing.assert_array_equal(negative, -expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_keep_their_lower_bits(dtype: DType) -> None:
    bits = int(dtype.name[-1])
    x = np.arange(-20, 20, dtype=np.int32)
    (found,) = evaluate([af.cast(af.cast(af.constant(x), dtype), "int32")])
    low = x % (1 << bits)
    expected = low if dtype.is_unsigned else np.where(low >> (bits - 1), low - (1 << bits), low)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("source", NARROW, ids=str)
@pytest.mark.parametrize("target", NARROW, ids=str)
def test_casts_between_narrow_dtypes_keep_common_values(source: DType, target: DType) -> None:
    ones = np.ones(3, np.float32).astype(source.np_dtype)
    (found,) = evaluate([af.cast(af.constant(ones), target)])
    assert found.dtype == target.np_dtype
    np.testing.assert_array_equal(found.astype(np.float32), 1.0)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
async def test_narrow_values_can_be_fed_moved_and_fetched(dtype: DType) -> None:
    value = some(dtype)
    wide = value.astype(np.float32)
    x = af.placeholder(dtype, [2, 3])
    one = af.placeholder(dtype, [])
    moved = {
        "transpose": (af.transpose(x), wide.T),
        "reshape": (af.reshape(x, [3, 2]), wide.reshape(3, 2)),
        "concat": (af.concat([x, x], 1), np.concatenate([wide, wide], 1)),
        "gather": (af.gather(x, [1, 0, 1]), wide[[1, 0, 1]]),
        "slice": (x[:, 1:], wide[:, 1:]),
        "where": (af.where(af.constant([[True, False, True]] * 2), x, x[::-1]), np.where([1, 0, 1], wide, wide[::-1])),
        "tile": (af.tile(x, [2, 1]), np.tile(wide, (2, 1))),
        "stack": (af.stack([x, x]), np.stack([wide, wide])),
        "split": (af.split(x, 3, 1)[2], wide[:, 2:]),
        "broadcast": (af.broadcast_to(x, [4, 2, 3]), np.broadcast_to(wide, (4, 2, 3))),
        "identity": (af.identity(x), wide),
        "bits": (af.bitcast(x, "uint8"), value.view(np.uint8)),
        "reverse": (make("ReverseSequence", x, [3, 2], seq_dim=1), np.stack([wide[0, ::-1], wide[1, [1, 0, 2]]])),
        "pad": (make("PadV2", x, [[1, 0], [0, 0]], one), np.concatenate([[[1, 1, 1]], wide])),
        "constant": (af.constant(value), wide),
        "scalar": (one + 0 if dtype.is_numeric else af.identity(one), np.float32(1)),
    }
    async with af.Session() as session:
        got = await session.run({name: made for name, (made, _) in moved.items()}, {x: value, one: value[1, 0]})
    for name, (made, expected) in moved.items():
        assert got[name].dtype == made.dtype.np_dtype, name
        np.testing.assert_array_equal(got[name].astype(np.float32), expected, err_msg=name)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_arithmetic_on_narrow_dtypes_is_refused(dtype: DType) -> None:
    x = af.constant(some(dtype))
    for op in ("AddV2", "Mul", "MatMul", "Maximum"):
        with pytest.raises(DTypeError):
            make(op, x, x)
    with pytest.raises(DTypeError):
        af.reduce_sum(x)
    with pytest.raises(OpError):
        evaluate([af.einsum("ij,ij->i", x, x)])


@pytest.mark.parametrize("dtype", [t for t in NARROW if t.is_floating], ids=str)
def test_casts_to_narrow_floats_have_no_gradient(dtype: DType) -> None:
    x = af.constant([1.0, 2.0])
    y = af.cast(af.cast(x, dtype), "float32")
    assert af.gradients(y, [x]) == [None]


def test_constants_that_do_not_fit_a_narrow_integer_are_refused() -> None:
    assert evaluate([af.constant([-8, 7], "int4")])[0].tolist() == [-8, 7]
    with pytest.raises(DTypeError, match="int4"):
        af.constant([8], "int4")
    with pytest.raises(DTypeError, match="uint2"):
        af.constant([-1], "uint2")
    with pytest.raises(DTypeError):
        af.constant([1.5], "int4")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_constants_as_data(dtype: DType) -> None:
    value = some(dtype)
    stored = TensorData.of(value)
    assert stored.dtype is dtype
    assert len(stored.data) == value.size
    np.testing.assert_array_equal(stored.to_array(), value)
    np.testing.assert_array_equal(decode_tensor(encode_tensor(value, dtype), dtype), value)
