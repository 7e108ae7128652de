"""Bit shifts. ONNX only shifts unsigned integers."""

from __future__ import annotations

from aioflow.graph.dtypes import DType, as_dtype
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


def _unsigned(dtype: DType) -> DType:
    return dtype if dtype.is_unsigned else as_dtype(f"u{dtype.name}")


def _shifted(node: ExportedNode, x: ModelValue, by: ModelValue, direction: str) -> ModelValue:
    kind = _unsigned(x.dtype)
    # TensorFlow clamps the shift to the range from 0 to the number of bits less one.
    by = node.make("Min", node.make("Max", by, node.like(0, by)), node.like(8 * x.dtype.size - 1, by))
    made = node.make("BitShift", node.cast(x, kind), node.cast(by, kind), direction=direction)
    return node.cast(made, x.dtype)


@exporter("LeftShift")
def left_shift(node: ExportedNode, x: ModelValue, by: ModelValue) -> ModelValue:
    """Export a left shift."""
    return _shifted(node, x, by, "LEFT")


@exporter("RightShift")
def right_shift(node: ExportedNode, x: ModelValue, by: ModelValue) -> ModelValue:
    """Export an arithmetic right shift: ones are shifted into negative numbers."""
    if x.dtype.is_unsigned:
        return _shifted(node, x, by, "RIGHT")
    negative = node.make("Less", x, node.like(0, x))
    # Shift the complement of negative numbers: its complement has ones where the shift inserted zeros.
    turned = node.make("Where", negative, node.make("BitwiseNot", x), x)
    made = _shifted(node, turned, by, "RIGHT")
    return node.make("Where", negative, node.make("BitwiseNot", made), made)
