"""NonMaxSuppression: the best boxes of each class of each image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.interop.onnx.sizes import Size, int64, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import convert_to_tensor
from aioflow.ops.image.boxes import non_max_suppression as best_boxes

_FEW: Final = 128  # most pairs of image and class with nodes of their own, instead of a loop


@translation("NonMaxSuppression")
def non_max_suppression(
    node: OnnxNode,
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    overlap: Tensor | None = None,
    least: Tensor | None = None,
) -> Tensor:
    if most is None:  # the default is 0 boxes of each class
        return convert_to_tensor(np.zeros((0, 3), np.int64))
    images, classes = sizes_of(scores)[:2]
    corners = _corners(boxes) if node.attr("center_point_box", 0) else boxes
    count = ops.cast(ops.minimum(ops.reshape(int64(most), []), 2**31 - 1), "int32")
    limit: float | Tensor = 0.0 if overlap is None else ops.reshape(overlap, [])
    worst: float | Tensor = float("-inf") if least is None else ops.reshape(least, [])

    def best(image: Size, each: Size) -> Tensor:
        found = best_boxes(corners[image], scores[image, each], ops.maximum(count, 0), limit, worst)
        # Rows of the result are (image, class, box).
        rows = [image + ops.zeros_like(int64(found)), each + ops.zeros_like(int64(found)), int64(found)]
        return ops.stack(rows, 1)

    if isinstance(images, int) and isinstance(classes, int) and images * classes <= _FEW:
        parts = [best(image, each) for image in range(images) for each in range(classes)]
        return ops.concat(parts, 0) if parts else convert_to_tensor(np.zeros((0, 3), np.int64))
    return _of_each(best, int64(images) * int64(classes), int64(classes))


def _of_each(best: Callable[[Tensor, Tensor], Tensor], count: Tensor, classes: Tensor) -> Tensor:
    """Return the concatenated results of a loop over the classes of all images."""

    def step(number: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        return number + 1, ops.concat([found, best(number // classes, ops.floormod(number, classes))], 0)

    shapes = [TensorShape([]), TensorShape([None, 3])]
    begin = [int64(0), convert_to_tensor(np.zeros((0, 3), np.int64))]
    _, found = ops.while_loop(lambda number, _: number < count, step, begin, shape_invariants=shapes)
    result: Tensor = found
    return result


def _corners(boxes: Tensor) -> Tensor:
    """Return boxes given by center and size, (x, y, width, height), as corners (y, x)."""
    x, y, width, height = (boxes[:, :, i] for i in range(4))
    return ops.stack([y - height / 2.0, x - width / 2.0, y + height / 2.0, x + width / 2.0], 2)
