"""Models of one node, for tests of translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

import aioflow
from aioflow.interop import onnx

__all__ = ["one_node", "run_model"]


def one_node(
    op: str,
    inputs: Mapping[str, np.ndarray[Any, Any] | None],
    outputs: Sequence[str] = ("y",),
    *,
    weights: Sequence[str] = (),
    known_shapes: bool = True,
    opset: int = 22,
    domain: str = "",
    **attributes: Any,
) -> ModelProto:
    """Return a model of one node.

    Args:
        op: Op of the node.
        inputs: Values to run the model with, by name; None for an omitted input.
        outputs: Names of the outputs; "" for an omitted output.
        weights: Names of the inputs that are constants of the model.
        known_shapes: Whether the model declares the sizes of its inputs, or only their ranks.
        opset: Version of the op set.
        domain: Domain of the op.
        **attributes: Attributes of the node.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    node = helper.make_node(op, [n if n in given else "" for n in inputs], list(outputs), domain=domain, **attributes)
    fed = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape if known_shapes else [None] * value.ndim
        )
        for name, value in given.items()
        if name not in weights
    ]
    results = [helper.make_tensor_value_info(name, 1, None) for name in outputs if name]
    constants = [numpy_helper.from_array(given[name], name) for name in weights if name in given]
    graph = helper.make_graph([node], "g", fed, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)], ir_version=10)


async def run_model(model: ModelProto, inputs: Mapping[str, np.ndarray[Any, Any] | None]) -> list[np.ndarray[Any, Any]]:
    """Run a model and return its outputs, in order."""
    loaded = onnx.load(model)
    async with aioflow.Session(graph=loaded.graph) as session:
        feeds = {tensor: inputs[name] for name, tensor in loaded.inputs.items()}
        values = await session.run(loaded.outputs, feeds)
    return [np.asarray(values[name]) for name in loaded.outputs]
