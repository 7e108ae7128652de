"""Models of one node of ONNX's domain com.microsoft, run by onnxruntime and by aioflow."""

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
    """A model of one node, whose attributes `how` has besides arguments of `one_node`."""
    opset = how.pop("opset", None)
    domain = how.pop("domain", DOMAIN)
    model = one_node(op, inputs, outputs, opset=1, domain=domain, **how)
    if opset is not None:  # an attribute, of QLinearSoftmax
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
    """For each output what aioflow has found, and onnxruntime.

    Args:
        constant: Weights of int8 that are multiplied with uint8: constants of onnxruntime's model. On processors
            without an instruction for such sums it adds two products in 16 bits, unless it can make the weights uint8,
            which is one of its optimizations and is for constants.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    model = make_model(op, inputs, outputs, **how)
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED if constant else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # with more, DynamicQuantizeLSTM quantizes the states of sequences in groups
    options.add_session_config_entry("session.x64quantprecision", "1")
    asked = make_model(op, inputs, outputs, **how | {"weights": [*how.get("weights", ()), *constant]})
    session = onnxruntime.InferenceSession(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    wanted = session.run(None, {name: value for name, value in inputs.items() if name in names})
    return list(zip(await run_model(model, inputs), wanted, strict=True))


async def same_floats(
    op: str, inputs: Arrays, outputs: Sequence[str] = ("y",), *, rtol: float = 1e-5, atol: float = 1e-6, **how: Any
) -> None:
    """Compare all outputs, with the sizes of inputs known and not."""
    for known in (True, False):
        for found, wanted in await run_both(op, inputs, outputs, known_shapes=known, **how):
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def whole(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Integers, each of the type's as likely."""
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)
