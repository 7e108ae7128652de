"""Models written by onnxruntime's quantizer and optimizer, run by onnxruntime and by aioflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.interop.onnx.one_node import run_model

onnxruntime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3, 8, 8)).astype(np.float32)
TEXT = """<ir_version: 8, opset_import: ["" : 13]> g (float[N, 3, 8, 8] x) => (float[N, 5] y) {
    conv = Conv <pads = [1, 1, 1, 1]> (x, w, b)  leaky = LeakyRelu <alpha = 0.2> (conv)
    inner = Conv <pads = [1, 1, 1, 1]> (leaky, w2, b2)  gate = Sigmoid(inner)  swish = Mul(gate, inner)
    sum = Add(swish, leaky)  both = Concat <axis = 1> (sum, leaky)
    pooled = GlobalAveragePool(both)  flat = Flatten(pooled)
    scores = Gemm <transB = 1> (flat, w3, b3)  y = Softmax <axis = -1> (scores) }"""
WEIGHTS = {"w": (4, 3, 3, 3), "b": (4,), "w2": (4, 4, 3, 3), "b2": (4,), "w3": (5, 8), "b3": (5,)}


LAYER = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 6, 8] x) => (float[N, 6, 6] y, float[6, 4] z) <
        float root = {1.4142135}, float one = {1}, float half = {0.5}, int64[1] zero = {0}, int64[2] sizes = {6, 8}> {
    h = MatMul(x, w)  a = Add(h, b)  d = Div(a, root)  e = Erf(d)  o = Add(e, one)  m = Mul(a, o)  g = Mul(m, half)
    s = Add(g, x)  normal = LayerNormalization <axis = -1, epsilon = 0.00001> (s, gamma, beta)
    turned = Transpose <perm = [0, 2, 1]> (normal)  y = MatMul(normal, turned)
    first = Gather(x, zero)  row = Reshape(first, sizes)  f = Gemm(row, w2)  z = Relu(f) }"""
LAYER_WEIGHTS = {"w": (8, 8), "b": (8,), "gamma": (8,), "beta": (8,), "w2": (8, 4)}


class Images:
    """A `CalibrationDataReader` of four images."""

    def __init__(self) -> None:
        self.left = [{"x": X[i : i + 1]} for i in range(4)]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


def network(folder: Path, text: str = TEXT, weights: Mapping[str, tuple[int, ...]] = WEIGHTS) -> str:
    model = parser.parse_model(text)
    for name, shape in weights.items():
        value = (RNG.standard_normal(shape) * 0.4).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, folder / "model.onnx")
    return str(folder / "model.onnx")


def session(path: str, **options: Any) -> Any:
    chosen = onnxruntime.SessionOptions()
    for name, value in options.items():
        setattr(chosen, name, value)
    return onnxruntime.InferenceSession(path, chosen, providers=["CPUExecutionProvider"])


async def check(path: str, domain_ops: set[str], tolerance: float, x: Any = X) -> None:
    model = onnx.load(path)
    assert domain_ops <= {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
    for found, wanted in zip(await run_model(model, {"x": x}), session(path).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(found, wanted, atol=tolerance)


@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
async def test_quantized_operators(tmp_path: Path, kind: str) -> None:
    path, types = str(tmp_path / "quantized.onnx"), quantization.QuantType
    # With 7-bit weights the sum of two products fits into 16 bits, where some processors would saturate it.
    how = {
        "reduce_range": True,
        "activation_type": types[kind],
        "weight_type": types.QInt8,
        "per_channel": kind == "QInt8",
    }
    quantization.quantize_static(
        network(tmp_path), path, Images(), quant_format=quantization.QuantFormat.QOperator, **how
    )
    ops = {"QGemm", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu"}
    await check(path, {*ops, "QLinearSigmoid", "QLinearSoftmax"}, 0.02)


async def test_dynamic_quantization(tmp_path: Path) -> None:
    quantized, path = str(tmp_path / "quantized.onnx"), str(tmp_path / "optimized.onnx")
    quantization.quantize_dynamic(network(tmp_path), quantized)
    levels = onnxruntime.GraphOptimizationLevel
    session(quantized, optimized_model_filepath=path, graph_optimization_level=levels.ORT_ENABLE_EXTENDED)
    await check(path, {"DynamicQuantizeMatMul"}, 1e-5)


async def test_optimized_graphs(tmp_path: Path) -> None:
    path, levels = str(tmp_path / "optimized.onnx"), onnxruntime.GraphOptimizationLevel
    session(network(tmp_path), optimized_model_filepath=path, graph_optimization_level=levels.ORT_ENABLE_EXTENDED)
    await check(path, {"FusedConv", "QuickGelu"}, 1e-5)


async def test_optimized_transformer_layer(tmp_path: Path) -> None:
    path, levels = str(tmp_path / "optimized.onnx"), onnxruntime.GraphOptimizationLevel
    model = network(tmp_path, LAYER, LAYER_WEIGHTS)
    session(model, optimized_model_filepath=path, graph_optimization_level=levels.ORT_ENABLE_EXTENDED)
    x = RNG.standard_normal((2, 6, 8)).astype(np.float32)
    await check(path, {"BiasGelu", "SkipLayerNormalization", "FusedMatMul", "FusedGemm"}, 1e-5, x)
