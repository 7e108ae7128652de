"""Quantized ONNX models: onnxruntime computes the original operators, with the same results as our kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aioflow as af
from aioflow.interop.onnx.exporting.regions import model_of
from aioflow_onnxruntime.kernels import Delegated
from aioflow_onnxruntime.sessions import OPSET
from tests.backends.onnxruntime.steps import BY_ONNXRUNTIME, floats
from tests.interop.onnx_out.running import same

_GENERATOR = np.random.default_rng(3)
_WEIGHTS = _GENERATOR.integers(-128, 127, (64, 32), np.int8)
# Powers of two: dequantized weights are exact.
_SCALES = np.float32(2) ** -_GENERATOR.integers(4, 8, 32).astype(np.float32)


def model(nodes: list[Any], **constants: Any) -> onnx.ModelProto:
    """Return a model from x, rows of 64 numbers, to y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    known = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "quantized", [x], [y], known)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


WEIGHTS_ALONE = model(
    [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ],
    w=_WEIGHTS,
    s=_SCALES,
    z=np.zeros(32, np.int8),
)
ROUNDED_TWICE = model(
    [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("QuantizeLinear", ["d", "s2", "z"], ["q2"]),
        helper.make_node("DequantizeLinear", ["q2", "s2", "z"], ["y"]),
    ],
    s=np.float32(0.1),
    s2=np.float32(0.03),
    z=np.int8(3),
)
AS_IT_COMES = model(
    [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["bytes", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "s"], ["y"]),
    ],
    w=_WEIGHTS,
    s=_SCALES,
)


@pytest.mark.parametrize(
    ("given", "ops"),
    [
        (WEIGHTS_ALONE, {"DequantizeLinear": 1, "MatMul": 1}),
        (ROUNDED_TWICE, {"QuantizeLinear": 2, "DequantizeLinear": 2}),
        (AS_IT_COMES, {"QuantizeLinear": 1, "MatMulInteger": 1}),
    ],
    ids=["weights alone", "rounded twice", "as it comes"],
)
async def test_model_keeps_its_operators_and_results(
    given: onnx.ModelProto, ops: dict[str, int], parts: list[Delegated]
) -> None:
    found = af.interop.onnx.load(given)
    # Multiples of 1/8: products with the weights and their sums are exact in float32, in any order of addition.
    y, feeds = found.outputs["y"], {found.inputs["x"]: np.round(floats(5, 64) * 8) / 8}
    async with af.Session(graph=found.graph) as ours, af.Session(graph=found.graph, config=BY_ONNXRUNTIME) as session:
        wanted = await ours.run(y, feeds)
        same(wanted, await session.run(y, feeds), 1e-6)
        await session.prepared()
        [part] = parts
        assert part.part is not None
        same(wanted, await session.run(y, feeds), 1e-6)
    made = [node.op_type for node in model_of(part.graph, OPSET)[0].graph.node]
    assert {op: made.count(op) for op in ops} == ops
    assert "Cast" not in made or given is AS_IT_COMES
