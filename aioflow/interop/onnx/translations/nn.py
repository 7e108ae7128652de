"""Convolutions, pools, and the layers of networks."""

from __future__ import annotations

from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.translating import Node, translation
from aioflow.ops.nn.activations import relu as make_relu

__all__: list[str] = []


@translation("Relu")
def relu(node: Node, x: Tensor) -> Tensor:
    return make_relu(x)
