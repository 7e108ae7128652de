"""Derivatives within a model (ai.onnx.preview.training)."""

from __future__ import annotations

from aioflow.autodiff import gradients
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops.apply import convert_to_tensor


@translation("Gradient", domain="ai.onnx.preview.training")
def gradient(node: OnnxNode, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the derivatives of a value by the sources that attributes name.

    The inputs of the node must be these sources, so that the derivatives are at the values of the model.
    """
    sources, constants = node.required("xs"), node.attr("zs", [])
    if [*sources, *constants] != list(node.proto.input) or node.named is None:
        return node.refuse("a derivative at values other than those of the model")
    found = gradients([node.named(node.required("y"))], list(inputs[: len(sources)]))
    # A source that is only gathered has a sparse gradient (IndexedSlices); ONNX's output is dense.
    dense = tuple(convert_to_tensor(each) for each in found if each is not None)
    if len(dense) < len(found):
        return node.refuse("a derivative by a tensor that the value does not depend on")
    return dense
