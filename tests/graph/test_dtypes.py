"""Element types: names, numbers, NumPy equivalents, limits, and allowed casts of feeds."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype, can_cast_feed

PLAIN = [t for t in dtypes.ALL if t.is_plain]


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_a_dtype_is_found_by_its_name_and_its_number(dtype: DType) -> None:
    assert as_dtype(dtype) is dtype
    assert as_dtype(dtype.name) is dtype
    assert as_dtype(dtype.as_datatype_enum) is dtype


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_a_plain_dtype_is_found_by_its_numpy_twin_in_either_byte_order(dtype: DType) -> None:
    assert as_dtype(dtype.np_dtype) is dtype
    assert as_dtype(dtype.as_numpy_dtype) is dtype
    assert dtype.size == dtype.np_dtype.itemsize
    if dtype is not dtypes.bfloat16 and dtype.size > 1:
        assert as_dtype(dtype.np_dtype.newbyteorder(">")) is dtype


def test_names_and_numbers_are_unique() -> None:
    assert len({t.name for t in dtypes.ALL}) == len({t.as_datatype_enum for t in dtypes.ALL}) == len(dtypes.ALL)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("half", "float16"),
        ("float", "float32"),
        ("double", "float64"),
        ("f8", "float64"),
        (float, "float32"),
        (int, "int32"),
        (bool, "bool"),
        (complex, "complex128"),
        (str, "string"),
        (bytes, "string"),
        (object, "string"),
        (np.dtype("S3"), "string"),
        (np.dtype("U3"), "string"),
        (np.dtype(object), "string"),
        (ml_dtypes.bfloat16, "bfloat16"),
    ],
)
def test_aliases_of_a_dtype(value: Any, name: str) -> None:
    assert as_dtype(value).name == name


@pytest.mark.parametrize(
    "value",
    [
        None,  # NumPy would read it as float64
        dict,  # NumPy would read any class as an object array
        Exception,
        "float33",
        "",
        True,
        0,
        999,
        1.5,
        [],
        pytest.param(object(), id="an object"),
        np.dtype("M8[s]"),
        np.dtype([("a", np.int32)]),
        np.longdouble,
        ml_dtypes.float8_e3m4,
    ],
    ids=repr,
)
def test_other_values_are_not_dtypes(value: Any) -> None:
    if value is np.longdouble and np.dtype(np.longdouble) == np.dtype(np.float64):
        pytest.skip("long double is double here")
    with pytest.raises(DTypeError) as caught:
        as_dtype(value)
    assert "float32" in caught.value.expected
    assert caught.value.actual == repr(value)


def test_kinds_partition_the_dtypes() -> None:
    small = {f"float8_{kind}" for kind in ("e5m2", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2fnuz", "e8m0fnu")}
    small.add("float4_e2m1fn")
    few = {"int2", "int4", "uint2", "uint4"}
    kinds = {
        "is_floating": {"bfloat16", "float16", "float32", "float64"} | small,
        "is_integer": {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)} | few,
        "is_complex": {"complex64", "complex128"},
        "is_bool": {"bool"},
        "is_quantized": {"qint8", "quint8", "qint16", "quint16", "qint32"},
    }
    for kind, names in kinds.items():
        assert {t.name for t in dtypes.ALL if getattr(t, kind)} == names, kind
    rest = {t.name for t in dtypes.ALL} - set().union(*kinds.values())
    assert rest == {"string", "resource", "variant"}
    assert {t.name for t in dtypes.ALL if t.is_unsigned} == {f"uint{n}" for n in (2, 4, 8, 16, 32, 64)}
    numeric = kinds["is_floating"] | kinds["is_integer"] | kinds["is_complex"]
    assert {t.name for t in dtypes.ALL if t.is_narrow} == small | few
    assert {t.name for t in dtypes.ALL if t.is_numeric} == numeric - small - few


@pytest.mark.parametrize("dtype", [t for t in PLAIN if t.is_integer or t.is_floating], ids=str)
def test_limits_are_the_least_and_greatest_values(dtype: DType) -> None:
    limits: Any = ml_dtypes.iinfo(dtype.np_dtype) if dtype.is_integer else ml_dtypes.finfo(dtype.np_dtype)  # type: ignore[no-untyped-call]  # ml_dtypes publishes no types
    assert dtype.min == limits.min
    assert dtype.max == limits.max
    if dtype is dtypes.float8_e8m0fnu:  # powers of two only
        assert float(dtype.min) == 2.0**-127
    else:
        assert dtype.min == 0 if dtype.is_unsigned else dtype.min < 0


@pytest.mark.parametrize("name", ["string", "bool", "complex64", "resource"])
def test_dtypes_without_limits_raise_an_error(name: str) -> None:
    with pytest.raises(DTypeError, match="no limits"):
        _ = as_dtype(name).max


def test_parts_of_a_complex_dtype() -> None:
    assert dtypes.complex64.real_dtype is dtypes.float32
    assert dtypes.complex128.real_dtype is dtypes.float64
    assert dtypes.int8.real_dtype is dtypes.int8
    assert dtypes.float32.base_dtype is dtypes.float32


def test_a_dtype_stays_a_singleton() -> None:
    for dtype in dtypes.ALL:
        assert copy.deepcopy(dtype) is dtype
        assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_str_and_repr() -> None:
    assert repr(dtypes.float32) == "aioflow.float32"
    assert str(dtypes.bool_) == "bool"
    assert af.float32 is dtypes.float32


ORDER = ["bool", "int32", "float32", "complex64"]


@pytest.mark.parametrize("source", ORDER)
@pytest.mark.parametrize("target", ORDER)
def test_a_feed_is_only_cast_to_a_wider_kind(source: str, target: str) -> None:
    allowed = source == target or (target != "bool" and ORDER.index(source) <= ORDER.index(target))
    assert can_cast_feed(as_dtype(source), as_dtype(target)) is allowed


def test_strings_and_numbers_never_mix_in_a_feed() -> None:
    for other in (dtypes.float32, dtypes.int64, dtypes.bool_, dtypes.resource, dtypes.qint8):
        assert not can_cast_feed(dtypes.string, other)
        assert not can_cast_feed(other, dtypes.string)
    assert can_cast_feed(dtypes.float64, dtypes.bfloat16)
    assert can_cast_feed(dtypes.int64, dtypes.uint8)  # values are checked during the cast


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_a_dtype_equals_only_its_own_aliases(dtype: DType) -> None:
    forms: list[Any] = [dtype.name, dtype.as_datatype_enum]
    if dtype in PLAIN:
        forms += [dtype.np_dtype, dtype.as_numpy_dtype, dtype.np_dtype.newbyteorder(">")]
    for form in forms:
        assert dtype == form
        assert form == dtype
        assert (dtype != form) is False
        assert dtype in [form]
        assert all((other == form) is (other is dtype) for other in dtypes.ALL)
    assert hash(dtype) == dtype.as_datatype_enum
    assert {dtype: 1}[as_dtype(dtype.name)] == 1


@pytest.mark.parametrize(
    "other", [None, "nonsense", "", object(), list, int, complex, str, bytes, 0, 1000, True, 1.0, (), [], np.generic]
)
def test_a_dtype_differs_from_other_values(other: Any) -> None:
    for dtype in dtypes.ALL:
        assert dtype != other
        assert (dtype == other) is False


def test_dtype_comparisons_of_published_code() -> None:
    x = af.placeholder("float32", [2])
    assert x.dtype == np.float32
    assert x.dtype in (np.float16, np.float32)
    assert x.dtype == np.zeros(2, np.float32).dtype
    assert x.dtype != np.float64
    assert x.dtype.is_compatible_with("float32")
    with pytest.raises(DTypeError):
        x.dtype.is_compatible_with("nonsense")
    assert af.uint8.limits == (0, 255)
    assert af.float32.limits == (0, 1)
    with pytest.raises(DTypeError, match="limits"):
        _ = af.complex64.limits
