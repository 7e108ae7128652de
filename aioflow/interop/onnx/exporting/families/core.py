"""Constants, and the ops that hand a value on."""

from __future__ import annotations

from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import Value


@exporter("Const")
def constant(node: Node) -> Value:
    """An initializer, if anything reads it."""
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
    """The value itself."""
    return x


@exporter("Print", any_layout=True)
def printed(node: Node, x: Value, *data: Value) -> Value:
    """The value itself: models print nothing."""
    return x


@exporter("IdentityN", any_layout=True)
def all_passed_on(node: Node, *values: Value) -> tuple[Value, ...]:
    """The values themselves."""
    return values


@exporter("Cast", any_layout=True)
def cast(node: Node, x: Value) -> Value:
    """Numbers as other numbers; of strings there are ops of their own."""
    return node.cast(x, node.dtype)


@exporter("ZerosLike")
def zeros_like(node: Node, x: Value) -> Value:
    """Zeros of that shape."""
    return _filled(node, x, 0)


@exporter("OnesLike")
def ones_like(node: Node, x: Value) -> Value:
    """Ones of that shape."""
    return _filled(node, x, 1)


def _filled(node: Node, x: Value, value: int) -> Value:
    return node.make("Expand", node.const(value, node.dtype), node.shape_of(x))
