"""Translations of arithmetic and reductions, beyond onnx's own suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.interop import onnx
from tests.interop.onnx.one_node import one_node, run_model


@pytest.mark.parametrize("none_if_empty", [0, 1])
@pytest.mark.parametrize("axes", [[], [1], [0, -1]])
async def test_reduction_axes_may_be_fed(axes: list[int], none_if_empty: int) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    inputs: dict[str, Any] = {"x": x, "axes": np.array(axes, np.int64)}
    model = one_node("ReduceSum", inputs, known_shapes=False, noop_with_empty_axes=none_if_empty)
    [y] = await run_model(model, inputs)
    over = tuple(axes) if axes or none_if_empty else None
    np.testing.assert_array_equal(y, x.sum(axis=over, keepdims=True))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
async def test_integers_are_divided_towards_zero(dtype: Any) -> None:
    inputs = {"a": np.array([7, -7, 7, -7], dtype), "b": np.array([2, 2, -2, -2], dtype)}
    [quotient] = await run_model(one_node("Div", inputs), inputs)
    np.testing.assert_array_equal(quotient, np.array([3, -3, -3, 3], dtype))
    [remainder] = await run_model(one_node("Mod", inputs, fmod=1), inputs)
    np.testing.assert_array_equal(remainder, np.array([1, -1, 1, -1], dtype))
    [modulus] = await run_model(one_node("Mod", inputs), inputs)
    np.testing.assert_array_equal(modulus, np.array([1, 1, -1, -1], dtype))


async def test_a_power_has_the_dtype_of_its_base() -> None:
    inputs = {"a": np.array([2, 3], np.int32), "b": np.array([0.5, 2.0], np.float32)}
    [y] = await run_model(one_node("Pow", inputs), inputs)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, [1, 9])


async def test_clip_reads_attributes_of_old_models() -> None:
    inputs = {"x": np.array([-3.0, 0.5, 7.0], np.float32)}
    [y] = await run_model(one_node("Clip", inputs, opset=7, min=-1.0, max=2.0), inputs)
    np.testing.assert_array_equal(y, np.array([-1, 0.5, 2], np.float32))
    [same] = await run_model(one_node("Clip", inputs, opset=13), inputs)
    np.testing.assert_array_equal(same, inputs["x"])


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("known", [True, False])
async def test_old_softmax_normalizes_over_all_axes_from_the_given_one(op: str, known: bool) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    model = one_node(op, {"x": x}, opset=11, known_shapes=known, axis=1)
    [y] = await run_model(model, {"x": x})
    rows = x.reshape(2, 12)
    exponents = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    wanted = {"Softmax": exponents, "LogSoftmax": np.log(exponents), "Hardmax": rows == rows.max(1, keepdims=True)}[op]
    np.testing.assert_allclose(y, wanted.reshape(2, 3, 4), rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Elu", {"alpha": 0.5}),
        ("Celu", {"alpha": 0.5}),
        ("Selu", {"alpha": 1.5, "gamma": 1.1}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("HardSwish", {}),
        ("Mish", {}),
        ("ThresholdedRelu", {"alpha": 0.3}),
        ("Shrink", {"lambd": 0.4, "bias": 0.2}),
    ],
)
async def test_gradients_flow_through_activations(op: str, attributes: dict[str, Any]) -> None:
    x = np.array([-200.0, -2.0, -0.6, -0.1, 0.2, 0.9, 2.5, 200.0])
    model = onnx.load(one_node(op, {"x": x}, **attributes))
    with model.graph.as_default():
        [slope] = aioflow.gradients(model.outputs["y"], [model.inputs["x"]])
    assert isinstance(slope, aioflow.Tensor)
    async with aioflow.Session(graph=model.graph) as session:
        found = await session.run(slope, {model.inputs["x"]: x})
        y = model.outputs["y"]
        above, below = [await session.run(y, {model.inputs["x"]: x + step}) for step in (1e-6, -1e-6)]
    np.testing.assert_allclose(found, (above - below) / 2e-6, rtol=1e-4, atol=1e-6)
