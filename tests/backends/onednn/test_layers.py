"""Layers by oneDNN against NumPy's: equal results for all shapes, numbers and threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn import batch_products, layer_norm
from aioflow_onednn.library import library
from tests.backends.onednn.random_cases import Case, body
from tests.backends.onednn.random_layers import layers
from tests.backends.onednn.stress import shrink

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make small arrays go to oneDNN and to several threads, without NumPy's warnings, as where kernels run."""
    shrink(monkeypatch.setattr)
    with np.errstate(all="ignore"):
        yield


def said(case: Case) -> Any:
    return case.op, case.attrs, [getattr(value, "shape", value) for value in case.inputs]


@pytest.mark.parametrize("seed", range(4))
def test_results_are_numpys(seed: int) -> None:
    for case in layers(seed, 100):
        assert case.agrees(), said(case)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_results_are_numpys_for_a_hundred_thousand_shapes() -> None:
    for seed in range(1000, 2000):
        test_results_are_numpys(seed)


def test_several_threads_may_run_one_primitive() -> None:
    some = layers(7, 12)
    with ThreadPoolExecutor(4, initializer=np.seterr, initargs=("ignore",)) as pool:
        assert all(pool.map(Case.agrees, some * 12))


POOL = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": "VALID", "data_format": "NHWC"}


def test_first_of_equal_maxima_gets_the_gradient() -> None:
    image = np.zeros((1, 2, 4, 8), np.float32)
    image[0, 1, 1] = 3.0
    image[0, 1, 0] = 3.0
    grad = np.arange(16, dtype=np.float32).reshape(1, 1, 2, 8)
    expected = np.zeros_like(image)
    expected[0, 1, 0], expected[0, 0, 2] = grad[0, 0]
    made = body("MaxPoolGrad", POOL, (image, image[:, 1:, ::2], grad), reproducible=False)
    np.testing.assert_array_equal(made(image, image[:, 1:, ::2], grad), expected)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -3e38])
def test_maximum_of_nonfinite_elements_equals_numpys(odd: float) -> None:
    image = np.full((1, 4, 4, 8), odd, np.float32)
    image[0, 2:, :, ::2] = -1.0
    made = body("MaxPool", POOL, (image,), reproducible=False)(image)
    np.testing.assert_array_equal(made, body("MaxPool", POOL, (image,), reproducible=True)(image))


def test_nonfinite_gradient_goes_only_to_the_maximum() -> None:
    image = np.random.default_rng(3).standard_normal((2, 8, 8, 8), np.float32)
    grad = np.full((2, 4, 4, 8), np.nan, np.float32)
    grad[1] = np.inf
    made = body("MaxPool", POOL, (image,), reproducible=True)(image)
    results = [body("MaxPoolGrad", POOL, (image, made, grad), reproducible=r)(image, made, grad) for r in (True, False)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -3e38])
def test_nonfinite_elements_in_a_softmax(op: str, odd: float) -> None:
    logits = np.random.default_rng(4).standard_normal((40, 24), np.float32)
    logits[3, 5], logits[7], logits[9, ::2] = odd, odd, odd
    expected, made = (body(op, {}, (logits,), reproducible=exact)(logits) for exact in (True, False))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_nonfinite_elements_affect_only_their_channel_in_batch_norm() -> None:
    x = np.random.default_rng(5).standard_normal((4, 6, 6, 24), np.float32)
    x[1, 2, 3, 4], x[2, 0, 0, 7] = np.nan, np.inf
    vectors = np.ones((4, 24), np.float32)
    for is_training in (True, False):
        attrs = {"is_training": is_training, "U": af.float32}
        expected, made = (
            body("FusedBatchNormV3", attrs, (x, *vectors), reproducible=e)(x, *vectors) for e in (True, False)
        )
        np.testing.assert_allclose(made[0], expected[0], rtol=1e-4, atol=1e-5)
        assert np.isnan(made[0][..., 4]).all() == is_training


