"""Matrices: their products, bands and diagonals."""

from __future__ import annotations

from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue

# ── bands and diagonals in the last two axes ──────────────────────────────────────────────────────────────────────────


def _distances(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Return row minus column for each element of a matrix, int64."""
    rank = node.rank(x)
    rows, columns = (
        node.make("Range", node.const(0), node.squeezed(node.size_of(x, axis), [0]), node.const(1))
        for axis in (rank - 2, rank - 1)
    )
    return node.make("Sub", node.unsqueezed(rows, [1]), node.unsqueezed(columns, [0]))


@exporter("MatrixBandPart")
def band_part(node: ExportedNode, x: ModelValue, lower: ModelValue, upper: ModelValue) -> ModelValue:
    """Export the matrix with zeros outside a band around the main diagonal.

    The band has `lower` diagonals below and `upper` ones above; a negative number stands for all.
    """
    distances = _distances(node, x)
    below, above = (node.int64(node.scalar(v)) for v in (lower, upper))
    inside = []
    for limit, distance in ((below, distances), (above, node.make("Neg", distances))):
        unlimited = node.make("Less", limit, node.const(0))
        inside.append(node.make("Or", unlimited, node.make("LessOrEqual", distance, limit)))
    return node.make("Where", node.make("And", *inside), x, node.like(0, x))


@exporter("MatrixDiag", "Diag")
def diagonal_matrix(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export a matrix with these values on its diagonal."""
    rank = node.rank(x)
    if node.op == "Diag" and rank != 1:
        node.refuse("a diagonal of several axes")
    last = node.squeezed(node.size_of(x, rank - 1), [0])
    places = node.make("Range", node.const(0), last, node.const(1))
    # True on the diagonal, by comparing row and column numbers.
    main = node.make("Equal", node.unsqueezed(places, [1]), node.unsqueezed(places, [0]))
    return node.make("Where", main, node.make("Unsqueeze", x, node.const([rank])), node.like(0, x))


@exporter("MatrixDiagPart", "DiagPart")
def diagonal_part(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the diagonal of each matrix."""
    rank = node.rank(x)
    if node.op == "DiagPart" and rank != 2:
        node.refuse("a diagonal of several axes")
    rows, columns = node.size_of(x, rank - 2), node.size_of(x, rank - 1)
    count = node.make("Min", rows, columns)
    places = node.make("Range", node.const(0), node.squeezed(count, [0]), node.const(1))
    # Element i of the diagonal is at i · (columns + 1) in the flat matrix.
    flat = node.reshaped(x, node.joined([node.make("Shape", x, end=rank - 2), node.make("Mul", rows, columns)]))
    return node.make(
        "Gather", flat, node.make("Mul", places, node.make("Add", columns, node.const([1]))), axis=rank - 2
    )


@exporter("MatrixSetDiag")
def set_diagonal(node: ExportedNode, x: ModelValue, diagonal: ModelValue) -> ModelValue:
    """Export each matrix with its diagonal replaced."""
    rank = node.rank(x)
    main = node.make("Equal", _distances(node, x), node.const(0))
    rows, columns = node.size_of(x, rank - 2), node.size_of(x, rank - 1)
    count = node.make("Min", rows, columns)
    # The diagonal is padded at its end to the number of rows; ONNX lists all begins, then all ends.
    pads = [node.const([0] * (2 * (rank - 1) - 1)), node.make("Sub", rows, count)]
    column = node.make("Unsqueeze", node.make("Pad", diagonal, node.joined(pads)), node.const([rank - 1]))
    return node.make("Where", main, column, x)


# ── products ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
