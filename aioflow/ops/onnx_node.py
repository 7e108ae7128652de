"""The op for an ONNX node that has no aioflow op; an engine for ONNX models computes it."""

from __future__ import annotations

from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, opaque

ONNX_NODE: Final = "OnnxNode"


def _stated(ctx: ShapeContext) -> list[Dims]:
    shapes: list[Dims] = [*ctx.attrs["output_shapes"]]
    if len(shapes) != len(ctx.attrs["Tout"]):
        raise InvalidArgumentError(
            "an OnnxNode has a shape for each output", expected=len(ctx.attrs["Tout"]), actual=len(shapes)
        )
    return shapes


# `model` holds the bytes (uint8 [n]) of a ModelProto with this node alone. Its inputs and outputs are those of the op.
# KEEPS prevents merging and folding: the node may draw random numbers, and its computation is unknown.
define_op(
    ONNX_NODE,
    "inputs: list:Tin",
    "outputs: list:Tout",
    ["Tin: list(type)", "Tout: list(type) >= 1", "model: tensor", "output_shapes: list(shape)"],
    shape=_stated,
    traits=opaque(
        effect=Effect.KEEPS,
        on_host="an engine for ONNX models computes it there",
        stays_home="runs in an engine for ONNX models, which wrong inputs may crash",
    ),
    published=False,
)
