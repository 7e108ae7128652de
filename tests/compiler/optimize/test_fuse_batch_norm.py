"""Batch normalization folded into the convolution before it: when it is folded, and how far values may differ."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.fold_batch_norm import fold_batch_norm
from aioflow.compiler.verify import verify
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.folding import fold
from tests.compiler.optimize.fused_runs import never, ops, pruned, run

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def normalised(
    image: Any, kernel: Any, data_format: str = "NHWC", depthwise: bool = False, training: bool = False
) -> Any:
    """Return a convolution and its normalization, [y, mean, variance, …]."""
    channels = int(np.prod(kernel.shape.as_list()[2:])) if depthwise else kernel.shape.as_list()[3]
    convolve = af.raw_ops.DepthwiseConv2dNative if depthwise else af.raw_ops.Conv2D
    made = convolve(input=image, filter=kernel, strides=[1, 1, 1, 1], padding="SAME", data_format=data_format)
    return af.raw_ops.FusedBatchNormV3(
        x=made,
        scale=af.constant(normal(channels)),
        offset=af.constant(normal(channels)),
        mean=af.constant(normal(channels)),
        variance=af.constant(np.abs(normal(channels)) + 0.1),
        is_training=training,
        data_format=data_format,
        epsilon=1e-3,
    )


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_constant_filters_are_folded_at_compile_time(data_format: str, depthwise: bool) -> None:
    shape = (2, 9, 8, 6) if data_format == "NHWC" else (2, 6, 9, 8)
    image = af.placeholder("float32", [None, *shape[1:]])
    kernel = af.constant(normal(3, 3, 6, 2 if depthwise else 5))
    before = pruned([normalised(image, kernel, data_format, depthwise)[0]], [image])
    after = verify(fold_batch_norm(before, fold))
    assert ops(after) == {"DepthwiseConv2dNative" if depthwise else "Conv2D": 1, "BiasAdd": 1}
    feeds = {image: normal(*shape)}
    (expected,), (value,) = run(before, feeds), run(after, feeds)
    assert np.abs(value - expected).max() <= 2e-6 * np.abs(expected).max()
    assert not np.array_equal(value, expected)  # the values differ, so the pass must be off by default


def test_variable_filters_are_scaled_in_each_step() -> None:
    image = af.placeholder("float32", [1, 5, 5, 3])
    kernel = af.Variable(normal(1, 1, 3, 4))
    fetches, resources = [normalised(image, kernel)[0]], ResourceManager()
    run(pruned([], [], [kernel.initializer]), {}, resources)
    before = pruned(fetches, [image])
    after = verify(fold_batch_norm(before, fold))
    changes = Counter({"Mul": 1, "BiasAdd": 1})  # one product, on the filter
    assert ops(after) == ops(before) - Counter({"FusedBatchNormV3": 1}) + changes
    feeds = {image: normal(1, 5, 5, 3)}
    for _ in range(2):
        (expected,), (value,) = run(before, feeds, resources), run(after, feeds, resources)
        assert np.abs(value - expected).max() <= 2e-6 * np.abs(expected).max()
        run(pruned([], [], [kernel.assign_add(af.ones([1, 1, 3, 4])).op]), {}, resources)


def test_batch_norm_is_folded_without_an_evaluation() -> None:
    image = af.placeholder("float32", [1, 5, 5, 3])
    before = pruned([normalised(image, af.constant(normal(3, 3, 3, 4)))[0]], [image])
    after = verify(fold_batch_norm(before, never))
    assert ops(after)["FusedBatchNormV3"] == 0
    feeds = {image: normal(1, 5, 5, 3)}
    (expected,), (value,) = run(before, feeds), run(after, feeds)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_batch_norms_that_cannot_be_folded() -> None:
    image = af.placeholder("float32", [None, 5, 5, 3])
    kernel = af.constant(normal(3, 3, 3, 4))

    def folded(*fetches: Any) -> bool:
        return ops(fold_batch_norm(pruned(fetches, [image]), fold))["FusedBatchNormV3"] == 0

    assert folded(normalised(image, kernel)[0])
    assert not folded(normalised(image, kernel, training=True)[0])
    y, mean = normalised(image, kernel)[:2]
    assert not folded(y, mean)
    of_any_size = normalised(image, af.placeholder_with_default(kernel, [None, None, 3, 4]))[0]
    for fetches in (
        [y, y.op.inputs[0]],
        [of_any_size],
    ):  # the convolution, fetched or with a filter of unknown size, stays as it is
        after = fold_batch_norm(pruned(fetches, [image]), fold)
        assert ops(after)["BiasAdd"] == 0
        assert ops(after)["Mul"] == 1


def alone(image: Any, **options: Any) -> Any:
    channels = [af.constant(normal(3)), af.constant(normal(3)), af.constant(normal(3)), af.constant(abs(normal(3)))]
    named = dict(zip(("scale", "offset", "mean", "variance"), channels, strict=True))
    return af.raw_ops.FusedBatchNormV3(x=image, **named, **{"is_training": False, **options})


def test_batch_norm_without_a_convolution_is_a_product_and_a_sum() -> None:
    image = af.placeholder("float32", [None, 5, None, 3])
    before = pruned([alone(image)[0]], [image])
    after = verify(fold_batch_norm(before, fold))
    assert ops(after) == {"Mul": 1, "AddV2": 1}
    feeds = {image: normal(2, 5, 4, 3)}
    (expected,), (value,) = run(before, feeds), run(after, feeds)
    assert np.abs(value - expected).max() <= 2e-6 * np.abs(expected).max()


def test_batch_norms_without_a_convolution_that_are_kept() -> None:
    image, unknown = af.placeholder("float32", [None, 3, 5, 3]), af.placeholder("float32", [None] * 4)
    y, mean = alone(image)[:2]
    for fetches in ([alone(image, is_training=True)[0]], [alone(image, data_format="NCHW")[0]], [y, mean]):
        assert ops(fold_batch_norm(pruned(fetches, [image]), fold))["FusedBatchNormV3"] == 1
    assert ops(fold_batch_norm(pruned([alone(unknown)[0]], [unknown]), fold))["FusedBatchNormV3"] == 1


@pytest.mark.parametrize("evaluate", [fold, never])
@pytest.mark.parametrize("taken", [True, False])
def test_batch_norm_in_a_loop_and_a_branch(taken: bool, evaluate: Any) -> None:
    image, choose = af.placeholder("float32", [1, 5, 5, 3]), af.placeholder("bool", [])
    kernel = af.constant(normal(3, 3, 3, 3) / 5)

    def body(i: Any, y: Any) -> Any:
        return i + 1, af.cond(choose, lambda: normalised(y, kernel)[0], lambda: af.tanh(y))

    result = af.while_loop(lambda i, y: i < 3, body, [af.constant(0), image])[1]
    before = pruned([result], [image, choose])
    after = verify(fold_batch_norm(before, evaluate))
    assert ops(after)["FusedBatchNormV3"] == 0
    # A constant without an edge from the loop would be computed outside of it.
    for name, node in after.nodes.items():
        assert node.op != "Const" or name in before.nodes or node.control
    feeds = {image: normal(1, 5, 5, 3), choose: taken}
    (expected,), (value,) = run(before, feeds), run(after, feeds)
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)
