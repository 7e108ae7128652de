"""Reductions and scans against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.samples import sample

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]
REDUCTIONS = ["reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min"]


def tolerance(dtype: str) -> dict[str, float]:
    if dtype == "bfloat16":
        return {"rtol": 2e-2, "atol": 2e-2}
    return {"rtol": 3e-3, "atol": 3e-3} if dtype == "float16" else {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("dtype", FLOATS + INTS + COMPLEX)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_dtypes(parity: Any, name: str, dtype: str) -> None:
    if dtype in COMPLEX and name in ("reduce_max", "reduce_min"):
        pytest.skip("complex numbers have no order")
    x = sample(dtype, (3, 4))
    parity(lambda m, t: getattr(m, name)(t, axis=1), x, grad=dtype in ("float32", "float64"), **tolerance(dtype))


AXES = [
    ((), None, False),
    ((), [], False),
    ((5,), None, False),
    ((5,), None, True),
    ((5,), 0, False),
    ((5,), -1, True),
    ((1,), 0, False),
    ((3, 4), None, False),
    ((3, 4), None, True),
    ((3, 4), 0, False),
    ((3, 4), 0, True),
    ((3, 4), 1, False),
    ((3, 4), -1, True),
    ((3, 4), [], False),
    ((3, 4), [1, 0], False),
    ((2, 3, 4), [0, 1], False),
    ((2, 3, 4), [1, 2], False),
    ((2, 3, 4), [0, 2], False),
    ((2, 3, 4), [-1, 0], True),
    ((2, 3, 4), 1, False),
    ((2, 1, 4), 1, True),
    ((2, 3, 4, 5), [0, 1, 2], False),
    ((2, 3, 4, 5), [2, 3], True),
]


@pytest.mark.parametrize("name", [*REDUCTIONS, "reduce_logsumexp"])
@pytest.mark.parametrize(("shape", "axis", "keepdims"), AXES)
def test_axes(parity: Any, name: str, shape: tuple[int, ...], axis: Any, keepdims: bool) -> None:
    x = sample("float32", shape)
    parity(lambda m, t: getattr(m, name)(t, axis=axis, keepdims=keepdims), x)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("shape", "axis"), [((0,), 0), ((0, 3), 0), ((0, 3), 1), ((3, 0), 1), ((2, 0, 3), [0, 1])])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_empty(parity: Any, name: str, shape: tuple[int, ...], axis: Any, dtype: str) -> None:
    x = np.zeros(shape, dtype)
    # TensorFlow divides by zero in the gradient of an empty mean, although that gradient has no elements.
    parity(lambda m, t: getattr(m, name)(t, axis=axis), x, grad=name != "reduce_mean")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shapes", [(None,), ((None, None),), ((None, 4),), ((3, None),)])
@pytest.mark.parametrize("axis", [None, 0, 1, [0, 1]])
def test_unknown_shapes(parity: Any, name: str, shapes: Any, axis: Any) -> None:
    x = sample("float32", (3, 4))
    parity(lambda m, t: getattr(m, name)(t, axis=axis), x, shapes=list(shapes))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [False, True])
def test_fed_axes(parity: Any, name: str, keepdims: bool) -> None:
    x = sample("float32", (2, 3, 4))
    parity(lambda m, t, a: getattr(m, name)(t, axis=a, keepdims=keepdims), x, np.array([2, 0], np.int32))
    # TensorFlow's gradient does not accept fed int64 axes.
    parity(lambda m, t, a: getattr(m, name)(t, axis=a, keepdims=keepdims), x, np.array(-2, np.int64), grad=False)


def test_ties_and_infinities(parity: Any) -> None:
    x = np.array([[1, 3, 3], [2, 2, 2], [np.inf, np.inf, 0], [-np.inf, -np.inf, -np.inf]], np.float32)
    for name in ("reduce_max", "reduce_min"):
        parity(lambda m, t, name=name: getattr(m, name)(t, axis=1), x)
    parity(lambda m, t: m.reduce_logsumexp(t, axis=1), x, grad=False)
    parity(lambda m, t: m.reduce_max(t), np.array([1, np.nan, 2], np.float32), grad=False)


def test_zeros_in_products(parity: Any) -> None:
    x = np.array([[1, 0, 3], [0, 0, 2], [2, 3, 4]], np.float32)
    parity(lambda m, t: m.reduce_prod(t, axis=1), x)
    parity(lambda m, t: m.reduce_prod(t), x)


@pytest.mark.parametrize("name", ["reduce_all", "reduce_any"])
@pytest.mark.parametrize(("shape", "axis", "keepdims"), [*AXES, ((0, 3), 0, False), ((3, 0), 1, True)])
def test_bools(parity: Any, name: str, shape: tuple[int, ...], axis: Any, keepdims: bool) -> None:
    x = np.random.default_rng(1).random(shape) < 0.5
    parity(lambda m, t: getattr(m, name)(t, axis=axis, keepdims=keepdims), x)


@pytest.mark.parametrize("name", ["reduce_euclidean_norm", "reduce_variance", "reduce_std"])
@pytest.mark.parametrize(("shape", "axis", "keepdims"), [a for a in AXES if a[0]])
def test_math_names(parity: Any, name: str, shape: tuple[int, ...], axis: Any, keepdims: bool) -> None:
    x = sample("float32", shape)
    # the deviation of single elements is 0, and its gradient 0 / 0
    grad = not (name == "reduce_std" and (shape == (1,) or axis == [] or shape == (2, 1, 4)))
    parity(lambda m, t: getattr(m.math, name)(t, axis=axis, keepdims=keepdims), x, grad=grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "int32"])
def test_euclidean_norm_dtypes(parity: Any, dtype: str) -> None:
    x = sample(dtype, (3, 4))
    parity(lambda m, t: m.math.reduce_euclidean_norm(t, axis=1), x, grad=dtype == "float64", **tolerance(dtype))


def test_complex_variance(parity: Any) -> None:
    x = sample("complex64", (3, 4))
    parity(lambda m, t: m.math.reduce_variance(t, axis=0), x, grad=False)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "complex64"])
@pytest.mark.parametrize("axis", [None, 0, [0, 1]])
def test_count_nonzero(parity: Any, dtype: str, axis: Any) -> None:
    x = np.random.default_rng(2).integers(0, 2, (3, 4)).astype(dtype)
    parity(lambda m, t: m.count_nonzero(t, axis=axis), x)
    parity(lambda m, t: m.count_nonzero(t, axis=axis, keepdims=True, dtype="int32"), x)


def test_count_nonzero_strings(parity: Any) -> None:
    parity(lambda m, t: m.count_nonzero(t), np.array([b"a", b"", b"b"], object))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 4), -2), ((0, 3), 0), ((1,), 0)]
)
def test_scans(parity: Any, name: str, exclusive: bool, reverse: bool, shape: tuple[int, ...], axis: int) -> None:
    x = sample("float32", shape)
    parity(lambda m, t: getattr(m, name)(t, axis, exclusive=exclusive, reverse=reverse), x)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32", "int64", "uint8", "complex64"])
def test_scan_dtypes(parity: Any, name: str, dtype: str) -> None:
    x = sample(dtype, (3, 4))
    parity(lambda m, t: getattr(m, name)(t, 1), x, grad=dtype == "float64", **tolerance(dtype))


def test_cumprod_gradient_with_zeros_matches_tensorflow(parity: Any) -> None:
    """Keep TensorFlow's quirk: a product with a zero factor yields no gradient by that factor."""
    parity(lambda m, t: m.cumprod(t), np.array([2, 0, 3], np.float32))


def test_deprecated_argument_names(parity: Any) -> None:
    x = sample("float32", (3, 4))
    parity(lambda m, t: m.reduce_sum(t, reduction_indices=[1], keep_dims=True), x)
    parity(lambda m, t: m.count_nonzero(input=t, reduction_indices=0), x)
