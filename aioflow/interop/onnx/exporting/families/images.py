"""Image resizing and contrast."""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.graph.signature.attributes import Attrs
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


@exporter("ResizeBilinear", any_layout=True)
def resize_bilinear(node: ExportedNode, images: ModelValue, size: ModelValue) -> ModelValue:
    """Export bilinear resizing; the result is float32."""
    return _resized(node, node.cast(images, dtypes.float32), size, {"mode": "linear"})


@exporter("ResizeBicubic", any_layout=True)
def resize_bicubic(node: ExportedNode, images: ModelValue, size: ModelValue) -> ModelValue:
    """Export bicubic resizing with Keys's kernel and half-pixel centers."""
    if not node.attr("half_pixel_centers"):
        node.refuse("cubic curves without half_pixel_centers, which TensorFlow reads off a table")
    how = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    return _resized(node, node.cast(images, dtypes.float32), size, how)


@exporter("ResizeNearestNeighbor", any_layout=True)
def resize_nearest(node: ExportedNode, images: ModelValue, size: ModelValue) -> ModelValue:
    """Export nearest-neighbor resizing."""
    rounds = node.attr("align_corners") or node.attr("half_pixel_centers")
    how = {"mode": "nearest", "nearest_mode": "round_prefer_ceil" if rounds else "floor"}
    return _resized(node, images, size, how)


@exporter("AdjustContrastv2")
def adjust_contrast(node: ExportedNode, images: ModelValue, factor: ModelValue) -> ModelValue:
    """Export the scaling of each channel's distance from its mean in the image."""
    wide = node.cast(images, dtypes.float32)
    mean = node.make("ReduceMean", wide, node.const([-3, -2]))
    return node.make("Add", node.make("Mul", node.make("Sub", wide, mean), node.scalar(factor)), mean)


def _resized(node: ExportedNode, images: ModelValue, size: ModelValue, how: Attrs) -> ModelValue:
    """Return resized images. The node's attributes determine the mapping of pixel coordinates."""
    given = node.first(images)
    where = "asymmetric"
    if node.attr("align_corners"):
        where = "align_corners"
    elif node.attr("half_pixel_centers"):
        where = "half_pixel"
    sizes = node.joined([node.make("Shape", given, start=0, end=2), node.vector(size)])
    made = node.make("Resize", given, None, None, sizes, coordinate_transformation_mode=where, **how)
    return node.last(made, False)
