"""Non-maximum suppression against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("most", [0, 3, 200])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 1.0])
def test_the_best_boxes(parity: Any, overlap: float, most: int) -> None:
    rng = np.random.default_rng(0)
    corners = rng.random((100, 4)).astype(np.float32)  # in any order of corners
    corners[7] = corners[8]
    corners[9, 2] = corners[9, 0]  # without an area
    scores = np.round(rng.random(100), 1).astype(np.float32)  # many are equal

    def build(m: Any, boxes: Any, scores: Any) -> Any:
        return m.image.non_max_suppression(boxes, scores, most, overlap, 0.15)

    parity(build, corners, scores, grad=False)


def test_halves(parity: Any) -> None:
    rng = np.random.default_rng(1)

    def build(m: Any, boxes: Any, scores: Any) -> Any:
        return m.raw_ops.NonMaxSuppressionV3(
            boxes=boxes, scores=scores, max_output_size=5, iou_threshold=0.5, score_threshold=0.0
        )

    parity(build, rng.random((20, 4)).astype(np.float16), rng.random(20).astype(np.float16), grad=False)
