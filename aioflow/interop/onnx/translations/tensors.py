"""Constants, and what changes shapes and takes tensors apart."""

from __future__ import annotations

from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.translating import Node, translation
from aioflow.ops.apply import constant as make_constant

__all__: list[str] = []


@translation("Constant")
def constant(node: Node) -> Tensor:
    value = node.attr("value")
    if value is not None:
        return make_constant(value)
    for name, dtype in (
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
        ("value_string", "string"),
        ("value_strings", "string"),
    ):
        value = node.attr(name)
        if value is not None:
            return make_constant(value, dtype)
    return node.refuse("a constant without a dense value")


@translation("Identity")
def identity(node: Node, value: Tensor) -> Tensor:
    return value
