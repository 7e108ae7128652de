"""Kernels of boxes: non-maximum suppression and drawing."""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.concurrency.stopping import batches, blocks, checkpoint
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_int, as_number
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.copying import copied
from aioflow.memory.values import Array

_BLOCK = 1 << 14  # boxes that are compared with one box, or drawn, between two checkpoints


@binder(
    "NonMaxSuppressionV3",
    device="CPU",
    host={"max_output_size": as_int, "iou_threshold": as_number, "score_threshold": as_number},
    fresh=True,
)
def non_max_suppression(binding: Binding) -> KernelBody:
    def body(boxes: Array, scores: Array, most: int, overlap: float, least: float) -> Array:
        if scores.ndim != 1 or boxes.shape != (len(scores), 4):
            raise InvalidArgumentError(
                "there is a box for each score", expected="boxes [n, 4], scores [n]", actual=(boxes.shape, scores.shape)
            )
        if not 0 <= overlap <= 1:
            raise InvalidArgumentError("iou_threshold is out of range", expected="0..1", actual=overlap)
        if most < 0:
            raise InvalidArgumentError("max_output_size is negative", expected=">= 0", actual=most)
        wide = scores.astype(np.float32, copy=False)
        # If scores are equal, the box with the lower index comes first.
        order = np.argsort(-wide, kind="stable")
        order = order[wide[order] > least]
        return np.array(_kept(boxes.astype(np.float32, copy=False)[order], order, most, overlap), np.int32)

    return body


def _kept(boxes: Array, order: Array, most: int, overlap: float) -> list[int]:
    """Return the indices of the kept boxes, for boxes sorted by descending score."""
    # A box may be given by any two opposite corners.
    corners = np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    kept: list[int] = []
    left = np.arange(len(order))
    while len(left) and len(kept) < most:
        checkpoint()
        # Greedy: the best remaining box is kept, and boxes that overlap it too much are dropped.
        best, left = left[0], left[1:]
        kept.append(int(order[best]))
        left = left[_overlaps(corners, areas, best, left) <= overlap]
    return kept


def _overlaps(corners: Array, areas: Array, one: np.intp, others: Array) -> Array:
    """Return the intersection over union of `one` with each of the others; 0 if a box has no area."""
    result = np.zeros(len(others), np.float32)
    for start in range(0, len(others), _BLOCK):
        part = others[start : start + _BLOCK]
        sides = np.minimum(corners[one, 2:], corners[part, 2:]) - np.maximum(corners[one, :2], corners[part, :2])
        common = np.maximum(sides, 0).prod(axis=1)
        union = areas[one] + areas[part] - common
        solid = (areas[part] > 0) & (areas[one] > 0)
        result[start : start + _BLOCK] = np.divide(common, union, out=np.zeros_like(common), where=solid)
    return result


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# Yellow, blue, red, lime, purple, olive, maroon, navy, aqua and fuchsia, all opaque.
_COLOURS: Final = np.array(
    [
        (1, 1, 0, 1),
        (0, 0, 1, 1),
        (1, 0, 0, 1),
        (0, 1, 0, 1),
        (0.5, 0, 0.5, 1),
        (0.5, 0.5, 0, 1),
        (0.5, 0, 0, 1),
        (0, 0, 0.5, 1),
        (0, 1, 1, 1),
        (1, 0, 1, 1),
    ],
    np.float32,
)
_WHITE: Final = np.ones((1, 1), np.float32)


@binder("DrawBoundingBoxes", device="CPU", fresh=True)
@binder("DrawBoundingBoxesV2", device="CPU", fresh=True)
def draw_bounding_boxes(binding: Binding) -> KernelBody:
    def body(images: Array, boxes: Array, colors: Array | None = None) -> Array:
        if images.ndim != 4:
            raise InvalidArgumentError("images have four dimensions", expected="rank 4", actual=images.shape)
        if boxes.ndim != 3 or (len(boxes), boxes.shape[2]) != (len(images), 4):
            raise InvalidArgumentError(
                "there are boxes for each image", expected=f"[{len(images)}, boxes, 4]", actual=boxes.shape
            )
        table = _table(images.shape[3], colors).astype(images.dtype)
        made: Array = copied(images)
        for image, its_boxes in zip(made, boxes, strict=True):
            _draw(image, its_boxes, table)
        return made

    return body


def _table(channels: int, colors: Array | None) -> Array:
    if colors is not None and colors.size:
        if colors.ndim != 2 or colors.shape[1] < channels:
            raise InvalidArgumentError(
                "a colour has a number for each channel", expected=f"[colours, {channels}]", actual=colors.shape
            )
        return colors[:, :channels]
    if channels > _COLOURS.shape[1]:
        raise InvalidArgumentError("there are no colours of so many channels", expected="<= 4", actual=channels)
    return _WHITE if channels == 1 else _COLOURS[:, :channels]


def _draw(image: Array, boxes: Array, table: Array) -> None:
    scale = np.array([image.shape[0] - 1, image.shape[1] - 1] * 2, np.float32)
    for part in blocks(len(boxes), _BLOCK):
        # NaN and infinity have no integer, about which NumPy would warn.
        with np.errstate(invalid="ignore"):
            corners = (boxes[part] * scale).astype(np.int64)
        for number, box in enumerate(batches(corners.tolist()), part.start):
            _draw_one(image, box, table[number % len(table)])


def _draw_one(image: Array, box: list[int], colour: Array) -> None:
    (height, width, _), (top, left, bottom, right) = image.shape, box
    if top > bottom or left > right or top >= height or left >= width or bottom < 0 or right < 0:
        return
    rows, columns = slice(max(top, 0), bottom + 1), slice(max(left, 0), right + 1)
    for row in (top, bottom):
        if 0 <= row < height:
            image[row, columns] = colour
    for column in (left, right):
        if 0 <= column < width:
            image[rows, column] = colour
