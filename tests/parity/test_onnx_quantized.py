"""ONNX's quantized tensors and casts against onnxruntime and NumPy, beyond onnx's own tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.interop.onnx.one_node import one_node, run_model

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


async def same(op: str, inputs: Mapping[str, Any], **how: Any) -> None:
    for known in (True, False):
        model = one_node(op, inputs, known_shapes=known, **how)
        model.graph.output[0].ClearField("type")
        options = onnxruntime.SessionOptions()
        # Without it, sums of two products saturate at 16 bits on processors without a wider instruction.
        options.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        names = {each.name for each in session.get_inputs()}
        [expected] = session.run(None, {name: value for name, value in inputs.items() if name in names})
        [found] = await run_model(model, inputs)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def whole(dtype: Any, shape: tuple[int, ...]) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("axis", [None, 1, -1])
async def test_quantize_and_dequantize_linear(dtype: Any, axis: int | None) -> None:
    x = np.concatenate([RNG.normal(0, 40, (2, 3, 4)), np.arange(24).reshape(2, 3, 4) * 0.125]).astype(np.float32)
    count = () if axis is None else (x.shape[axis],)
    scale = RNG.uniform(0.1, 0.6, count).astype(np.float32) if count else np.array(0.25, np.float32)
    zero = RNG.integers(0, 5, count).astype(dtype)
    how = {} if axis is None else {"axis": axis}
    await same("QuantizeLinear", {"x": x, "scale": scale, "zero": zero}, opset=13, **how)
    await same("DequantizeLinear", {"x": whole(dtype, x.shape), "scale": scale, "zero": zero}, opset=13, **how)


async def test_dequantize_linear_with_a_short_last_block() -> None:
    x = whole(np.int8, (3, 10))
    scale = RNG.uniform(0.1, 1, (3, 4)).astype(np.float32)
    zero = whole(np.int8, (3, 4))
    inputs = {"x": x, "scale": scale, "zero": zero}
    [found] = await run_model(one_node("DequantizeLinear", inputs, opset=21, axis=1, block_size=3), inputs)
    wide = [np.repeat(each, 3, axis=1)[:, :10].astype(np.float32) for each in (zero, scale)]
    np.testing.assert_array_equal(found, (x.astype(np.float32) - wide[0]) * wide[1])


@pytest.mark.parametrize("w_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels", [4, 64])
async def test_convolutions_of_integers_are_exact(w_dtype: Any, channels: int) -> None:
    x, w = whole(np.uint8, (2, channels, 6, 5)), whole(w_dtype, (6, channels // 2, 3, 3))
    inputs = {"x": x, "w": w, "x_zero": np.array(3, np.uint8), "w_zero": np.array(5, w_dtype)}
    [found] = await run_model(one_node("ConvInteger", inputs, opset=10, group=2, pads=[1, 0, 1, 2]), inputs)
    image = np.pad(x.astype(np.int64) - 3, [(0, 0), (0, 0), (1, 1), (0, 2)])
    filters = w.astype(np.int64) - 5
    expected = np.zeros((2, 6, 6, 5), np.int64)
    for i in range(6):
        group = slice(i // 3 * channels // 2, (i // 3 + 1) * channels // 2)
        for a in range(3):
            for b in range(3):
                part = image[:, group, a : a + 6, b : b + 5]
                expected[:, i] += np.einsum("nchw,c->nhw", part, filters[i, :, a, b])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("largest", [7, 127])  # sums that float32 represents exactly, and larger ones
async def test_convolutions_with_many_channels_are_exact(largest: int) -> None:
    x, w = np.full((1, 301, 4, 4), 255, np.uint8), np.full((2, 301, 3, 3), largest, np.int8)
    x[0, :, 1, 1], w[0, 150] = whole(np.uint8, (301,)), 1
    inputs = {"x": x, "w": w, "x_zero": np.array(0, np.uint8), "w_zero": np.array(0, np.int8)}
    model = one_node("ConvInteger", inputs, opset=10, weights=["w", "x_zero", "w_zero"])
    [found] = await run_model(model, inputs)
    image, filters = x.astype(np.int64), w.astype(np.int64)
    places = [(a, b) for a in range(2) for b in range(2)]
    sums = [np.einsum("chw,ochw->o", image[0, :, a : a + 3, b : b + 3], filters) for a, b in places]
    np.testing.assert_array_equal(found[0].reshape(2, 4), np.stack(sums, axis=1))


@pytest.mark.parametrize("inner", [8, 3000])
async def test_products_of_integers_are_exact(inner: int) -> None:
    a, b = np.full((4, inner), 255, np.uint8), np.full((inner, 5), 255, np.uint8)
    a[0, 0], b[0, 1] = 254, 253
    inputs = {"a": a, "b": b, "a_zero": np.array([1], np.uint8), "b_zero": np.array([2], np.uint8)}
    [found] = await run_model(one_node("MatMulInteger", inputs, opset=10), inputs)
    np.testing.assert_array_equal(found, (a.astype(np.int64) - 1) @ (b.astype(np.int64) - 2))


@pytest.mark.parametrize("biased", [False, True])
async def test_qlinear_conv_with_scale_per_filter(biased: bool) -> None:
    x, w = whole(np.uint8, (1, 3, 8, 8)), whole(np.int8, (4, 3, 3, 3))
    inputs: dict[str, Any] = {
        "x": x,
        "x_scale": np.array(0.02, np.float32),
        "x_zero": np.array(120, np.uint8),
        "w": w,
        "w_scale": RNG.uniform(0.01, 0.02, 4).astype(np.float32),
        "w_zero": np.zeros(4, np.int8),
        "y_scale": np.array(0.11, np.float32),
        "y_zero": np.array(128, np.uint8),
    }
    if biased:
        inputs["b"] = RNG.integers(-5000, 5000, 4).astype(np.int32)
    weights = [name for name in inputs if name != "x"]
    await same("QLinearConv", inputs, opset=10, weights=weights, strides=[2, 1], pads=[1, 1, 1, 1])


async def test_cast_text_to_numbers() -> None:
    texts = {"x": np.array(["1.5", "-3", "NaN", "INF", "1e-3"], object)}
    [found] = await run_model(one_node("Cast", texts, to=TensorProto.FLOAT), texts)
    np.testing.assert_array_equal(found, np.array([1.5, -3, np.nan, np.inf, 1e-3], np.float32))
    small = {"x": np.array(["300", "-7"], object)}
    [found] = await run_model(one_node("Cast", small, to=TensorProto.INT16), small)
    np.testing.assert_array_equal(found, np.array([300, -7], np.int16))


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"])
@pytest.mark.parametrize("source", [np.float32, np.float16, np.float64, np.int32])
async def test_cast_of_large_values_to_float8(name: str, source: Any) -> None:
    small: Any = np.dtype(getattr(ml_dtypes, name.lower().replace("float8e", "float8_e")))
    most = float(ml_dtypes.finfo(small).max)  # type: ignore[no-untyped-call]
    x = np.array([0, 1, -2, most, 60000, -60000], source)
    [found] = await run_model(one_node("Cast", {"x": x}, to=getattr(TensorProto, name)), {"x": x})
    assert found.dtype == small
    wide = found.astype(np.float64)
    np.testing.assert_array_equal(wide[:4], [0, 1, -2, most])
    np.testing.assert_array_equal(wide[4:], [most, -most])
    [found] = await run_model(one_node("Cast", {"x": x}, to=getattr(TensorProto, name), saturate=0), {"x": x})
    assert not np.isfinite(found.astype(np.float64)[4:]).any() or most > 50000