def test_statistics_of_many_elements_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single float32 sum over all elements would be off by a percent."""
    monkeypatch.undo()
    x = np.random.default_rng(6).standard_normal((8, 250, 400, 2), np.float32) + np.float32(98)
    vectors = np.ones((4, 2), np.float32)
    inputs, attrs = (x, *vectors), {"is_training": True, "U": af.float32}
    made, _, _, mean, variance, _ = body("FusedBatchNormV3", attrs, inputs, reproducible=False)(*inputs)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, exact.var(axis=(0, 1, 2)), rtol=1e-4)
    assert abs(float(made.mean(dtype=np.float64)) - 1) < 1e-3


@pytest.mark.parametrize("is_training", [True, False])
def test_gradient_of_many_elements_is_exact(monkeypatch: pytest.MonkeyPatch, is_training: bool) -> None:
    monkeypatch.undo()
    x = np.random.default_rng(6).standard_normal((8, 250, 400, 2), np.float32)
    grad = np.full_like(x, 1 / 3)
    scale, mean, variance = (
        np.full(2, 3, np.float32),
        *(f(x, axis=(0, 1, 2), dtype=np.float64) for f in (np.mean, np.var)),
    )
    inputs = (grad, x, scale, mean.astype(np.float32), variance.astype(np.float32), scale)
    attrs = {"is_training": is_training, "U": af.float32, "epsilon": 1e-3}
    made, by_scale, by_shift, *_ = body("FusedBatchNormGradV3", attrs, inputs, reproducible=False)(*inputs)
    count, factor = x.size // 2, 1 / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(by_shift, np.full(2, count / 3), rtol=3e-5)
    np.testing.assert_allclose(by_scale, np.zeros(2), atol=3e-5 * count)
    expected = np.zeros(2) if is_training else factor
    np.testing.assert_allclose(made.reshape(-1, 2), np.broadcast_to(expected, (count, 2)), rtol=1e-5, atol=1e-4)


def test_onednn_computes_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this check the other tests could compare NumPy with itself."""
    asked = 0
    known = library().execute

    def execute(*args: Any) -> None:
        nonlocal asked
        asked += 1
        known(*args)

    monkeypatch.setattr(library(), "execute", execute)
    # With one thread NumPy's products are faster, and oneDNN would not be called.
    monkeypatch.setattr(batch_products, "thread_count", lambda: 2)
    ops: dict[str, int] = {}
    for case in layers(3, 200):
        before = asked
        body(case.op, case.attrs, case.inputs, reproducible=False)(*case.inputs)
        ops[case.op] = ops.get(case.op, 0) + asked - before
    assert all(ops.values()), ops


def test_shape_error_is_the_same_as_numpys() -> None:
    image, wrong = np.ones((1, 8, 8, 4), np.float32), np.ones((1, 3, 4, 4), np.float32)
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("MaxPool", (image[0],)),
        ("AvgPool", (image[0],)),
        ("MaxPoolGrad", (image, wrong, wrong)),
        ("AvgPoolGrad", (image.shape, wrong)),
    ]
    for op, inputs in cases:
        assert refusal(op, inputs, True) == refusal(op, inputs, False)


def refusal(op: str, inputs: tuple[Any, ...], reproducible: bool) -> str:
    with pytest.raises((af.errors.OpError, ValueError)) as refused:
        body(op, POOL, inputs, reproducible=reproducible)(*inputs)
    return str(refused.value)


def test_layer_normalization_of_a_graph_is_computed_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, normalized = [], layer_norm.normalized

    def watched(*args: Any) -> Any:
        calls.append(args[3])
        return normalized(*args)

    monkeypatch.setattr(layer_norm, "normalized", watched)
    rng = np.random.default_rng(8)
    given, vectors = rng.standard_normal((4, 9, 30), np.float32), rng.standard_normal((2, 30), np.float32)
    with af.Graph().as_default(), af.Session() as session:
        x = af.placeholder(af.float32, [None, 9, 30])
        deviation = x - af.reduce_mean(x, -1, keepdims=True)
        variance = af.reduce_mean(af.square(deviation), -1, keepdims=True)
        made = session.run_sync(deviation * af.rsqrt(variance + 0.25) * vectors[0] + vectors[1], {x: given})
    wide = given - given.mean(-1, keepdims=True, dtype=np.float64)
    expected = wide / np.sqrt(wide.var(-1, keepdims=True) + 0.25) * vectors[0] + vectors[1]
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    assert calls == [0.25]
