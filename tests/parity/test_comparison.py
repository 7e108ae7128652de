"""Comparisons, float classification and logic against TensorFlow: values, dtypes and static shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

RNG = np.random.default_rng(21)
FLOATS = ["float16", "bfloat16", "float32", "float64"]
REALS = [*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((2, 1, 4), (3, 1)),
    ((), (3,)),
    ((), ()),
    ((1,), (1,)),
    ((0, 3), (1, 3)),
]


def values(shape: tuple[int, ...], dtype: str) -> Any:
    """Return random values with few distinct ones, so that many elements are equal."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = RNG.integers(0, 3, shape)
    return (x + 1j * RNG.integers(0, 2, shape) if dtype.startswith("complex") else x).astype(kind)


def public(name: str) -> Callable[..., Any]:
    return lambda m, *xs: getattr(m, name)(*xs)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
def test_order_comparisons(parity: Any, name: str, dtype: str) -> None:
    for a, b in SHAPES if dtype in ("float32", "int64") else SHAPES[:3]:
        parity(public(name), values(a, dtype), values(b, dtype))


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bool", "string"])
@pytest.mark.parametrize("name", ["equal", "not_equal"])
def test_equality_of_unordered_dtypes(parity: Any, name: str, dtype: str) -> None:
    for a, b in SHAPES:
        x, y = (values(s, "int8" if dtype == "string" else dtype) for s in (a, b))
        if dtype == "string":
            words = np.array([b"", b"a", b"a\0"], dtype=object)
            x, y = words[x], words[y]
            x, y = np.asarray(x, dtype=object), np.asarray(y, dtype=object)
        parity(public(name), x, y, static=dtype != "string")


@pytest.mark.parametrize("name", ["Equal", "NotEqual"])
@pytest.mark.parametrize("shapes", [((2, 3), (4,)), ((2, 3), (3,)), ((2,), (3,)), ((1, 3), (2, 1))])
@pytest.mark.parametrize("opened", [False, True])
def test_equality_of_incompatible_shapes(parity: Any, name: str, shapes: Any, opened: bool) -> None:
    def build(m: Any, x: Any, y: Any) -> Any:
        if m.__name__ == "aioflow":
            return m.extend.make(name, x, y, incompatible_shape_error=False)
        return getattr(m.raw_ops, name)(x=x, y=y, incompatible_shape_error=False)

    x, y = (values(s, "int32") for s in shapes)
    # TensorFlow declares [None] for two unknown sizes, although the result is a scalar if they are incompatible.
    known = shapes not in (((2,), (3,)), ((1, 3), (2, 1)))
    parity(build, x, y, shapes=[(None, *x.shape[1:]), y.shape] if opened else None, static=known)


@pytest.mark.parametrize("name", ["less", "equal", "logical_and"])
@pytest.mark.parametrize(
    "shapes", [((None, 3), (3,)), ((None,), (1,)), ((None,), (None,)), (None, (2,)), ((None, 1), (4,))]
)
def test_static_shapes(parity: Any, name: str, shapes: Any) -> None:
    sizes = [(2,) if s is None else tuple(2 if d is None else d for d in s) for s in shapes]
    parity(public(name), *(values(s, "bool" if "logical" in name else "int32") for s in sizes), shapes=shapes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["is_nan", "is_inf", "is_finite"])
def test_classes_of_floats(parity: Any, name: str, dtype: str) -> None:
    x = np.array([[0.0, -1.5, np.nan], [np.inf, -np.inf, 1e4]])
    parity(public(name), x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
    parity(public(name), np.zeros((0, 2), "float32"))
    parity(public(name), np.float32(np.nan))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic(parity: Any, name: str) -> None:
    for a, b in SHAPES:
        parity(public(name), values(a, "bool"), values(b, "bool"))


def test_not_and_operators(parity: Any) -> None:
    x, y = values((3, 4), "bool"), values((4,), "bool")
    parity(public("logical_not"), x)
    parity(lambda m, x, y: [x & y, x | y, x ^ y, ~x, x & True, False | x], x, y)
    z = values((3, 4), "float32")
    parity(lambda m, z: [z < 1, z <= 1, z > 1, z >= 1], z)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tolerance", [None, 0.5, 1.5])
def test_approximate_equality(parity: Any, dtype: str, tolerance: float | None) -> None:
    x, y = values((3, 4), dtype), values((3, 4), dtype)
    y = (y + RNG.choice([0, 1e-6, 1e-3, 0.7], y.shape)).astype(dtype)

    def build(m: Any, x: Any, y: Any) -> Any:
        given = {} if tolerance is None else {"tolerance": tolerance}
        if m.__name__ == "aioflow":
            return m.extend.make("ApproximateEqual", x, y, **given)
        return m.raw_ops.ApproximateEqual(x=x, y=y, **given)

    parity(build, x, y)
