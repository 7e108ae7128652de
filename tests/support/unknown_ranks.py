"""Builders that determine the rank of a tensor at run time: calls with tensors of unknown shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

_RNG = np.random.default_rng(3)


def _floats(*shape: int) -> Any:
    return _RNG.standard_normal(shape).astype(np.float32)


_IDS: Final = np.array([[0, 5, 2], [6, 1, 1]], np.int32)
_STRINGS: Final = np.array([["a", "b"], ["c", "d"]], object)

# name: builder, called with the module and tensors, and the feeds.
CASES: Final[dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "linspace": (lambda m, x, y: m.linspace(x, y, 4), (_floats(3), _floats(3))),
    "linspace along 1": (lambda m, x, y: m.linspace(x, y, 4, axis=1), (_floats(3, 2), _floats(3, 2))),
    "linspace along -1": (lambda m, x, y: m.linspace(x, y, 4, axis=-1), (_floats(3, 2), _floats(2))),
    "linspace along -2": (lambda m, x, y: m.linspace(x, y, 4, axis=-2), (_floats(3, 2), _floats(3, 2))),
    "repeat": (lambda m, x: m.repeat(x, 3, axis=1), (_floats(2, 3),)),
    "repeat along -1": (lambda m, x: m.repeat(x, 2, axis=-1), (_floats(2, 3),)),
    "repeat flat": (lambda m, x: m.repeat(x, 2), (_floats(2, 3),)),
    "repeat by one count": (lambda m, x, n: m.repeat(x, n, axis=0), (_floats(2, 3), np.array(2, np.int32))),
    "gather_nd": (
        lambda m, x, i: m.gather_nd(x, i, batch_dims=1),
        (_floats(2, 3, 4), np.array([[[1], [0]], [[2], [2]]])),
    ),
    "gather_nd, two batches": (
        lambda m, x, i: m.gather_nd(x, i, batch_dims=2),
        (_floats(2, 3, 4), np.array([[[1], [0], [3]], [[2], [2], [0]]])),
    ),
    "tensordot": (lambda m, x, y: m.tensordot(x, y, 2), (_floats(2, 3, 4), _floats(3, 4, 5))),
    "tensordot of nothing": (lambda m, x, y: m.tensordot(x, y, 0), (_floats(2, 3), _floats(4))),
    "tensordot of listed axes": (
        lambda m, x, y: m.tensordot(x, y, [[1, -1], [2, 0]]),
        (_floats(2, 3, 4), _floats(4, 5, 3)),
    ),
    "tensordot of fed axes": (
        lambda m, x, y, axes: m.tensordot(x, y, axes),
        (_floats(2, 3, 4), _floats(4, 5, 3), np.array([[1, 2], [2, 0]], np.int32)),
    ),
    "reduce_join": (lambda m, x: m.reduce_join(x), (_STRINGS,)),
    "sort": (lambda m, x: m.sort(x, axis=0, direction="DESCENDING"), (_floats(4, 3),)),
    "argsort": (lambda m, x: m.argsort(x, axis=-2), (_floats(4, 3),)),
    "strided_slice": (lambda m, x, b: m.strided_slice(x, b, [3, 2]), (_floats(4, 3), np.array([1, 0], np.int32))),
    "required paddings": (
        lambda m, n, base: m.required_space_to_batch_paddings(n, [2, 3], base),
        (np.array([5, 7], np.int32), np.array([[0, 0], [1, 1]], np.int32)),
    ),
    "space_to_batch": (lambda m, x: m.space_to_batch(x, [[0, 0], [0, 0]], 2), (_floats(1, 4, 6, 1),)),
    "softmax cross entropy": (
        lambda m, x, y: m.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=x, axis=1),
        (_floats(2, 3, 4), abs(_floats(2, 3, 4))),
    ),
    "div lookup": (
        lambda m, x, y, i: m.nn.embedding_lookup([x, y], i, "div"),
        (_floats(4, 3), _floats(3, 3), _IDS),
    ),
    "lookup with a norm": (lambda m, x, i: m.nn.embedding_lookup(x, i, max_norm=0.5), (_floats(7, 3), _IDS)),
    "flip one image": (lambda m, x: m.image.flip_left_right(x), (_floats(4, 5, 3),)),
    "flip a batch": (lambda m, x: m.image.flip_up_down(x), (_floats(2, 4, 5, 3),)),
}
