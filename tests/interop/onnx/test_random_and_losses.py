"""Random numbers, dropout and losses, beyond onnx's own suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.interop.onnx.one_node import one_node, run_model


async def test_dropout_in_training_keeps_the_mean() -> None:
    inputs: dict[str, Any] = {
        "x": np.ones((100, 100), np.float32),
        "ratio": np.array(0.25, np.float32),
        "training": np.array(True),
    }
    for weights in ((), ("training",)):
        y, mask = await run_model(one_node("Dropout", inputs, ("y", "mask"), weights=weights, seed=3), inputs)
        assert mask.dtype == bool
        assert 0.73 < mask.mean() < 0.77
        np.testing.assert_allclose(y, np.where(mask, 1 / 0.75, 0), rtol=1e-6)
    inputs["training"] = np.array(False)
    y, mask = await run_model(one_node("Dropout", inputs, ("y", "mask")), inputs)
    np.testing.assert_array_equal(y, inputs["x"])
    assert mask.all()


@pytest.mark.parametrize(
    ("op", "mean", "spread"),
    [("RandomNormal", 2.0, 3.0), ("RandomUniform", 2.5, 3 / 12**0.5)],
)
@pytest.mark.parametrize("dtype", [1, 10, 11])
async def test_random_numbers_follow_their_distribution(op: str, mean: float, spread: float, dtype: int) -> None:
    attributes: dict[str, Any] = {"mean": 2.0, "scale": 3.0} if op == "RandomNormal" else {"low": 1.0, "high": 4.0}
    [y] = await run_model(one_node(op, {}, shape=[100, 200], dtype=dtype, seed=5.0, **attributes), {})
    [again] = await run_model(one_node(op, {}, shape=[100, 200], dtype=dtype, seed=5.0, **attributes), {})
    [other] = await run_model(one_node(op, {}, shape=[100, 200], dtype=dtype, seed=6.0, **attributes), {})
    assert y.shape == (100, 200)
    assert abs(y.mean(dtype=np.float64) - mean) < 0.1
    assert abs(y.std(dtype=np.float64) - spread) < 0.1
    np.testing.assert_array_equal(y, again)
    assert (y != other).any()


async def test_multinomial_draws_by_log_probabilities() -> None:
    x = {"x": np.log(np.array([[0.2, 0.8], [0.6, 0.4]], np.float32))}
    [y] = await run_model(one_node("Multinomial", x, sample_size=4000, seed=1.0), x)
    assert y.dtype == np.int32
    assert y.shape == (2, 4000)
    np.testing.assert_allclose(y.mean(1), [0.8, 0.4], atol=0.04)


async def test_an_infinite_loss_of_another_class_is_ignored() -> None:
    inputs = {"x": np.array([[-np.inf, -0.5], [-0.25, -np.inf]], np.float32), "target": np.array([1, 0])}
    [loss] = await run_model(one_node("NegativeLogLikelihoodLoss", inputs, reduction="sum"), inputs)
    assert loss == 0.75
