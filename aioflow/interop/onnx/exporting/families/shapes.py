"""Ops that return shapes, reshape or broadcast values, or make ranges."""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import composed, exporter
from aioflow.interop.onnx.exporting.values import ModelValue


@exporter("Shape", any_layout=True)
def shape(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the shape."""
    return _shape(node, x)


@exporter("ShapeN", any_layout=True)
def shapes(node: ExportedNode, *values: ModelValue) -> list[ModelValue]:
    """Export the shape of each value."""
    return [_shape(node, value) for value in values]


def _shape(node: ExportedNode, x: ModelValue) -> ModelValue:
    if not x.channels_first:
        return node.make("Shape", x)
    rank = node.rank(x)  # the shape of the transposed value, without transposing it
    return node.make("Gather", node.make("Shape", node.first(x)), node.const([0, *range(2, rank), 1]))


@exporter("Size", any_layout=True)
def size(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the number of elements."""
    return node.make("Size", x)


@exporter("Rank", any_layout=True)
def rank_of(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the number of axes."""
    if x.rank is not None:
        return node.const(x.rank, dtypes.int32)
    return node.make("Size", node.make("Shape", x))


@exporter("Reshape")
def reshape(node: ExportedNode, x: ModelValue, wanted: ModelValue) -> ModelValue:
    """Export the same elements in another shape."""
    dims = node.outputs[0].dims
    # The static shape determines the sizes, at most one of them by -1, so the wanted shape needs no nodes.
    if dims is not None and wanted.constant is None and sum(size is None for size in dims) <= 1 and 0 not in dims:
        return node.reshaped(x, [-1 if size is None else size for size in dims])
    if wanted.constant is not None:
        return node.reshaped(x, [int(size) for size in wanted.constant.reshape(-1)])
    return node.reshaped(x, wanted)


@exporter("ExpandDims")
def expand_dims(node: ExportedNode, x: ModelValue, dim: ModelValue) -> ModelValue:
    """Export the insertion of an axis of size 1."""
    if dim.constant is None:
        return node.make("Unsqueeze", x, node.vector(dim))
    return node.unsqueezed(x, [int(dim.constant.reshape(-1)[0])])


@exporter("Squeeze")
def squeeze(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the removal of axes of size 1: the named ones, or all."""
    axes = [int(axis) for axis in node.attr("squeeze_dims")]
    if axes:
        return node.squeezed(x, axes)
    # With named axes the rank of the result is known.
    if x.is_static:
        return node.squeezed(x, [i for i, n in enumerate(x.dims or ()) if n == 1])
    return node.make("Squeeze", x)


@exporter("Transpose")
def transpose(node: ExportedNode, x: ModelValue, perm: ModelValue) -> ModelValue:
    """Export the value with its axes in another order."""
    order = [int(axis) for axis in node.known(perm, "an order of axes that is not constant")]
    return node.transposed(x, [axis % len(order) for axis in order])


@exporter("BroadcastTo")
def broadcast_to(node: ExportedNode, x: ModelValue, wanted: ModelValue) -> ModelValue:
    """Export the value broadcast to a shape."""
    return node.make("Expand", x, node.vector(wanted))


@composed("Expand", "BroadcastTo(x, BroadcastArgs(Cast[Shape(x)], wanted))")
def expand(node: ExportedNode, x: ModelValue, wanted: ModelValue) -> ModelValue:
    """Export the value broadcast to the common shape of x and `wanted`."""
    return broadcast_to(node, x, wanted)


@exporter("Fill")
def fill(node: ExportedNode, dims: ModelValue, value: ModelValue) -> ModelValue:
    """Export one value repeated in a shape."""
    return node.make("Expand", node.scalar(value), node.vector(dims))


@exporter("Tile")
def tile(node: ExportedNode, x: ModelValue, multiples: ModelValue) -> ModelValue:
    """Export the value repeated along each axis."""
    return node.make("Tile", x, node.vector(multiples))


@exporter("Range")
def number_range(node: ExportedNode, start: ModelValue, limit: ModelValue, delta: ModelValue) -> ModelValue:
    """Export the numbers from a start up to a limit, which is excluded."""
    return node.make("Range", *(node.scalar(v) for v in (start, limit, delta)))


@exporter("LinSpace")
def lin_space(node: ExportedNode, start: ModelValue, stop: ModelValue, count: ModelValue) -> ModelValue:
    """Export evenly spaced numbers from a start to a stop, both included."""
    number = node.int64(node.scalar(count))
    places = node.make("Range", node.const(0), number, node.const(1))
    last = node.make("Sub", number, node.const(1))
    # Max avoids a division by 0 for a single number.
    steps = node.cast(node.make("Max", last, node.const(1)), start.dtype)
    delta = node.make("Div", node.make("Sub", node.scalar(stop), node.scalar(start)), steps)
    made = node.make("Add", node.scalar(start), node.make("Mul", node.cast(places, start.dtype), delta))
    # The last number is `stop` itself: start + last * delta may differ from it by a rounding error.
    end = node.make("And", node.make("Equal", places, last), node.make("Greater", last, node.const(0)))
    return node.make("Where", end, node.scalar(stop), made)


@exporter("BroadcastArgs")
def broadcast_shape(node: ExportedNode, first: ModelValue, second: ModelValue) -> ModelValue:
    """Export the shape that two shapes broadcast to."""
    ranks = [each.dims[0] if each.dims else None for each in (first, second)]
    if None not in ranks:
        rank = max(rank or 0 for rank in ranks)
        missing = [node.const([1] * (rank - (own or 0))) for own in ranks]
        left, right = (node.joined([m, node.vector(v)]) for m, v in zip(missing, (first, second), strict=True))
        # From each pair of sizes, take the one that is not 1.
        return node.make("Where", node.make("Equal", left, node.const(1)), right, left)
    # Ranks are unknown: let the runtime broadcast arrays of these shapes.
    ones = [node.make("Expand", node.const(1), node.vector(each)) for each in (first, second)]
    return node.make("Shape", node.make("Mul", *ones))


@exporter("InvertPermutation")
def invert_permutation(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the position of each index."""
    places = node.make("Range", node.const(0), node.make("Size", x), node.const(1))
    # The inverse maps x[i] to i.
    return node.make("ScatterElements", places, node.int64(x), places, axis=0)
