"""Reductions of rows by segment number, translated as a scatter with a reduction."""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue

_FAR: Final = 2**62


def _start(node: ExportedNode, x: ModelValue, reduction: str) -> ModelValue:
    """Return the value of a segment without rows."""
    if reduction in ("add", "mul"):
        return node.like(0 if reduction == "add" else 1, x)
    lowest = reduction == "max"
    return node.like(x.dtype.min if lowest else x.dtype.max, x)


def _combined(
    node: ExportedNode, data: ModelValue, ids: ModelValue, count: ModelValue, reduction: str, start: ModelValue
) -> ModelValue:
    """Return one row for each number below `count` (int64 [1]). Rows with negative numbers are dropped."""
    own = node.rank(ids)
    numbers = node.vector(ids)
    rows = data
    tail = node.make("Shape", data, start=own)
    if own != 1:
        # Ids of several axes number rows of the remaining axes.
        rows = node.reshaped(data, node.joined([node.make("Shape", numbers), tail]))
    # ONNX counts negative indices from the end, so dropped rows go to an extra last row, which is sliced off.
    beyond = node.make("Where", node.make("Less", numbers, node.const(0)), count, numbers)
    one_more = node.make("Add", count, node.const([1]))
    blank = node.make("Expand", start, node.joined([one_more, tail]))
    made = node.make("ScatterND", blank, node.unsqueezed(beyond, [1]), rows, reduction=reduction)
    return node.make("Slice", made, node.const([0]), count, node.const([0]))


def _unsorted(op: str, reduction: str) -> None:
    @exporter(op)
    def made(node: ExportedNode, data: ModelValue, ids: ModelValue, count: ModelValue) -> ModelValue:
        return _combined(node, data, ids, node.vector(count), reduction, _start(node, data, reduction))


_unsorted("UnsortedSegmentSum", "add")
_unsorted("UnsortedSegmentProd", "mul")
_unsorted("UnsortedSegmentMax", "max")
_unsorted("UnsortedSegmentMin", "min")


def _sorted_count(node: ExportedNode, ids: ModelValue) -> ModelValue:
    """Return the last number plus one, or 0 if there are no numbers."""
    numbers = node.joined([node.const([-1]), node.vector(ids)])
    last = node.make("Slice", numbers, node.const([-1]), node.const([_FAR]))
    return node.make("Add", last, node.const([1]))


def _sorted(op: str, reduction: str) -> None:
    @exporter(op)
    def made(node: ExportedNode, data: ModelValue, ids: ModelValue) -> ModelValue:
        count = _sorted_count(node, ids)
        found = _combined(node, data, ids, count, reduction, _start(node, data, reduction))
        if reduction in ("add", "mul"):
            return found
        # TensorFlow returns 0 for an empty segment of the sorted ops, and the extreme of the dtype for the unsorted
        # ones.
        present = node.make("Greater", _counts(node, data, ids, count), node.const(0))
        return node.make("Where", present, found, node.like(0, data))


def _counts(node: ExportedNode, data: ModelValue, ids: ModelValue, count: ModelValue) -> ModelValue:
    """Return the number of rows of each segment, shaped to broadcast over rows."""
    ones = node.make("Expand", node.const(1), node.make("Shape", ids))
    found = _combined(node, ones.of((None,)), ids, count, "add", node.const(0))
    return node.unsqueezed(found, range(1, node.rank(data)))


_sorted("SegmentSum", "add")
_sorted("SegmentProd", "mul")
_sorted("SegmentMax", "max")
_sorted("SegmentMin", "min")


@exporter("SegmentMean")
def segment_mean(node: ExportedNode, data: ModelValue, ids: ModelValue) -> ModelValue:
    """Export the mean of the rows of each segment."""
    count = _sorted_count(node, ids)
    total = _combined(node, data, ids, count, "add", node.like(0, data))
    # Max avoids 0 / 0: the mean of an empty segment is 0.
    rows = node.cast(node.make("Max", _counts(node, data, ids, count), node.const(1)), data.dtype)
    return node.make("Div", total, rows)


@exporter("Bincount")
def bincount(node: ExportedNode, values: ModelValue, size: ModelValue, weights: ModelValue) -> ModelValue:
    """Export the count of each number, or the sum of its weights. Numbers that are too large are ignored."""
    limit = node.vector(size)
    numbers = node.vector(values)
    inside = node.make("Where", node.make("Less", numbers, limit), numbers, node.const(-1)).of((None,))
    if weights.dims is not None and weights.dims[0] == 0:
        ones = node.make("Expand", node.const(1, dtypes.int32), node.make("Shape", inside))
    elif weights.dims is None or weights.dims[0] is None:
        node.refuse("weights of which it is not known whether there are any")
    else:
        ones = node.reshaped(weights, [-1])
    made = _combined(node, ones.of((None,)), inside, limit, "add", node.like(np.int64(0), ones))
    return node.cast(made, node.dtype)
