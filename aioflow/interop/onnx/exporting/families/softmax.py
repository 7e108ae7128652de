"""Softmax, and cross-entropy losses on logits."""

from __future__ import annotations

from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


@exporter("Softmax", "LogSoftmax")
def softmax(node: ExportedNode, logits: ModelValue) -> ModelValue:
    """Export softmax or its logarithm along the last axis."""
    return node.make(node.op, logits, axis=-1)


@exporter("SoftmaxCrossEntropyWithLogits")
def cross_entropy(node: ExportedNode, logits: ModelValue, labels: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Export the loss of each row and its gradient."""
    logarithm = node.make("LogSoftmax", logits, axis=-1)
    zero = node.like(0, labels)
    # A label of 0 contributes 0, also where the logarithm is -inf and their product would be NaN.
    terms = node.make("Where", node.make("Equal", labels, zero), zero, node.make("Mul", labels, logarithm))
    loss = node.make("Neg", node.make("ReduceSum", terms, node.const([-1]), keepdims=0))
    return loss, node.make("Sub", node.make("Softmax", logits, axis=-1), labels)


@exporter("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(node: ExportedNode, logits: ModelValue, labels: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Export the loss of each row, whose label is a class index, and its gradient."""
    column = node.unsqueezed(node.int64(labels), [1])
    taken = node.make("GatherElements", node.make("LogSoftmax", logits, axis=-1), column, axis=1)
    loss = node.make("Neg", node.squeezed(taken, [1]))
    count = node.make("Squeeze", node.size_of(logits, 1), node.const([0]))
    classes = node.make("Range", node.const(0), count, node.const(1))
    chosen = node.cast(node.make("Equal", column, node.unsqueezed(classes, [0])), logits.dtype)
    return loss, node.make("Sub", node.make("Softmax", logits, axis=-1), chosen)
