"""ONNX's domain com.microsoft against onnxruntime: operators on quantized tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError
from tests.interop.onnx.one_node import one_node, run_model
from tests.parity.microsoft_models import make_model, run_both, whole

INTEGERS = [np.uint8, np.int8]
DTYPES = pytest.mark.parametrize("dtype", INTEGERS)


async def same_steps(op: str, inputs: dict[str, Any], *, apart: int = 1, **attributes: Any) -> None:
    """Compare the integers of all outputs by `check_steps`, with known and with unknown input sizes."""
    for known in (True, False):
        for found, wanted in await run_both(op, inputs, known_shapes=known, **attributes):
            check_steps(found, wanted, apart)


def check_steps(found: Any, wanted: Any, apart: int = 1) -> None:
    """Compare integers, of which a few may be one step apart: halves that one side did not compute exactly."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    distance = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
    assert distance.max(initial=0) <= apart
    assert np.count_nonzero(distance) <= max(1, distance.size // 20)


def scale(value: float) -> Any:
    return np.array(value, np.float32)


def quantized(name: str, x: Any, size: float, zero: int | None) -> dict[str, Any]:
    point = None if zero is None else np.array(zero, x.dtype)
    return {name: x, f"{name}_scale": scale(size), f"{name}_zero": point}


def result(size: float, zero: int | None, dtype: Any) -> dict[str, Any]:
    return {"y_scale": scale(size), "y_zero": None if zero is None else np.array(zero, dtype)}


@DTYPES
@pytest.mark.parametrize("shape", [(3, 40), (40,), (1,), (), (2, 3, 1)])
@pytest.mark.parametrize(("op", "size"), [("QLinearAdd", 0.03), ("QLinearMul", 0.09)])
async def test_binary(op: str, size: float, dtype: Any, shape: tuple[int, ...]) -> None:
    a, b = whole(dtype, (2, 3, 40)), whole(dtype, shape)
    inputs = quantized("a", a, 0.02, 7) | quantized("b", b, 0.013, 11) | result(size, 20, dtype)
    await same_steps(op, inputs)
    await same_steps(op, {**inputs, "y_scale": scale(size / 20)})  # most results exceed the range of the dtype


@DTYPES
async def test_activations(dtype: Any) -> None:
    inputs = quantized("x", whole(dtype, (4, 70)), 0.04, 3) | result(1 / 256, 5, dtype)
    await same_steps("QLinearSigmoid", inputs)
    inputs["y_scale"] = scale(0.05)
    await same_steps("QLinearLeakyRelu", inputs)
    await same_steps("QLinearLeakyRelu", inputs, alpha=0.3)


@DTYPES
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearSigmoid", "QLinearLeakyRelu"])
async def test_omitted_zero_points(op: str, dtype: Any) -> None:
    """Compare with explicit zero points: onnxruntime 1.32 fails without them, although its schemas allow that."""
    x = whole(dtype, (4, 30))
    inputs = quantized("a", x, 0.04, 0) | (quantized("b", x[:1], 0.02, 0) if op == "QLinearAdd" else {})
    inputs |= result(0.05, 0, dtype)
    without = {name: None if name.endswith("_zero") else value for name, value in inputs.items()}
    [(_, wanted)] = await run_both(op, inputs)
    [found] = await run_model(make_model(op, without), without)
    assert np.abs(found.astype(int) - wanted).max() <= 1


@DTYPES
async def test_where(dtype: Any) -> None:
    condition = np.arange(12).reshape(3, 4) % 3 == 0
    x, y = whole(dtype, (3, 4)), whole(dtype, (4,))
    inputs = {"c": condition} | quantized("x", x, 0.02, 3) | quantized("z", y, 0.03, 9) | result(0.04, 5, dtype)
    await same_steps("QLinearWhere", inputs)


@DTYPES
@pytest.mark.parametrize("last", [0, 1])
async def test_pools(dtype: Any, last: int) -> None:
    inputs = quantized("x", whole(dtype, (2, 8, 7, 9)), 0.05, 4) | result(0.01, 6, dtype)
    await same_steps("QLinearGlobalAveragePool", inputs, channels_last=last)
    how: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    for counted in (0, 1):
        await same_steps("QLinearAveragePool", inputs, channels_last=last, count_include_pad=counted, **how)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
async def test_conv(last: int, biased: bool) -> None:
    x = whole(np.uint8, (2, 7, 9, 4) if last else (2, 4, 7, 9))
    inputs = quantized("x", x, 0.02, 120) | quantized("w", whole(np.int8, (6, 2, 3, 3)), 0.01, 0)
    inputs |= result(0.2, 128, np.uint8)
    if biased:
        inputs["b"] = np.arange(-3000, 3000, 1000, dtype=np.int32)
    weights = [name for name in inputs if name != "x"]
    how: dict[str, Any] = {"group": 2, "pads": [1, 1, 1, 1], "weights": weights}
    # Compare with onnx's reference: onnxruntime does not convert these weights to uint8. See also `run_both`.
    first = inputs | {"x": np.moveaxis(x, -1, 1)} if last else inputs
    plain = one_node("QLinearConv", first, opset=17, **how)
    [wanted] = ReferenceEvaluator(plain).run(None, {"x": first["x"]})
    for known in (True, False):
        [found] = await run_model(
            make_model("QLinearConv", inputs, channels_last=last, known_shapes=known, **how), {"x": x}
        )
        check_steps(np.moveaxis(found, -1, 1) if last else found, wanted)


@DTYPES
@pytest.mark.parametrize("axis", [1, -1, 0])
async def test_concat(dtype: Any, axis: int) -> None:
    inputs = result(0.03, 5, dtype)
    for i, size in enumerate((0.02, 0.03, 0.05)):
        shape = [2, 3, 4]
        shape[axis] += i
        inputs |= quantized(f"x{i}", whole(dtype, tuple(shape)), size, 5 + i % 2)
    await same_steps("QLinearConcat", inputs, axis=axis)


@DTYPES
@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("axis", [None, 1, -1])
async def test_softmax(dtype: Any, opset: int, axis: int | None) -> None:
    least = 5 if dtype is np.uint8 else -120
    inputs = quantized("x", whole(dtype, (2, 3, 10)), 0.02, 3) | result(1 / 256, least, dtype)
    how: dict[str, Any] = {} if axis is None else {"axis": axis}
    await same_steps("QLinearSoftmax", inputs, opset=opset, **how)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 1, -1])
