"""The ops that another engine computes: a part of a step, made by `compiler/delegate.py`, and an unknown ONNX node."""

from __future__ import annotations

from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, opaque

DELEGATED: Final = "_Delegated"

# The body of the node is the part. `delegate` names the engine, and `seconds` is the time that the part is expected to
# take. `variables` has for each input the name of the variable whose value it is, or "", and `still` the indices of
# the variables that the step does not change.
define_op(
    DELEGATED,
    "inputs: list:Tin",
    "outputs: list:Tout",
    [
        "Tin: list(type)",
        "Tout: list(type) >= 1",
        "delegate: string",
        "seconds: float = 0.0",
        "variables: list(string) = []",
        "still: list(int) = []",
    ],
    made_by="compiler",
    traits=opaque(),
)


# ── an ONNX node that has no aioflow op; an engine for ONNX models computes it ────────────────────────────────────────


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
