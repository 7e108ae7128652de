"""Arithmetic, comparisons, and functions of single elements."""

from __future__ import annotations

from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.translating import Node, translation
from aioflow.ops.linalg.products import matmul as make_matmul
from aioflow.ops.math.arithmetic import add as make_add

__all__: list[str] = []


@translation("Add")
def add(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return make_add(a, b)


@translation("MatMul")
def matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return make_matmul(a, b)
