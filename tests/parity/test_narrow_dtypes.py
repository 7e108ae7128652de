"""8-bit floats and 4-bit and smaller integers against TensorFlow: limits, casts, movement, serialized tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.formats.tensor_proto import decode_tensor, encode_tensor
from aioflow.graph import dtypes

NARROW = [t for t in dtypes.ALL if t.is_narrow and t is not dtypes.float8_e8m0fnu]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_names_and_limits(dtype: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    theirs = tf.as_dtype(dtype.as_datatype_enum)
    assert theirs.name == dtype.name
    assert np.dtype(theirs.as_numpy_dtype) == dtype.np_dtype
    assert (theirs.is_floating, theirs.is_integer, theirs.is_unsigned) == (
        dtype.is_floating,
        dtype.is_integer,
        dtype.is_unsigned,
    )
    assert (theirs.min, theirs.max) == (dtype.min, dtype.max)


# TensorFlow's CPU casts only two of the floats and two of the integers.


@pytest.mark.parametrize("wide", FLOATS)
@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
def test_casts_of_floats(parity: Any, name: str, wide: str) -> None:
    spread = np.random.default_rng(0).standard_normal(400) * np.exp2(np.arange(400) % 26 - 16.0)
    with np.errstate(all="ignore"):
        x = np.concatenate([spread, [0, -0.0, 448, 464, 465, 57344, 61440, 1e6, -1e6, np.nan, np.inf, -np.inf]])
        x = x.astype(af.as_dtype(wide).np_dtype)
    parity(lambda m, x: m.cast(x, name), x, grad=False, rtol=0, atol=0)
    codes = np.arange(256, dtype=np.uint8).view(af.as_dtype(name).np_dtype)
    parity(lambda m, x: m.cast(x, wide), codes, grad=False, rtol=0, atol=0)


@pytest.mark.parametrize("wide", INTS)
@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_casts_of_integers(parity: Any, name: str, wide: str) -> None:
    x = np.arange(-20, 40).astype(wide)
    parity(lambda m, x: m.cast(m.cast(x, name), wide), x, grad=False)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
def test_data_movement(parity: Any, name: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(af.as_dtype(name).np_dtype)
    parity(lambda m, x: [m.reshape(x, [3, 2]), m.identity(x), m.concat([x, x], 0)], x, grad=False)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_each_system_reads_the_others_tensors(dtype: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    x = np.array([[1, 0, 1], [0, 1, 1]], np.float32).astype(dtype.np_dtype)
    theirs = tf.make_tensor_proto(x)
    np.testing.assert_array_equal(decode_tensor(theirs.SerializeToString(), dtype), x)
    back = type(theirs).FromString(encode_tensor(x, dtype))
    np.testing.assert_array_equal(tf.make_ndarray(back), x)
