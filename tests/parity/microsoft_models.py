"""Models of one node of the ONNX domain com.microsoft, run by onnxruntime and by aioflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from tests.interop.onnx.one_node import one_node, run_model

__all__ = ["make_model", "run_both", "same_floats", "whole"]

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(0)
Arrays = Mapping[str, Any]


def make_model(op: str, inputs: Arrays, outputs: Sequence[str] = ("y",), **how: Any) -> ModelProto:
    """Return a model of one node. `how` has the attributes of the node and arguments of `one_node`."""
    opset = how.pop("opset", None)
    domain = how.pop("domain", DOMAIN)
    model = one_node(op, inputs, outputs, opset=1, domain=domain, **how)
    # QLinearSoftmax has an attribute `opset`, which is also the name of an argument of `one_node`.
    if opset is not None:
        model.graph.node[0].attribute.append(helper.make_attribute("opset", opset))
    while model.graph.node[0].input and not model.graph.node[0].input[-1]:
        model.graph.node[0].input.pop()
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("", 17)])
    for each in model.graph.output:
        each.ClearField("type")
    return model


async def run_both(
    op: str, inputs: Arrays, outputs: Sequence[str] = ("y",), *, constant: Sequence[str] = (), **how: Any
) -> list[tuple[Any, Any]]:
    """Return, for each output, the values of aioflow and of onnxruntime.

    Args:
        op: Type of the node.
        inputs: Values of the inputs, by name.
        outputs: Names of the outputs.
        constant: Names of inputs that are constants of onnxruntime's model: int8 weights that are multiplied with
            uint8. On processors without an instruction for such sums, onnxruntime adds two products in 16 bits, unless
            it converts the weights to uint8. That optimization applies to constants only.
        how: Attributes of the node and arguments of `one_node`.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    model = make_model(op, inputs, outputs, **how)
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED if constant else level.ORT_DISABLE_ALL
    # With more threads, DynamicQuantizeLSTM quantizes the states of sequences in groups.
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    asked = make_model(op, inputs, outputs, **how | {"weights": [*how.get("weights", ()), *constant]})
    session = onnxruntime.InferenceSession(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    wanted = session.run(None, {name: value for name, value in inputs.items() if name in names})
    return list(zip(await run_model(model, inputs), wanted, strict=True))


async def same_floats(
    op: str, inputs: Arrays, outputs: Sequence[str] = ("y",), *, rtol: float = 1e-5, atol: float = 1e-6, **how: Any
) -> None:
    """Compare all outputs, with known and unknown input shapes."""
    for known in (True, False):
        for found, wanted in await run_both(op, inputs, outputs, known_shapes=known, **how):
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def whole(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return random integers, uniform over the range of `dtype`."""
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)
