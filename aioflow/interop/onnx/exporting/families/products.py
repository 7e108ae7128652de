"""Matrix products."""

from __future__ import annotations

from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


@exporter("MatMul")
def mat_mul(node: ExportedNode, a: ModelValue, b: ModelValue) -> ModelValue:
    """Export a product of two matrices, transposed according to the attributes."""
    first = node.transposed(a, (1, 0)) if node.attr("transpose_a") else a
    second = node.transposed(b, (1, 0)) if node.attr("transpose_b") else b
    return node.make("MatMul", first, second)


@exporter("BatchMatMul", "BatchMatMulV2")
def batch_mat_mul(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export products of matrices in the last two axes; the other axes broadcast."""
    first = _turned(node, x) if node.attr("adj_x") else x
    second = _turned(node, y) if node.attr("adj_y") else y
    return node.make("MatMul", first, second)


def _turned(node: ExportedNode, x: ModelValue) -> ModelValue:
    rank = node.rank(x)
    return node.transposed(x, (*range(rank - 2), rank - 1, rank - 2))


@exporter("Einsum")
def einsum(node: ExportedNode, *inputs: ModelValue) -> ModelValue:
    """Export sums of products given by an equation, which ONNX writes in the same way."""
    return node.make("Einsum", *inputs, equation=node.attr("equation").replace(" ", ""))


@exporter("Cross")
def cross(node: ExportedNode, a: ModelValue, b: ModelValue) -> ModelValue:
    """Export the cross product along the last axis, of size 3."""

    def turned(x: ModelValue, order: list[int]) -> ModelValue:
        return node.make("Gather", x, node.const(order), axis=-1)

    first = node.make("Mul", turned(a, [1, 2, 0]), turned(b, [2, 0, 1]))
    return node.make("Sub", first, node.make("Mul", turned(a, [2, 0, 1]), turned(b, [1, 2, 0])))


@exporter("MatrixDeterminant")
def determinant(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the determinants of the matrices in the last two axes."""
    return node.make("Det", x)
