"""Constants, and ops that return their input unchanged."""

from __future__ import annotations

from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import Value


@exporter("Const")
def constant(node: Node) -> Value:
    """Export an initializer, if it is read."""
    return node.scope.parts.constant(node.attr("value"), node.dtype, node.name)


@exporter(
    "AioflowCheckedIds",
    "CheckNumerics",
    "EnsureShape",
    "Identity",
    "PlaceholderWithDefault",
    "PreventGradient",
    "Snapshot",
    any_layout=True,
)
@exporter("StopGradient", any_layout=True)
def passed_on(node: Node, x: Value) -> Value:
    """Return the value itself."""
    return x


@exporter("Print", any_layout=True)
def printed(node: Node, x: Value, *data: Value) -> Value:
    """Return the value itself: models print nothing."""
    return x


@exporter("IdentityN", any_layout=True)
def all_passed_on(node: Node, *values: Value) -> tuple[Value, ...]:
    """Return the values themselves."""
    return values


@exporter("Cast", any_layout=True)
def cast(node: Node, x: Value) -> Value:
    """Export a numeric cast; conversions of strings are separate ops."""
    return node.cast(x, node.dtype)


@exporter("ZerosLike")
def zeros_like(node: Node, x: Value) -> Value:
    """Export zeros of the same shape."""
    return _filled(node, x, 0)


@exporter("OnesLike")
def ones_like(node: Node, x: Value) -> Value:
    """Export ones of the same shape."""
    return _filled(node, x, 1)


def _filled(node: Node, x: Value, value: int) -> Value:
    return node.make("Expand", node.const(value, node.dtype), node.shape_of(x))
