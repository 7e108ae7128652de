"""Attention beyond onnx's own suite: unknown shapes, and gradients of fully masked queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.interop import onnx
from tests.interop.onnx.one_node import one_node, run_model


def some(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def expected(q: Any, k: Any, v: Any, allowed: Any) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.where(allowed, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
async def test_cached_keys_are_shared_by_heads(steps: int, known: bool) -> None:
    inputs = {
        "q": some(2, 4, steps, 8),
        "k": some(2, 2, steps, 8, seed=1),
        "v": some(2, 2, steps, 6, seed=2),
        "mask": None,
        "past_k": some(2, 2, 5, 8, seed=3),
        "past_v": some(2, 2, 5, 6, seed=4),
    }
    outputs = ("y", "present_k", "present_v")
    model = one_node("Attention", inputs, outputs, opset=23, known_shapes=known, is_causal=1)
    y, keys, values = await run_model(model, inputs)
    all_keys = np.concatenate([inputs["past_k"], inputs["k"]], 2)
    all_values = np.concatenate([inputs["past_v"], inputs["v"]], 2)
    np.testing.assert_array_equal(keys, all_keys)
    np.testing.assert_array_equal(values, all_values)
    allowed = np.arange(5 + steps) <= np.arange(steps)[:, None] + 5
    np.testing.assert_allclose(y, expected(inputs["q"], all_keys, all_values, allowed), rtol=1e-4, atol=1e-6)


async def test_a_fully_masked_query_has_no_gradient() -> None:
    mask = np.array([[True, False, True], [False, False, False]])
    inputs: dict[str, Any] = {n: some(1, 1, s, 4, seed=s) for n, s in (("q", 2), ("k", 3), ("v", 3))} | {"mask": mask}
    model = onnx.load(one_node("Attention", inputs, opset=23))
    with model.graph.as_default():
        slopes = aioflow.gradients(model.outputs["y"], [model.inputs[n] for n in ("q", "k", "v")])
    async with aioflow.Session(graph=model.graph) as session:
        feed = {model.inputs[name]: value for name, value in inputs.items()}
        y = await session.run(model.outputs["y"], feed)
        of_q, of_k, of_v = await session.run(slopes, feed)
    np.testing.assert_array_equal(y[0, 0, 1], 0)
    np.testing.assert_array_equal(of_q[0, 0, 1], 0)
    assert np.isfinite(of_k).all()
    np.testing.assert_array_equal(of_v[0, 0, 1], 0)
    assert of_v[0, 0, 0].all()


@pytest.mark.parametrize("known", [True, False])
async def test_a_circular_cache_wraps_around(known: bool) -> None:
    inputs = {
        "cache": some(2, 3, 4, 5),
        "update": some(2, 3, 2, 5, seed=1),
        "starts": np.array([1, 3]),
    }
    model = one_node("TensorScatter", inputs, opset=24, known_shapes=known, mode="circular")
    [y] = await run_model(model, inputs)
    wanted = inputs["cache"].copy()
    wanted[0, :, [1, 2]] = inputs["update"][0].swapaxes(0, 1)
    wanted[1, :, [3, 0]] = inputs["update"][1].swapaxes(0, 1)
    np.testing.assert_array_equal(y, wanted)
