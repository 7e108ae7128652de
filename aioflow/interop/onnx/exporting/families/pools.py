"""Pooling and local response normalization, with the channels first or last."""

from __future__ import annotations

from aioflow.graph.signature.attributes import Attrs
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.interop.onnx.exporting.windows import windows_of
from aioflow.ops.nn.geometry import pool_kernel


@exporter("MaxPool", "MaxPool3D", any_layout=True)
def max_pool(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the greatest value of each window."""
    return _pooled(node, x, "MaxPool", {})


@exporter("AvgPool", "AvgPool3D", any_layout=True)
def average_pool(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the mean of each window without padding."""
    return _pooled(node, x, "AveragePool", {"count_include_pad": 0})


def _pooled(node: ExportedNode, x: ModelValue, op: str, attrs: Attrs) -> ModelValue:
    windows = windows_of(node)
    sizes = list(pool_kernel(windows.window, node.attr("ksize")))
    images = node.first(x, windows.channels_first)
    made = node.make(
        op, images, kernel_shape=sizes, strides=windows.strides, **windows.padding(node, images, sizes), **attrs
    )
    return node.last(made, windows.channels_first)


@exporter("LRN", any_layout=True)
def local_response(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export local response normalization across channels."""
    size = 2 * int(node.attr("depth_radius")) + 1
    made = node.make(
        "LRN",
        node.first(x),
        size=size,
        # ONNX divides alpha by the number of channels in the window.
        alpha=float(node.attr("alpha")) * size,
        beta=float(node.attr("beta")),
        bias=float(node.attr("bias")),
    )
    return node.last(made, False)
