"""The kernel of non-maximum suppression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_int, as_number
from aioflow.kernels.registry import Binding, binder
from aioflow.work.stopping import checkpoint

__all__: list[str] = []

_BLOCK = 1 << 14  # boxes with which one is compared at a time, between two checkpoints


@binder(
    "NonMaxSuppressionV3",
    device="CPU",
    host={"max_output_size": as_int, "iou_threshold": as_number, "score_threshold": as_number},
    fresh=True,
)
def non_max_suppression(binding: Binding) -> Callable[..., Any]:
    def body(boxes: Any, scores: Any, most: int, overlap: float, least: float) -> Any:
        if scores.ndim != 1 or boxes.shape != (len(scores), 4):
            raise InvalidArgumentError(
                "there is a box for each score", expected="boxes [n, 4], scores [n]", actual=(boxes.shape, scores.shape)
            )
        if not 0 <= overlap <= 1:
            raise InvalidArgumentError("iou_threshold is out of range", expected="0..1", actual=overlap)
        if most < 0:
            raise InvalidArgumentError("max_output_size is negative", expected=">= 0", actual=most)
        wide = scores.astype(np.float32, copy=False)
        order = np.argsort(-wide, kind="stable")
        order = order[wide[order] > least]
        return np.array(_kept(boxes.astype(np.float32, copy=False)[order], order, most, overlap), np.int32)

    return body


def _kept(boxes: Any, order: Any, most: int, overlap: float) -> list[int]:
    """Of boxes in order, the best first, which are kept."""
    corners = np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)
    areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    kept: list[int] = []
    left = np.arange(len(order))
    while len(left) and len(kept) < most:
        checkpoint()
        best, left = left[0], left[1:]
        kept.append(int(order[best]))
        left = left[_overlaps(corners, areas, best, left) <= overlap]
    return kept


def _overlaps(corners: Any, areas: Any, one: Any, others: Any) -> Any:
    """Intersection over union; 0 where a box has no area."""
    result = np.zeros(len(others), np.float32)
    for start in range(0, len(others), _BLOCK):
        part = others[start : start + _BLOCK]
        sides = np.minimum(corners[one, 2:], corners[part, 2:]) - np.maximum(corners[one, :2], corners[part, :2])
        common = np.maximum(sides, 0).prod(axis=1)
        union = areas[one] + areas[part] - common
        solid = (areas[part] > 0) & (areas[one] > 0)
        result[start : start + _BLOCK] = np.divide(common, union, out=np.zeros_like(common), where=solid)
    return result