async def test_quantize_and_dequantize_linear(dtype: Any, axis: int | None) -> None:
    x = np.random.default_rng(3).normal(0, 40, (2, 3, 4)).astype(np.float32)
    count = () if axis is None else (x.shape[axis],)
    sizes = np.array(0.25 if axis is None else 0.25 + np.arange(x.shape[axis]) / 8, np.float32)
    zeros = np.full(count, 9, dtype)
    how: dict[str, Any] = {} if axis is None else {"axis": axis}
    await same_steps("QuantizeLinear", {"x": x, "scale": sizes, "zero": zeros}, apart=0, **how)
    inputs = {"x": whole(dtype, x.shape), "scale": sizes, "zero": zeros}
    [(found, wanted)] = await run_both("DequantizeLinear", inputs, **how)
    np.testing.assert_array_equal(found, wanted)


async def test_dequantize_int32_without_zero() -> None:
    inputs = {"x": np.arange(-3, 9, dtype=np.int32) * 1000, "scale": scale(0.01)}
    [(found, wanted)] = await run_both("DequantizeLinear", inputs)
    np.testing.assert_array_equal(found, wanted)


async def test_scales_of_one_element() -> None:
    inputs = quantized("a", whole(np.uint8, (2, 3)), 0.02, 1) | quantized("b", whole(np.uint8, (3,)), 0.01, 2)
    inputs |= result(0.03, 7, np.uint8)
    shaped = {name: value.reshape(1) if value.ndim == 0 else value for name, value in inputs.items()}
    [expected] = await run_model(make_model("QLinearAdd", inputs), inputs)
    [found] = await run_model(make_model("QLinearAdd", shaped), shaped)
    np.testing.assert_array_equal(found, expected)


def refused(op: str, inputs: dict[str, Any], why: str, **attributes: Any) -> None:
    with pytest.raises(UnsupportedError, match=why):
        onnx.load(make_model(op, inputs, **attributes))


@pytest.mark.usefixtures("without_engines")
def test_rejects_unknown_attributes_and_domains() -> None:
    inputs = quantized("x", whole(np.uint8, (2, 3)), 0.02, 1) | result(0.03, 7, np.uint8)
    refused("QLinearSigmoid", inputs, "attribute 'beta'", beta=1.0)
    refused("QLinearSigmoid", inputs | {"x_scale": np.ones(3, np.float32)}, "not one number")
    refused("QuantizeLinear", {"x": np.ones(3, np.float32), "s": scale(1)}, "attribute 'block_size'", block_size=2)
    with pytest.raises(UnsupportedError, match="no such op"):
        onnx.load(one_node("QLinearAdd", inputs, domain="com.unknown", opset=1))
