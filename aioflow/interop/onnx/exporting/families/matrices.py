"""Bands and diagonals of matrices in the last two axes."""

from __future__ import annotations

from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


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
