"""Metrics: errors, and use in a real program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError


async def test_accuracy_of_batches_of_several_sizes() -> None:
    rng = np.random.default_rng(4)
    labels, predictions = rng.integers(0, 3, (2, 20))
    with af.Graph().as_default():
        y, x = af.placeholder("int64", [None]), af.placeholder("int64", [None])
        value, update = af.metrics.accuracy(y, x)
        async with af.Session() as session:
            await session.run(af.local_variables_initializer())
            for part in np.split(np.arange(20), [3, 4, 11]):
                await session.run(update, {y: labels[part], x: predictions[part]})
            assert await session.run(value) == pytest.approx((labels == predictions).mean())
            await session.run(af.local_variables_initializer())
            assert await session.run(value) == 0


async def test_saver_skips_the_sums() -> None:
    with af.Graph().as_default():
        af.Variable(1.0, name="kept")
        af.metrics.mean([1.0])
        assert [v.name for v in af.global_variables()] == ["kept:0"]
        assert af.trainable_variables() == af.global_variables()


@pytest.mark.parametrize(
    "build",
    [
        lambda: af.metrics.mean(np.zeros((3, 2)), np.zeros((3, 3))),
        lambda: af.metrics.mean(np.zeros((3, 2, 2)), np.zeros(3)),
        lambda: af.metrics.mean_tensor(af.placeholder("float32", [None])),
        lambda: af.metrics.accuracy([1, 2], [1, 2, 3]),
        lambda: af.metrics.auc([1], [0.5], curve="roc"),  # type: ignore[arg-type]  # a value that type checkers refuse
        lambda: af.metrics.auc([1], [0.5], summation_method="simpson"),  # type: ignore[arg-type]  # as above
        lambda: af.metrics.sensitivity_at_specificity([1], [0.5], 1.5),
        lambda: af.metrics.average_precision_at_k([[1]], [[0.5, 0.5]], 0),
        lambda: af.metrics.recall_at_k(np.zeros((2, 2, 1), int), np.zeros((2, 4)), 1),
        lambda: af.metrics.precision_at_k([[1], [2]], np.zeros((2, 4)), 1, weights=[1.0, 1.0, 1.0]),
    ],
)
def test_arguments_that_do_not_fit_are_refused(build: Any) -> None:
    with af.Graph().as_default(), pytest.raises(InvalidArgumentError):
        build()


@pytest.mark.parametrize("weights", [np.ones((2, 3)), np.ones(2), np.ones((3, 1, 1)), np.ones((1, 1, 1, 2))])
async def test_fed_weights_that_do_not_fit_fail_the_step(weights: Any) -> None:
    with af.Graph().as_default():
        x, w = af.placeholder("float32"), af.placeholder("float32")
        _, update = af.metrics.mean(x, w)
        async with af.Session() as session:
            await session.run(af.local_variables_initializer())
            with pytest.raises(InvalidArgumentError):
                await session.run(update, {x: np.ones((2, 2, 2)), w: weights})


@pytest.mark.parametrize("labels", [np.array([True, False]), np.array([1, 0]), np.array([1.0, 0.0], np.float32)])
async def test_predictions_outside_of_0_and_1_fail_the_step(labels: Any) -> None:
    with af.Graph().as_default():
        x, y = af.placeholder("float32", [None]), af.placeholder(labels.dtype, [None])
        _, update = af.metrics.auc(y, x)
        async with af.Session() as session:
            await session.run(af.local_variables_initializer())
            with pytest.raises(InvalidArgumentError, match=r"predictions must be in \[0, 1\]"):
                await session.run(update, {x: [0.5, 1.5], y: labels})


async def test_predictions_may_be_classes() -> None:
    with af.Graph().as_default():
        updates = [af.metrics.auc([1, 0, 1], af.constant(found))[1] for found in ([1, 0, 1], [True, False, True])]
        async with af.Session() as session:
            await session.run(af.local_variables_initializer())
            assert await session.run(updates) == pytest.approx([1.0, 1.0])


async def test_auc_is_the_probability_of_the_right_order() -> None:
    rng = np.random.default_rng(5)
    labels = rng.random(400) > 0.6
    scores = (0.6 * rng.random(400) + 0.3 * labels).round(2)
    above = scores[labels][:, None] - scores[~labels]
    exact = (above > 0).mean() + 0.5 * (above == 0).mean()
    with af.Graph().as_default():
        _, update = af.metrics.auc(labels, scores, num_thresholds=1000)
        async with af.Session() as session:
            await session.run(af.local_variables_initializer())
            assert await session.run(update) == pytest.approx(exact, abs=1e-4)
