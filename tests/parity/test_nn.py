"""Activations, bias, softmax, L2 loss and small layers against TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

SHAPES = [(), (1,), (0, 3), (7,), (3, 4), (2, 3, 4, 5)]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-7}
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def array(shape: tuple[int, ...], dtype: str = "float32", scale: float = 3.0, seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def within(dtype: str) -> dict[str, float]:
    return {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda m, x: m.nn.relu(x),
    "relu6": lambda m, x: m.nn.relu6(x),
    "leaky_relu": lambda m, x: m.nn.leaky_relu(x),
    "leaky_relu steep": lambda m, x: m.nn.leaky_relu(x, alpha=1.5),
    "elu": lambda m, x: m.nn.elu(x),
    "selu": lambda m, x: m.nn.selu(x),
    "softplus": lambda m, x: m.nn.softplus(x),
    "softsign": lambda m, x: m.nn.softsign(x),
    "l2_loss": lambda m, x: m.nn.l2_loss(x),
    "zero_fraction": lambda m, x: m.nn.zero_fraction(x),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(parity: Any, name: str, dtype: str) -> None:
    for seed, shape in enumerate(SHAPES):
        parity(ACTIVATIONS[name], array(shape, dtype, seed=seed), **within(dtype))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("name", ["relu", "relu6"])
def test_activation_of_integers(parity: Any, name: str, dtype: str) -> None:
    values = np.arange(12).reshape(3, 4)
    values = values if dtype.startswith("u") else values - 5
    parity(ACTIVATIONS[name], values.astype(dtype))


def test_leaky_relu_of_integers(parity: Any) -> None:
    parity(ACTIVATIONS["leaky_relu"], np.arange(-3, 3))


@pytest.mark.parametrize("name", ["relu", "relu6", "leaky_relu", "elu", "selu", "softplus", "softsign"])
def test_activation_of_extremes(parity: Any, name: str) -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 6.0, 88.0, -88.0, 1e-30, -1e-8], np.float32)
    parity(ACTIVATIONS[name], values, grad=False)


@pytest.mark.parametrize("shape", [(2048,), (3, 2048), (4096, 2), (4097,)])
def test_relu_of_large_arrays(parity: Any, shape: tuple[int, ...]) -> None:
    for dtype in ("float32", "float64"):
        parity(ACTIVATIONS["relu"], array(shape, dtype))


@pytest.mark.parametrize("name", ["relu", "relu6", "leaky_relu", "elu", "selu", "softplus"])
def test_second_derivative(parity: Any, name: str) -> None:
    def twice(m: Any, x: Any) -> Any:
        y = ACTIVATIONS[name](m, x)
        return m.gradients(y * y * y, x)[0]

    parity(twice, array((4, 3), "float64"))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_crelu(parity: Any, axis: int) -> None:
    parity(lambda m, x: m.nn.crelu(x, axis=axis), array((2, 3)))


def raw(tf_name: str, *names: str, **attrs: Any) -> Callable[..., Any]:
    """Return a builder of the op itself: TensorFlow's raw builder or ours."""

    def build(m: Any, *tensors: Any) -> Any:
        if hasattr(m, "raw_ops") and m.__name__ != "aioflow":
            return getattr(m.raw_ops, tf_name)(**dict(zip(names, tensors, strict=True)), **attrs)
        from aioflow.ops.apply import apply_op

        return apply_op(tf_name, *tensors, **attrs)

    return build


