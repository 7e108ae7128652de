"""Boxes against TensorFlow: non-maximum suppression, and drawing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("most", [0, 3, 200])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 1.0])
def test_non_max_suppression(parity: Any, overlap: float, most: int) -> None:
    rng = np.random.default_rng(0)
    corners = rng.random((100, 4)).astype(np.float32)  # corners in any order
    corners[7] = corners[8]
    corners[9, 2] = corners[9, 0]  # no area
    scores = np.round(rng.random(100), 1).astype(np.float32)  # many ties

    def build(m: Any, boxes: Any, scores: Any) -> Any:
        return m.image.non_max_suppression(boxes, scores, most, overlap, 0.15)

    parity(build, corners, scores, grad=False)


def test_non_max_suppression_in_float16(parity: Any) -> None:
    rng = np.random.default_rng(1)

    def build(m: Any, boxes: Any, scores: Any) -> Any:
        return m.raw_ops.NonMaxSuppressionV3(
            boxes=boxes, scores=scores, max_output_size=5, iou_threshold=0.5, score_threshold=0.0
        )

    parity(build, rng.random((20, 4)).astype(np.float16), rng.random(20).astype(np.float16), grad=False)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_draw_bounding_boxes(parity: Any, dtype: str, channels: int) -> None:
    rng = np.random.default_rng(2)
    boxes = np.round(rng.uniform(-0.3, 1.3, (2, 14, 4)), 2).astype(np.float32)
    boxes[0, :3] = np.array([[0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], [-0.2, 0.1, 1.2, 0.9]])
    images = rng.random((2, 11, 13, channels)).astype(dtype)
    parity(lambda m, x, y: m.image.draw_bounding_boxes(x, y), images, boxes, grad=False)
    parity(lambda m, x, y: m.image.draw_bounding_boxes(x, y), images, boxes[:, :0], grad=False)
    colors = rng.random((3, channels)).astype(np.float32)
    parity(lambda m, x, y: m.image.draw_bounding_boxes(x, y, colors=colors), images, boxes, grad=False)
    parity(lambda m, x, y: m.image.draw_bounding_boxes(x, y, colors=colors[:0]), images, boxes, grad=False)


WRONG: list[Any] = [
    lambda m, x: m.image.draw_bounding_boxes(x, np.zeros((1, 3, 4), np.float32)),
    lambda m, x: m.image.draw_bounding_boxes(x, np.zeros((2, 3, 3), np.float32)),
    lambda m, x: m.image.draw_bounding_boxes(x[0], np.zeros((2, 3, 4), np.float32)),
    lambda m, x: m.image.draw_bounding_boxes(x, np.zeros((2, 3, 4), np.float32), colors=[[0.5]]),
]


@pytest.mark.parametrize("build", WRONG)
def test_both_reject_wrong_arguments(parity: Any, build: Any) -> None:
    images = np.zeros((2, 4, 5, 3), np.float32)
    assert parity.either(lambda m: [build(m, m.constant(images))]) == ("refused", "refused")
