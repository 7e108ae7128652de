"""Constants, and ops that return their input unchanged."""

from __future__ import annotations

from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


@exporter("Const")
def constant(node: ExportedNode) -> ModelValue:
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
def passed_on(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Return the value itself."""
    return x


@exporter("Print", any_layout=True)
def printed(node: ExportedNode, x: ModelValue, *data: ModelValue) -> ModelValue:
    """Return the value itself: models print nothing."""
    return x


@exporter("IdentityN", any_layout=True)
def all_passed_on(node: ExportedNode, *values: ModelValue) -> tuple[ModelValue, ...]:
    """Return the values themselves."""
    return values


@exporter("Cast", any_layout=True)
def cast(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export a numeric cast; conversions of strings are separate ops."""
    return node.cast(x, node.dtype)


@exporter("ZerosLike")
def zeros_like(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export zeros of the same shape."""
    return _filled(node, x, 0)


@exporter("OnesLike")
def ones_like(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export ones of the same shape."""
    return _filled(node, x, 1)


def _filled(node: ExportedNode, x: ModelValue, value: int) -> ModelValue:
    return node.make("Expand", node.const(value, node.dtype), node.shape_of(x))