@pytest.mark.parametrize(
    ("op", "second"),
    [
        ("ReluGrad", "features"),
        ("Relu6Grad", "features"),
        ("LeakyReluGrad", "features"),
        ("EluGrad", "outputs"),
        ("SeluGrad", "outputs"),
        ("SoftplusGrad", "features"),
        ("SoftsignGrad", "features"),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_op(parity: Any, op: str, second: str, dtype: str) -> None:
    differentiable = op != "SoftsignGrad"  # TensorFlow has no gradient of it
    for shape in [(), (0, 2), (3, 4)]:
        x = array(shape, dtype, 4.0, 1)
        x = np.where(x == 6, x + x, x).astype(x.dtype)
        parity(raw(op, "gradients", second), array(shape, dtype), x, grad=differentiable, **within(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint8", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 4), (2, 3, 4), (2, 3, 4, 5), (2, 2, 2, 2, 3)])
def test_bias_add(parity: Any, dtype: str, shape: tuple[int, ...]) -> None:
    value, bias = array(shape, seed=1), array(shape[-1:], seed=2)
    if dtype == "uint8":
        value, bias = abs(value), abs(bias)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    arrays = (value.astype(kind), bias.astype(kind))
    tolerance = within(dtype) if dtype in FLOATS else {}
    if dtype in ("float16", "bfloat16"):
        tolerance = {"rtol": 5e-2, "atol": 5e-2}  # TensorFlow sums 16-bit floats in 16 bits
    parity(lambda m, x, b: m.nn.bias_add(x, b), *arrays, **tolerance)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)])
def test_bias_add_with_channels_first(parity: Any, shape: tuple[int, ...]) -> None:
    parity(lambda m, x, b: m.nn.bias_add(x, b, data_format="NCHW"), array(shape), array(shape[1:2]))
    parity(raw("BiasAddGrad", "out_backprop", data_format="NCHW"), array(shape))


def test_bias_add_grad_and_v1(parity: Any) -> None:
    parity(raw("BiasAddGrad", "out_backprop"), array((4, 5, 3)))
    parity(raw("BiasAddV1", "value", "bias"), array((4, 5, 3)), array((3,)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(parity: Any, name: str, dtype: str) -> None:
    for shape in [(1,), (5,), (3, 4), (0, 4), (3, 1), (2, 3, 4)]:
        parity(lambda m, x: getattr(m.nn, name)(x), array(shape, dtype), **within(dtype))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_along_an_axis(parity: Any, name: str, axis: int) -> None:
    parity(lambda m, x: getattr(m.nn, name)(x, axis=axis), array((2, 3, 4)))


def test_softmax_of_extremes(parity: Any) -> None:
    values = np.array([[1e30, 1, 2], [-np.inf, 0, 1], [1000, 1001, 999], [-1e30, -1e30, -1e30]], np.float32)
    parity(lambda m, x: [m.nn.softmax(x), m.nn.log_softmax(x)], values, grad=False)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_second_derivative(parity: Any, name: str) -> None:
    def twice(m: Any, x: Any) -> Any:
        y = getattr(m.nn, name)(x)
        return m.gradients(y * y, x)[0]

    parity(twice, array((4, 3), "float64"))


def test_layers(parity: Any) -> None:
    x, w, b = array((3, 4)), array((4, 5)), array((5,))
    parity(lambda m, x, w, b: m.nn.xw_plus_b(x, w, b), x, w, b)
    parity(lambda m, x, w, b: m.nn.relu_layer(x, w, b), x, w, b)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("ids", [[0, 2, 2, 5], [[1, 4], [3, 3]], 3, np.zeros((0,), int)])
def test_embedding_lookup(parity: Any, ids: Any, index: Any) -> None:
    table, numbers = array((6, 3)), np.asarray(ids).astype(index)
    parity(lambda m, t, i: m.nn.embedding_lookup(t, i), table, numbers)
    parity(lambda m, t, i: m.nn.embedding_lookup(t, i, max_norm=1.5), table, numbers, static=False)


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("ids", [[0, 2, 2, 6], [[1, 4], [3, 5]], np.zeros((0,), np.int32)])
def test_embedding_lookup_in_partitioned_tables(parity: Any, ids: Any, strategy: str) -> None:
    tables = [array((3, 2), seed=1), array((2, 2), seed=2), array((2, 2), seed=3)]

    def build(m: Any, a: Any, b: Any, c: Any, i: Any) -> Any:
        return m.nn.embedding_lookup([a, b, c], i, partition_strategy=strategy)

    parity(build, *tables, np.asarray(ids, np.int32), static=False)


def test_dropout_with_rate_zero(parity: Any) -> None:
    parity(lambda m, x: m.nn.dropout(x, rate=0.0), array((3, 4)))
    parity(lambda m, x: m.nn.dropout(x, keep_prob=1.0), array((3, 4)))
