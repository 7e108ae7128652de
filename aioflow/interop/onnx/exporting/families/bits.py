"""Shifts of integers: ONNX shifts unsigned ones."""

from __future__ import annotations

from aioflow.graph.dtypes import DType, as_dtype
from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import Value


def _unsigned(dtype: DType) -> DType:
    return dtype if dtype.is_unsigned else as_dtype(f"u{dtype.name}")


def _shifted(node: Node, x: Value, by: Value, direction: str) -> Value:
    kind = _unsigned(x.dtype)
    by = node.make("Min", node.make("Max", by, node.like(0, by)), node.like(8 * x.dtype.size - 1, by))
    made = node.make("BitShift", node.cast(x, kind), node.cast(by, kind), direction=direction)
    return node.cast(made, x.dtype)


@exporter("LeftShift")
def left_shift(node: Node, x: Value, by: Value) -> Value:
    """Bits to the left."""
    return _shifted(node, x, by, "LEFT")


@exporter("RightShift")
def right_shift(node: Node, x: Value, by: Value) -> Value:
    """Bits to the right; ones come after those of a negative number."""
    if x.dtype.is_unsigned:
        return _shifted(node, x, by, "RIGHT")
    negative = node.make("Less", x, node.like(0, x))
    turned = node.make("Where", negative, node.make("BitwiseNot", x), x)
    made = _shifted(node, turned, by, "RIGHT")
    return node.make("Where", negative, node.make("BitwiseNot", made), made)
