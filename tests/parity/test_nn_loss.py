"""Cross entropies and the losses built of them, against TensorFlow."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.ops.apply import make_list

TOLERANCE = {"float16": 5e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-8}


def array(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(shape) * 2
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def within(dtype: str) -> dict[str, float]:
    return {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}


def probabilities(shape: tuple[int, ...], dtype: str = "float32", axis: int = -1) -> np.ndarray[Any, Any]:
    e: np.ndarray[Any, Any] = np.exp(array(shape, "float64", seed=9))
    e /= e.sum(axis=axis, keepdims=True)
    return e.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(4, 5), (1, 1), (0, 3), (5,), (2, 3, 4)])
def test_softmax_cross_entropy(parity: Any, shape: tuple[int, ...], dtype: str) -> None:
    x, y = array(shape, dtype), probabilities(shape, dtype)
    parity(lambda m, x, y: m.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=x), x, y, **within(dtype))
    parity(lambda m, x, y: m.nn.softmax_cross_entropy_with_logits(labels=y, logits=x), x, y, **within(dtype))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_cross_entropy_along_an_axis(parity: Any, axis: int) -> None:
    """Skip negative axes other than the last, on which TensorFlow fails; tests/ops checks those."""
    x, y = array((2, 3, 4)), probabilities((2, 3, 4), axis=axis)
    parity(lambda m, x, y: m.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=x, axis=axis), x, y)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(4, 5), (1, 1), (0, 3), (5,), (2, 3, 4)])
def test_sparse_softmax_cross_entropy(parity: Any, shape: tuple[int, ...], dtype: str, index: str) -> None:
    labels = np.random.default_rng(1).integers(0, shape[-1], shape[:-1]).astype(index)

    def build(m: Any, x: Any, y: Any) -> Any:
        return m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x)

    parity(build, array(shape, dtype), np.asarray(labels), **within(dtype))


def test_second_derivatives(parity: Any) -> None:
    x, labels = array((4, 3), "float64"), np.array([0, 2, 1, 1])

    def sparse(m: Any, x: Any, y: Any) -> Any:
        loss = m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x)
        return m.gradients(loss * loss, x)[0]

    def dense(m: Any, x: Any) -> Any:
        # No gradient by the labels: TensorFlow omits its part through `backprop`. tests/ops checks ours.
        loss = m.nn.softmax_cross_entropy_with_logits_v2(labels=probabilities((4, 3), "float64"), logits=x)
        return m.gradients(loss * loss, x)[0]

    parity(sparse, x, labels, **within("float64"))
    parity(dense, x, **within("float64"))


def test_backprop_outputs(parity: Any) -> None:
    def sparse(m: Any, x: Any, y: Any) -> Any:
        made = (
            make_list("SparseSoftmaxCrossEntropyWithLogits", x, y)
            if m is aioflow
            else m.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=y)
        )
        return list(made)

    def dense(m: Any, x: Any, y: Any) -> Any:
        made = (
            make_list("SoftmaxCrossEntropyWithLogits", x, y)
            if m is aioflow
            else m.raw_ops.SoftmaxCrossEntropyWithLogits(features=x, labels=y)
        )
        return list(made)

    parity(sparse, array((4, 3)), np.array([0, 2, 1, 1]))
    parity(dense, array((4, 3)), probabilities((4, 3)), grad_of=[0])
    for x, y in [((4, 3), (1, 3)), ((1, 3), (4, 3)), ((4, 1), (4, 3))]:
        parity(dense, array(x), probabilities(y), grad=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementwise_losses(parity: Any, dtype: str) -> None:
    x, y = array((3, 4), dtype), probabilities((3, 4), dtype)
    parity(lambda m, x, y: m.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x), x, y, **within(dtype))
    parity(lambda m, x, y: m.nn.weighted_cross_entropy_with_logits(y, x, 2.5), x, y, **within(dtype))
    parity(lambda m, x, y: m.nn.log_poisson_loss(y, x), x, y, **within(dtype))
    parity(lambda m, x, y: m.nn.log_poisson_loss(3 * y, x, compute_full_loss=True), x, y, **within(dtype))


def test_sigmoid_cross_entropy_at_zero_and_extremes(parity: Any) -> None:
    x = np.array([0.0, -0.0, 1000.0, -1000.0, 88.0], np.float32)
    y = np.array([1.0, 0.0, 0.5, 1.0, 1.0], np.float32)
    parity(lambda m, x, y: m.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x), x, y)


# -- losses ----------------------------------------------------------------------------------------------

LOSSES = {
    "absolute_difference": lambda m, y, x, **k: m.losses.absolute_difference(y, x, **k),
    "mean_squared_error": lambda m, y, x, **k: m.losses.mean_squared_error(y, x, **k),
    "huber_loss": lambda m, y, x, **k: m.losses.huber_loss(y, x, delta=0.7, **k),
    "hinge_loss": lambda m, y, x, **k: m.losses.hinge_loss(y, x, **k),
    "sigmoid_cross_entropy": lambda m, y, x, **k: m.losses.sigmoid_cross_entropy(y, x, **k),
    "sigmoid smoothed": lambda m, y, x, **k: m.losses.sigmoid_cross_entropy(y, x, label_smoothing=0.1, **k),
    "log_loss": lambda m, y, x, **k: m.losses.log_loss(y, m.sigmoid(x), **k),
}
REDUCTIONS = [
    "none",
    "weighted_sum",
    "weighted_mean",
    "weighted_sum_over_batch_size",
    "weighted_sum_by_nonzero_weights",
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_weighted_losses(parity: Any, name: str, reduction: str) -> None:
    labels, x = np.round(probabilities((4, 3)) * 2), array((4, 3))
    column = np.array([[0.0], [1.0], [2.0], [0.5]], np.float32)
    full = np.where(array((4, 3), seed=5) > 0, 1.5, 0).astype(np.float32)
    for weights in (1.0, 0.0, 2.5, column, full, np.float32(3)):
        parity(lambda m, y, x, w=weights: LOSSES[name](m, y, x, weights=w, reduction=reduction), labels, x)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_rows(parity: Any, reduction: str) -> None:
    x, onehot = array((4, 3)), np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
    sparse = np.array([0, 2, 1, 1])
    for weights in (1.0, np.array([0.0, 1.0, 2.0, 0.5], np.float32)):
        how = {"weights": weights, "reduction": reduction}
        parity(lambda m, y, x, how=how: m.losses.softmax_cross_entropy(y, x, **how), onehot, x)
        parity(lambda m, y, x, how=how: m.losses.softmax_cross_entropy(y, x, label_smoothing=0.2, **how), onehot, x)
        parity(lambda m, y, x, how=how: m.losses.sparse_softmax_cross_entropy(y, x, **how), sparse, x)
    how = {"reduction": reduction}
    parity(lambda m, y, x: m.losses.sparse_softmax_cross_entropy(y, x, **how), sparse[:, None], x)
    parity(lambda m, y, x: m.losses.cosine_distance(y, x, axis=1, **how), onehot, x)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_empty_batches(parity: Any, reduction: str) -> None:
    empty = np.zeros((0, 3), np.float32)
    parity(lambda m, y, x: m.losses.mean_squared_error(y, x, reduction=reduction), empty, empty)


def test_collected_losses(parity: Any) -> None:
    def build(m: Any, y: Any, x: Any) -> Any:
        m.losses.mean_squared_error(y, x)
        m.losses.add_loss(m.reduce_sum(x))
        m.add_to_collection(m.GraphKeys.REGULARIZATION_LOSSES, m.nn.l2_loss(x))
        listed = [len(m.losses.get_losses()), len(m.losses.get_regularization_losses())]
        return [
            m.losses.get_total_loss(),
            m.losses.get_total_loss(add_regularization_losses=False),
            m.losses.get_regularization_loss(),
            m.constant(listed),
        ]

    parity(build, array((4, 3)), array((4, 3), seed=1))
