"""Activations, bias, softmax, L2 loss, dropout and embeddings: values, errors, and gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.errors import AioflowError, DTypeError, InvalidArgumentError
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from aioflow.typing import ImageFormat
from tests.support.dense import dense


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def value_of(build: Callable[..., Any], *arrays: Any) -> Any:
    with aioflow.Graph().as_default():
        made = build(*(aioflow.constant(a) for a in arrays))
        return evaluate(made)[:] if isinstance(made, list | tuple) else evaluate([made])[0]


def run_fed(build: Callable[..., Any], *arrays: Any) -> Any:
    """Return the value of `build` for fed arrays, without static shapes."""
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype) for a in arrays]
        return evaluate([build(*xs)], dict(zip(xs, arrays, strict=True)))[0]


def test_selu_keeps_mean_and_variance() -> None:
    made = value_of(aioflow.nn.selu, array(200_000))
    assert abs(made.mean()) < 0.02
    assert abs(made.var() - 1) < 0.02


@pytest.mark.parametrize("size", [1, 5, 2048, 2049, 6144, 10_000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_relu_of_every_size_keeps_nan_and_its_input(size: int, dtype: str) -> None:
    x = (array(size) * 5).astype(dtype)
    if dtype != "int32":
        x[size // 2] = np.nan
    before = x.copy()
    np.testing.assert_array_equal(value_of(aioflow.nn.relu, x), np.maximum(x, 0))
    np.testing.assert_array_equal(x, before)
    with aioflow.Graph().as_default():
        feed = aioflow.placeholder(dtype, [None, 2])
        wide = np.stack([x, x], 1)[::-1]  # not contiguous
        np.testing.assert_array_equal(evaluate([aioflow.nn.relu(feed)], {feed: wide})[0], np.maximum(wide, 0))


# tests/parity compares the second derivatives of the others.
SMOOTH: dict[str, Callable[..., Any]] = {
    "leaky_relu steep": lambda x: aioflow.nn.leaky_relu(x, 1.5),
    "softsign": aioflow.nn.softsign,
    "crelu": aioflow.nn.crelu,
    "softmax axis": lambda x: aioflow.nn.softmax(x, axis=0),
    "log_softmax axis": lambda x: aioflow.nn.log_softmax(x, axis=0),
    "l2_loss": aioflow.nn.l2_loss,
}


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivative_equals_central_differences(name: str) -> None:
    def first(x: Any) -> Any:
        y = SMOOTH[name](x)
        return aioflow.gradients(y * y * y, x)[0]

    check_gradients(first, array(3, 4) + 0.01, rtol=1e-4, atol=1e-5)


def test_gradient_of_softsign_grad() -> None:
    check_gradients(lambda dy, x: make("SoftsignGrad", dy, x), array(3, 4), array(3, 4, seed=1))


# -- bias ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 32, 64, 65])
@pytest.mark.parametrize("rows", [1 << 12, 5001, (1 << 18) + 3])
def test_bias_add_of_large_arrays(channels: int, rows: int) -> None:
    x, b = array(rows, channels).astype("float32"), array(channels, seed=1).astype("float32")
    np.testing.assert_array_equal(run_fed(aioflow.nn.bias_add, x, b), x + b)
    if channels > 1:
        with pytest.raises(InvalidArgumentError):
            run_fed(aioflow.nn.bias_add, x, b[:-1])


@pytest.mark.parametrize("shape", [(3, 64), (3, 65), (1, 200), (2, 3, 10), (0, 5), (4, 0), (0, 100)])
def test_softmax_of_short_and_long_rows(shape: tuple[int, ...]) -> None:
    x = array(*shape)
    e = np.exp(x)
    np.testing.assert_allclose(value_of(aioflow.nn.softmax, x), e / e.sum(axis=-1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(run_fed(aioflow.nn.log_softmax, x), np.log(e / e.sum(axis=-1, keepdims=True)), rtol=1e-9)
    turned = np.swapaxes(x, 0, 1)
    np.testing.assert_allclose(
        run_fed(aioflow.nn.softmax, turned), np.exp(turned) / np.exp(turned).sum(-1, keepdims=True), rtol=1e-12
    )


def test_data_format_must_be_a_text() -> None:
    number: Any = 5
    x = aioflow.placeholder("float32", [1, 4, 4, 2])
    kernel = np.ones((1, 1, 2, 1), np.float32)
    calls: list[Callable[[], object]] = [
        lambda: aioflow.nn.conv2d(x, kernel, strides=1, padding="SAME", data_format=number),
        lambda: aioflow.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME", data_format=number),
        lambda: aioflow.nn.max_pool2d(x, 2, 2, "SAME", data_format=number),
        lambda: aioflow.nn.bias_add(x, [1.0, 2.0], data_format=number),
    ]
    for call in calls:
        with pytest.raises(DTypeError, match="data_format"):
            call()


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_bias_add_of_unknown_shapes(data_format: ImageFormat) -> None:
    x = array(2, 3, 4, 3)
    made = run_fed(lambda x, b: aioflow.nn.bias_add(x, b, data_format), x, np.arange(3.0))
    shape = (3, 1, 1) if data_format == "NCHW" else (3,)
    np.testing.assert_array_equal(made, x + np.arange(3.0).reshape(shape))


@pytest.mark.parametrize(
    ("value", "bias", "data_format"),
    [
        ((2, 3), (2,), "NHWC"),
        ((2, 3), (1,), "NHWC"),
        ((3,), (3,), "NHWC"),
        ((2, 3, 4), (4,), "NCHW"),
        ((2, 3), (3, 1), "NHWC"),
    ],
)
def test_bias_add_rejects_shapes_that_do_not_fit(value: Any, bias: Any, data_format: ImageFormat) -> None:
    x, b = np.zeros(value), np.zeros(bias)
    with pytest.raises(InvalidArgumentError) as static:
        value_of(lambda x, b: aioflow.nn.bias_add(x, b, data_format), x, b)
    with pytest.raises(InvalidArgumentError) as dynamic:
        run_fed(lambda x, b: aioflow.nn.bias_add(x, b, data_format), x, b)
    for error in (static.value, dynamic.value):
        assert error.op_type == "BiasAdd"
        assert error.source is not None
        assert error.source.filename == __file__
        assert error.expected is not None
        assert error.actual is not None


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64", "int8", "complex64"])
def test_bias_add_grad_sums_rows(dtype: Any) -> None:
    x = np.round(array(300, 5) * 2).astype(dtype)
    made = value_of(lambda x: make("BiasAddGrad", x), x)
    assert made.dtype == x.dtype
    wide = np.complex128 if dtype == "complex64" else np.float64
    expected = x.astype(wide).sum(axis=0)
    if dtype == "int8":
        expected = x.sum(axis=0, dtype="int8")
    np.testing.assert_allclose(made.astype(wide), expected, rtol=1e-2 if x.dtype.itemsize == 2 else 1e-6)


# -- softmax ---------------------------------------------------------------------------------------------


def test_softmax_rejects_wrong_ranks_and_axes() -> None:
    refused: list[Callable[[], Any]] = [
        lambda: aioflow.nn.softmax(np.float32(3)),
        lambda: aioflow.nn.softmax(np.zeros((2, 3), "f"), axis=2),
        lambda: aioflow.nn.softmax(np.zeros((2, 3), "f"), axis=0, dim=1),
    ]
    for build in refused:
        with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError) as info:
            build()
        assert info.value.expected is not None


def test_wrong_dtypes_are_refused() -> None:
    for build in (aioflow.nn.softmax, aioflow.nn.elu, aioflow.nn.l2_loss):
        with pytest.raises(InvalidArgumentError):
            build(np.arange(3))
    with pytest.raises(DTypeError):
        aioflow.nn.bias_add(np.zeros((2, 3), "f"), aioflow.constant([1, 2, 3]))


def test_l2_loss() -> None:
    x = array(30, 40)
    assert value_of(aioflow.nn.l2_loss, x) == pytest.approx((x * x).sum() / 2)
    assert value_of(aioflow.nn.l2_loss, np.float32(3)) == 4.5
    half = value_of(aioflow.nn.l2_loss, np.full(1000, 0.5, np.float16))
    assert half.dtype == np.float16
    assert half == 125


# -- dropout ---------------------------------------------------------------------------------------------


def test_dropout_scales_kept_elements() -> None:
    made = value_of(lambda x: aioflow.nn.dropout(x, rate=0.3, seed=1), np.ones((300, 200), np.float32))
    assert set(np.unique(made)) == {np.float32(0), np.float32(1 / 0.7)}
    assert abs((made == 0).mean() - 0.3) < 0.01


def test_dropout_gradient_has_the_same_mask() -> None:
    with aioflow.Graph().as_default() as graph:
        x = aioflow.constant(array(40, 50) + 10)
        y = aioflow.nn.dropout(x, rate=0.5, seed=1)
        before = graph.version
        grad = dense(aioflow.gradients(y, x))[0]
        assert graph.version - before <= 8  # no nodes are made for the random part
        a, b, c = evaluate([x, y, grad])
    np.testing.assert_allclose(b, a * c)
    assert {0.0, 2.0} == set(np.unique(c))


def test_dropout_with_noise_shape_and_tensor_rate() -> None:
    x = np.ones((50, 60), np.float32)
    made = value_of(lambda x: aioflow.nn.dropout(x, rate=0.5, noise_shape=[None, 1]), x)
    assert ((made == 0).all(axis=1) | (made == 2).all(axis=1)).all()
    with aioflow.Graph().as_default():
        rate = aioflow.placeholder("float32", [])
        y = aioflow.nn.dropout(x, rate=rate)
        for share in (0.0, 0.5, 0.9):
            made = evaluate([y], {rate: share})[0]
            assert abs((made == 0).mean() - share) < 0.06
            kept = made[made != 0]
            np.testing.assert_allclose(kept, 1 / (1 - share), rtol=1e-5)


@pytest.mark.parametrize(
    "how", [{"rate": 1.0}, {"rate": -0.1}, {"keep_prob": 0.0}, {}, {"rate": 0.5, "keep_prob": 0.5}]
)
def test_dropout_rejects_wrong_rates(how: Any) -> None:
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError):
        aioflow.nn.dropout(np.ones(3, np.float32), **how)


def test_dropout_of_integers_is_refused() -> None:
    with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError):
        aioflow.nn.dropout(np.arange(3), rate=0.5)


# -- embeddings -----------------------------------------------------------------------------------------


def test_embedding_gradient_is_sparse() -> None:
    table = aioflow.placeholder("float32", [1000, 4])
    looked_up = aioflow.nn.embedding_lookup(table, [3, 5, 3])
    grad = aioflow.gradients(looked_up, table)[0]
    assert isinstance(grad, aioflow.IndexedSlices)


def test_embedding_lookup_rejects_wrong_arguments() -> None:
    refused: list[Callable[[], Any]] = [
        lambda: aioflow.nn.embedding_lookup([], [1]),
        lambda: aioflow.nn.embedding_lookup([np.ones((2, 2)), np.ones((2, 2))], [1], "other"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: aioflow.nn.embedding_lookup([np.ones((1, 2)), np.ones((0, 2))], [1], "div"),
    ]
    with aioflow.Graph().as_default():
        for build in refused:
            with pytest.raises(InvalidArgumentError):
                build()
    for ids in ([4], [-1]):
        with pytest.raises(AioflowError) as info:
            value_of(lambda t, ids=ids: aioflow.nn.embedding_lookup(t, ids), np.ones((4, 2)))
        assert info.value.node is not None  # type: ignore[attr-defined]  # every OpError has it
