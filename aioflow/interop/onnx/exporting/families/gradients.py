"""Gradients of elementwise functions, so that a model can return the gradient of its loss with respect to an input.

Gradients of pools and normalization, and those of convolutions with respect to their filters, have no ONNX form. The
gradient of a convolution with respect to its input is in `convolutions.py`.
"""

from __future__ import annotations

from aioflow.interop.onnx.exporting.layouts import of_two
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


def _times(node: ExportedNode, first: ModelValue, *others: ModelValue | float) -> ModelValue:
    for other in others:
        first = node.make("Mul", first, other if isinstance(other, ModelValue) else node.like(other, first))
    return first


def _less_than_one(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Return 1 - x."""
    return node.make("Sub", node.like(1, x), x)


@of_two("TanhGrad")
def tanh_grad(node: ExportedNode, y: ModelValue, dy: ModelValue) -> ModelValue:
    """Export (1 - y²)·dy."""
    # d tanh(x) / dx = 1 - y².
    return _times(node, _less_than_one(node, _times(node, y, y)), dy)


@of_two("SigmoidGrad")
def sigmoid_grad(node: ExportedNode, y: ModelValue, dy: ModelValue) -> ModelValue:
    """Export y·(1 - y)·dy."""
    # d sigmoid(x) / dx = y (1 - y), so only the result of the forward step is needed.
    return _times(node, y, _less_than_one(node, y), dy)


@of_two("SqrtGrad")
def sqrt_grad(node: ExportedNode, y: ModelValue, dy: ModelValue) -> ModelValue:
    """Export dy / 2y, or 0 where dy is 0."""
    return _where_any(node, dy, _times(node, node.make("Div", dy, y), 0.5))


@of_two("RsqrtGrad")
def rsqrt_grad(node: ExportedNode, y: ModelValue, dy: ModelValue) -> ModelValue:
    """Export -dy·y³ / 2, or 0 where dy is 0."""
    # With y = x^(-1/2), dy/dx = -½ x^(-3/2) = -½ y³.
    return _where_any(node, dy, _times(node, dy, y, y, y, -0.5))


@of_two("ReciprocalGrad", "InvGrad")
def reciprocal_grad(node: ExportedNode, y: ModelValue, dy: ModelValue) -> ModelValue:
    """Export -dy·y², or 0 where dy is 0."""
    return _where_any(node, dy, _times(node, dy, y, y, -1))


def _where_any(node: ExportedNode, dy: ModelValue, made: ModelValue) -> ModelValue:
    zero = node.like(0, dy)
    return node.make("Where", node.make("Equal", dy, zero), zero, made)


@of_two("ReluGrad")
def relu_grad(node: ExportedNode, dy: ModelValue, x: ModelValue) -> ModelValue:
    """Export dy where x is positive, else 0."""
    return _times(node, dy, node.cast(node.make("Greater", x, node.like(0, x)), dy.dtype))


@of_two("Relu6Grad")
def relu6_grad(node: ExportedNode, dy: ModelValue, x: ModelValue) -> ModelValue:
    """Export dy where x is between 0 and 6, else 0."""
    inside = node.make("And", node.make("Greater", x, node.like(0, x)), node.make("Less", x, node.like(6, x)))
    return _times(node, dy, node.cast(inside, dy.dtype))


@of_two("LeakyReluGrad")
def leaky_relu_grad(node: ExportedNode, dy: ModelValue, x: ModelValue) -> ModelValue:
    """Export dy, or alpha · dy where x is not positive."""
    part = _times(node, dy, float(node.attr("alpha")))
    return node.make("Where", node.make("Greater", x, node.like(0, x)), dy, part)


@of_two("EluGrad")
def elu_grad(node: ExportedNode, dy: ModelValue, y: ModelValue) -> ModelValue:
    """Export dy, or (y + 1)·dy where y is negative."""
    # y = exp(x) - 1 for negative x, so y + 1 is the derivative.
    curved = _times(node, node.make("Add", y, node.like(1, y)), dy)
    return node.make("Where", node.make("Less", y, node.like(0, y)), curved, dy)


@of_two("SeluGrad")
def selu_grad(node: ExportedNode, dy: ModelValue, y: ModelValue) -> ModelValue:
    """Export scale · dy, or (y + scale · alpha)·dy where y is negative."""
    # scale · alpha of SELU. For negative x, y + scale · alpha = scale · alpha · exp(x), the derivative.
    scale, scale_alpha = 1.0507009873554805, 1.7580993408473768
    curved = _times(node, node.make("Add", y, node.like(scale_alpha, y)), dy)
    return node.make("Where", node.make("Less", y, node.like(0, y)), curved, _times(node, dy, scale))


@of_two("SoftplusGrad")
def softplus_grad(node: ExportedNode, dy: ModelValue, x: ModelValue) -> ModelValue:
    """Export dy / (exp(-x) + 1)."""
    # 1 / (exp(-x) + 1) is the sigmoid, which does not overflow.
    return _times(node, node.make("Sigmoid", x), dy)


@of_two("SoftsignGrad")
def softsign_grad(node: ExportedNode, dy: ModelValue, x: ModelValue) -> ModelValue:
    """Export dy / (|x| + 1)²."""
    base = node.make("Add", node.make("Abs", x), node.like(1, x))
    return node.make("Div", dy, _times(node, base, base))


@exporter("BiasAddGrad")
def bias_add_grad(node: ExportedNode, dy: ModelValue) -> ModelValue:
    """Export the sum over all axes but the channels."""
    rank = node.rank(dy)
    channels = 1 if str(node.attr("data_format")).startswith("NC") else rank - 1
    return node.make("ReduceSum", dy, node.const([a for a in range(rank) if a != channels]), keepdims=0)


@exporter("BroadcastGradientArgs")
def broadcast_gradient_args(node: ExportedNode, first: ModelValue, second: ModelValue) -> list[ModelValue]:
    """Export the axes along which each of two shapes is broadcast; axes of size 1 in both may be among them."""
    ranks = [None if shape.dims is None else shape.dims[0] for shape in (first, second)]
    if ranks[0] is None or ranks[1] is None:
        node.refuse("shapes of unknown rank")
    # Both shapes are filled up with ones at the front, as broadcasting does.
    most = max(ranks[0], ranks[1])
    found = []
    for shape, rank in zip((first, second), (ranks[0], ranks[1]), strict=True):
        whole = (
            node.joined([node.const([1] * (most - rank)), node.vector(shape)]) if rank < most else node.vector(shape)
        )
        found.append(node.reshaped(node.make("NonZero", node.make("Equal", whole, node.const(1))), [-1]))
    return found
