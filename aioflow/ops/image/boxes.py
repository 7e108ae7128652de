"""Boxes in images: non-maximum suppression and drawing."""

from __future__ import annotations

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.graph.traits import opaque, reading
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, make


def _selected(ctx: ShapeContext) -> Dims:
    boxes, scores = ctx.dims("boxes"), ctx.require_rank("scores", 1)
    if not is_compatible(boxes, (None if scores is None else scores[0], 4)):
        raise InvalidArgumentError(
            "there is a box for each score", expected="boxes [n, 4], scores [n]", actual=format_dims(boxes)
        )
    for name in ("max_output_size", "iou_threshold", "score_threshold"):
        ctx.require_rank(name, 0)
    # The number of remaining boxes depends on their overlap.
    return (None,)


define_op(
    "NonMaxSuppressionV3",
    "boxes: T, scores: T, max_output_size: int32, iou_threshold: T_threshold, score_threshold: T_threshold",
    "selected_indices: int32",
    ["T: {float16, float32} = float32", "T_threshold: {float16, float32} = float32"],
    shape=_selected,
    rows=rows.by_values,
    traits=opaque(cost=reading(20), on_host="it has a kernel for the processor alone"),
)
not_differentiable("NonMaxSuppressionV3")


def _drawn(ctx: ShapeContext) -> Dims:
    boxes = ctx.require_rank("boxes", 3)
    if not is_compatible(boxes, (None, None, 4)):
        raise InvalidArgumentError("a box is y1, x1, y2, x2", expected="[images, boxes, 4]", actual=format_dims(boxes))
    return ctx.require_rank("images", 4)


def _drawn_in_colours(ctx: ShapeContext) -> Dims:
    ctx.require_rank("colors", 2)
    return _drawn(ctx)


_DRAWING = opaque(cost=reading(2), on_host="it has a kernel for the processor alone")
define_op(
    "DrawBoundingBoxes",
    "images: T, boxes: float32",
    "output: T",
    ["T: {float16, float32} = float32"],
    shape=_drawn,
    traits=_DRAWING,
)
define_op(
    "DrawBoundingBoxesV2",
    "images: T, boxes: float32, colors: float32",
    "output: T",
    ["T: {float16, float32} = float32"],
    shape=_drawn_in_colours,
    traits=_DRAWING,
)
not_differentiable("DrawBoundingBoxes", "DrawBoundingBoxesV2")


def draw_bounding_boxes(
    images: TensorLike, boxes: TensorLike, name: str | None = None, colors: TensorLike | None = None
) -> Tensor:
    """Draw boxes on images, one pixel wide.

    Args:
        images: [batch, height, width, channels], float16 or float32.
        boxes: [batch, boxes, 4], each y1, x1, y2, x2, where 0 is the first row or column of an image and 1 the last.
            Parts beyond the image are not drawn, nor is a box whose end is before its beginning.
        name: Name of the node.
        colors: [colors, channels], used for the boxes in turn; None is a table of ten, and white for gray images.

    Raises:
        InvalidArgumentError: a shape does not fit.
    """
    if colors is None:
        return make("DrawBoundingBoxes", images, boxes, name=name)
    return make("DrawBoundingBoxesV2", images, boxes, colors, name=name)


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """Return the indices of the best boxes, best first, without those that overlap a better one too much.

    Args:
        boxes: [n, 4]: two opposite corners, (y, x) each.
        scores: [n].
        max_output_size: Maximum number of indices.
        iou_threshold: Maximum overlap of two boxes, from 0 to 1: area of their intersection over area of their union.
        score_threshold: Boxes with scores up to this are dropped.
        name: Name of the node.

    Raises:
        InvalidArgumentError: a shape, or the overlap threshold, does not fit.
    """
    return make("NonMaxSuppressionV3", boxes, scores, max_output_size, iou_threshold, score_threshold, name=name)
