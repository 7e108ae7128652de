"""Cross entropies and weighted losses: hand facts, errors, and gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.ops.apply import make_list
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense as dense_gradients


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def value_of(build: Callable[..., Any], *arrays: Any) -> np.ndarray[Any, Any]:
    with aioflow.Graph().as_default():
        return evaluate([build(*(aioflow.constant(a) for a in arrays))])[0]


def run_fed(build: Callable[..., Any], *arrays: Any) -> Any:
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype) for a in arrays]
        return evaluate([build(*xs)], dict(zip(xs, arrays, strict=True)))[0]


def sparse(y: Any, x: Any) -> Any:
    return aioflow.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x)


def dense(y: Any, x: Any, axis: int = -1) -> Any:
    return aioflow.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=x, axis=axis)


LABELS = np.array([0, 2, 1, 2])


def test_sparse_cross_entropy_of_unknown_shapes_matches_dense() -> None:
    x = array(4, 3)
    np.testing.assert_allclose(
        run_fed(sparse, LABELS.astype("int32"), x), value_of(dense, np.eye(3)[LABELS], x), rtol=1e-9
    )


@pytest.mark.parametrize("axis", [-2, -3])
def test_dense_cross_entropy_along_an_axis(axis: int) -> None:
    x, y = array(2, 3, 4), abs(array(2, 3, 4, seed=1))
    log = x - np.log(np.exp(x).sum(axis=axis, keepdims=True))
    np.testing.assert_allclose(value_of(lambda y, x: dense(y, x, axis), y, x), -(y * log).sum(axis=axis), rtol=1e-9)


@pytest.mark.parametrize("label", [-1, 3, 100, -(2**31)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_label_out_of_range_is_refused(label: int, dtype: str) -> None:
    for way in (value_of, run_fed):
        with pytest.raises(InvalidArgumentError) as info:
            way(sparse, np.array([0, label, 1], dtype), array(3, 3))
        assert info.value.op_type == "SparseSoftmaxCrossEntropyWithLogits"
        assert str(label) in str(info.value)
        assert info.value.expected == "0 <= label < 3"
        assert info.value.source is not None


def test_shapes_that_do_not_fit_are_refused() -> None:
    for build, arrays in [
        (sparse, (np.array([0, 1]), array(3, 3))),
        (sparse, (np.array([[0], [1], [1]]), array(3, 3))),
        (sparse, (np.array([0, 1, 1]), array(3, 0))),
        (sparse, (np.array(0), np.array(1.0))),
        (dense, (array(3, 2), array(3, 3))),
        (lambda y, x: aioflow.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x), (array(3), array(2))),
        (lambda y, x: aioflow.losses.mean_squared_error(y, x), (array(3, 1), array(3))),
        (lambda y, x: aioflow.losses.mean_squared_error(y, x, weights=np.ones(3)), (array(3, 2), array(3, 2))),
        (lambda y, x: aioflow.losses.mean_squared_error(y, x, weights=np.ones((1, 3))), (array(3, 2), array(3, 2))),
    ]:
        with pytest.raises(InvalidArgumentError):
            value_of(build, *arrays)


def test_missing_arguments_are_refused() -> None:
    refused: list[Callable[[], Any]] = [
        lambda: aioflow.nn.sparse_softmax_cross_entropy_with_logits(logits=array(2, 3)),
        lambda: aioflow.nn.sigmoid_cross_entropy_with_logits(labels=array(2, 3)),
        lambda: aioflow.losses.mean_squared_error(None, array(3)),  # type: ignore[arg-type]  # wrong on purpose
        lambda: aioflow.losses.mean_squared_error(array(3), array(3), reduction="average"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: aioflow.losses.cosine_distance(array(3), array(3)),
        lambda: aioflow.losses.get_total_loss(),
    ]
    with aioflow.Graph().as_default():
        for build in refused:
            with pytest.raises(InvalidArgumentError):
                build()


def test_impossible_class_with_zero_label_has_no_loss() -> None:
    # 0 times infinity counts as 0 here; TensorFlow's CPU kernel returns NaN.
    x = np.array([[-np.inf, 0.0, 1.0]])
    made = value_of(dense, np.array([[0.0, 0.5, 0.5]]), x)
    assert made == pytest.approx(np.log(1 + np.e) - 0.5)


LOSSES: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x: aioflow.nn.sigmoid_cross_entropy_with_logits(labels=np.eye(3)[LABELS], logits=x),
    "softmax": lambda x: aioflow.losses.softmax_cross_entropy(np.eye(3)[LABELS], x, label_smoothing=0.1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_second_derivatives(name: str) -> None:
    def first(x: Any) -> Any:
        loss = LOSSES[name](x)
        return aioflow.gradients(loss * loss, x)[0]

    check_gradients(first, array(4, 3), rtol=1e-4, atol=1e-5)


def test_second_derivatives_by_labels_and_logits() -> None:
    # `backprop` is correct only for labels that sum to 1 in each row. The softmax keeps them so.
    def first(x: Any, t: Any) -> Any:
        loss = dense(aioflow.nn.softmax(t), x)
        return aioflow.gradients(loss * loss, x)[0]

    check_gradients(first, array(4, 3), array(4, 3, seed=1), rtol=1e-4, atol=1e-5)


def test_gradient_of_broadcast_labels_is_refused() -> None:
    x, y = aioflow.placeholder("float32", [2, 3]), aioflow.placeholder("float32", [1, 3])
    loss = make_list("SoftmaxCrossEntropyWithLogits", x, y)[0]
    with pytest.raises(UnimplementedError):
        aioflow.gradients(loss, x)


def test_sigmoid_loss_has_the_correct_slope_at_zero() -> None:
    # Logits are often exactly zero at the start of training. A formula of max and |x| alone would have the slope
    # -labels there.
    x = aioflow.constant(np.zeros(3, np.float32))
    for loss in (
        aioflow.nn.sigmoid_cross_entropy_with_logits(labels=np.array([0, 1, 0.5], "f"), logits=x),
        aioflow.nn.weighted_cross_entropy_with_logits(np.array([0, 1, 0.5], "f"), x, 1.0),
    ):
        np.testing.assert_allclose(evaluate(dense_gradients(aioflow.gradients(loss, x)))[0], [0.5, -0.5, 0])


def test_gradient_of_a_sparse_loss_adds_few_nodes() -> None:
    with aioflow.Graph().as_default() as graph:
        x = aioflow.placeholder("float32", [128, 10])
        loss = sparse(aioflow.placeholder("int64", [128]), x)
        seed = aioflow.ones([128])
        before = graph.version
        aioflow.gradients(loss, x, grad_ys=seed)
        assert graph.version - before <= 4


def test_losses_are_collected() -> None:
    a = aioflow.losses.mean_squared_error(np.ones(3, "f"), np.zeros(3, "f"))
    aioflow.losses.hinge_loss(np.ones(3, "f"), np.zeros(3, "f"), loss_collection=None)
    assert aioflow.losses.get_losses() == [a]
    assert aioflow.losses.get_losses(scope="mean_squared") == [a]
    assert aioflow.losses.get_losses(scope="hinge") == []
    assert evaluate([aioflow.losses.get_total_loss(), aioflow.losses.get_regularization_loss()]) == [1.0, 0.0]


def test_dtypes_of_losses() -> None:
    for dtype, made in (("float64", "float64"), ("float32", "float32"), ("float16", "float32"), ("int32", "float32")):
        with aioflow.Graph().as_default():
            y = aioflow.constant(np.ones(3, dtype))
            assert aioflow.losses.mean_squared_error(y, y).dtype.name == made
