"""Concatenation, splitting, partitioning and sorting of values."""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.layouts import alike
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue, channels_first_order


@exporter("Concat", any_layout=True)
def concat(node: ExportedNode, axis: ModelValue, *values: ModelValue) -> ModelValue:
    """Export a concatenation along an axis."""
    return _joined(node, values, axis)


@exporter("ConcatV2", any_layout=True)
def concat_v2(node: ExportedNode, *inputs: ModelValue) -> ModelValue:
    """Export a concatenation along an axis."""
    return _joined(node, inputs[:-1], inputs[-1])


def _joined(node: ExportedNode, values: tuple[ModelValue, ...], axis: ModelValue) -> ModelValue:
    at = int(node.known(axis, "an axis that is not constant").reshape(-1)[0])
    if any(v.channels_first for v in values) and len({v.rank for v in values}) == 1:
        # The axis is that of the graph's layout, so its place among the channels-first axes is looked up.
        plain, _ = alike(node, values)
        rank = node.rank(values[0])
        made = node.joined(plain, channels_first_order(rank).index(at % rank))
        return ModelValue(made.name, made.dtype, node.outputs[0].dims, None, True)
    return node.joined([node.rows(v) for v in values], at)


@exporter("Split")
def split(node: ExportedNode, axis: ModelValue, value: ModelValue) -> tuple[ModelValue, ...]:
    """Export equal parts along an axis."""
    at = int(node.known(axis, "an axis that is not constant").reshape(-1)[0])
    count = int(node.attr("num_split"))
    return node.makes("Split", value, outputs=count, axis=at, num_outputs=count)


@exporter("SplitV")
def split_v(node: ExportedNode, value: ModelValue, sizes: ModelValue, axis: ModelValue) -> tuple[ModelValue, ...]:
    """Export parts of given sizes along an axis; -1 stands for the remaining size."""
    at = int(node.known(axis, "an axis that is not constant").reshape(-1)[0])
    own, count = node.vector(sizes), int(node.attr("num_split"))
    if own.constant is None or -1 in own.constant:
        whole = node.size_of(value, at % node.rank(value))
        # Add 1 because the sum includes the -1 itself.
        others = node.make("Add", node.make("ReduceSum", own), node.const(1))
        rest = node.make("Sub", whole, others)
        own = node.make("Where", node.make("Equal", own, node.const(-1)), rest, own)
    return node.makes("Split", value, own, outputs=count, axis=at)


@exporter("Pack")
def pack(node: ExportedNode, *values: ModelValue) -> ModelValue:
    """Export a stack along a new axis."""
    axis = int(node.attr("axis"))
    return node.joined([node.make("Unsqueeze", v, node.const([axis])) for v in values], axis)


@exporter("Unpack")
def unpack(node: ExportedNode, value: ModelValue) -> list[ModelValue]:
    """Export the slices along an axis, without that axis."""
    axis, count = int(node.attr("axis")), int(node.attr("num"))
    if count == 0:
        return []
    # Equal parts need the attribute from opset 18 on; earlier ones are not exported.
    parts = node.makes("Split", value, outputs=count, axis=axis, num_outputs=count)
    return [node.squeezed(part, [axis]) for part in parts]


@exporter("DynamicPartition")
def dynamic_partition(node: ExportedNode, data: ModelValue, partitions: ModelValue) -> list[ModelValue]:
    """Export the rows of each partition number."""
    if partitions.rank != 1:
        node.refuse("numbers that are not a vector")
    numbers = node.int64(partitions)
    chosen = [node.make("Equal", numbers, node.const(i)) for i in range(int(node.attr("num_partitions")))]
    return [node.make("Compress", data, each, axis=0) for each in chosen]


@exporter("DynamicStitch", "ParallelDynamicStitch")
def dynamic_stitch(node: ExportedNode, *inputs: ModelValue) -> ModelValue:
    """Export rows ordered by number; of rows with the same number, the last one wins."""
    half = len(inputs) // 2
    rows = []
    for number, data in zip(inputs[:half], inputs[half:], strict=True):
        own = node.rank(number)
        dims = data.dims
        if own == 1:
            rows.append(data)
        elif dims is None or None in dims[own:]:
            node.refuse("rows of a shape that is not known")
        else:
            sizes = [node.make("Shape", node.vector(number)), node.const([d for d in dims[own:] if d is not None])]
            rows.append(node.reshaped(data, node.joined(sizes)))
    data = node.joined(rows)
    # The updates are applied in order, so a later row replaces an earlier one.
    numbers = node.joined([node.vector(n) for n in inputs[:half]])
    # The -1 makes the count 0 if there are no rows.
    greatest = node.make("ReduceMax", node.joined([node.const([-1]), numbers]), node.const([0]), keepdims=1)
    count = node.make("Add", greatest, node.const([1]))
    shape = node.joined([count, node.make("Shape", data, start=1)])
    blank = node.make("Expand", node.const(0, data.dtype), shape)
    return node.make("ScatterND", blank, node.unsqueezed(numbers, [1]), data)


@exporter("Unique", "UniqueWithCounts")
def unique(node: ExportedNode, x: ModelValue) -> list[ModelValue]:
    """Export the distinct values in order of occurrence, the index of each element among them, and their counts."""
    # ONNX's second output, the position where each value occurs first, has no counterpart.
    found = node.makes("Unique", x, outputs=4, sorted=0)
    return [found[0], found[2], found[3]][: len(node.outputs)]


@exporter("UniqueV2")
def unique_v2(node: ExportedNode, x: ModelValue, axis: ModelValue) -> list[ModelValue]:
    """Export distinct slices along an axis, like `unique`."""
    known = node.known(axis, "an axis that is not constant").reshape(-1)
    at = int(known[0]) if known.size else None
    found = node.makes("Unique", x, outputs=4, sorted=0, axis=at)
    return [found[0], found[2]]


@exporter("TopK")
def top_k(node: ExportedNode, x: ModelValue) -> list[ModelValue]:
    """Export the greatest values along the last axis, and their indices."""
    return list(node.makes("TopK", x, node.const([int(node.attr("k"))]), outputs=2))


@exporter("TopKV2")
def top_k_v2(node: ExportedNode, x: ModelValue, k: ModelValue) -> list[ModelValue]:
    """Export the greatest values along the last axis, and their indices; of equal values, the first come first."""
    return list(node.makes("TopK", x, node.vector(k), outputs=2))


@exporter("NthElement")
def nth_element(node: ExportedNode, x: ModelValue, n: ModelValue) -> ModelValue:
    """Export the value at position n of the last axis in ascending order, with `reverse` in descending order."""
    count = node.make("Add", node.vector(n), node.const([1]))
    values, _ = node.makes("TopK", x, count, outputs=2, largest=int(node.attr("reverse")))
    # The last of the n + 1 first values in order.
    return node.squeezed(node.make("Slice", values, node.const([-1]), node.const([2**62]), node.const([-1])), [-1])


@exporter("InTopK", "InTopKV2")
def in_top_k(
    node: ExportedNode, predictions: ModelValue, targets: ModelValue, k: ModelValue | None = None
) -> ModelValue:
    """Export whether the target's prediction is among the k greatest of its row; ties count as greatest."""
    limit = node.const(int(node.attr("k"))) if k is None else node.int64(node.scalar(k))
    own = node.make("GatherElements", predictions, node.unsqueezed(node.int64(targets), [1]), axis=1)
    # The target is among the k greatest if fewer than k predictions are greater.
    greater = node.cast(node.make("Greater", predictions, own), dtypes.int64)
    return node.make("Less", node.make("ReduceSum", greater, node.const([1]), keepdims=0), limit)
