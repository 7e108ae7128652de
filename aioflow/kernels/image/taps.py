"""Weights by which the pixels of resized images are made of the old ones, along one axis, and how they are applied.

All that is resized here is separable: the rows are weighed first, then the columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aioflow.kernels.blockwise import BLOCK
from aioflow.kernels.image.grids import some_lines
from aioflow.work.stopping import blocks, checkpoint

__all__ = ["Taps", "resampled", "spans", "transposed"]


class Taps(NamedTuple):
    """What the new pixels along one axis are made of, on the host. Those of pixel i are the `counts[i]` numbers from
    `starts[i]` on.

    Attributes:
        starts, counts: int64 [new].
        places: int64 [taps], which old pixels.
        weights: float32 [taps].
    """

    starts: Any
    counts: Any
    places: Any
    weights: Any


def spans(first: Any, counts: Any) -> tuple[Any, Any, Any]:
    """For spans of neighbouring old pixels: where each begins among the taps, and of each tap the number of its new
    pixel and the place of its old one. All are int64.
    """
    starts = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(len(counts)), counts)
    return starts, owners, np.arange(len(owners)) - starts[owners] + first[owners]


def transposed(taps: Taps, old: int) -> Taps:
    """What the gradients of the old pixels are made of."""
    owners = np.repeat(np.arange(len(taps.counts)), taps.counts)
    order = np.argsort(taps.places, kind="stable")
    counts = np.bincount(taps.places, minlength=old)
    return Taps(np.cumsum(counts) - counts, counts, owners[order], taps.weights[order])


def resampled(xp: Any, images: Any, rows: Taps, columns: Taps) -> Any:
    """Images made of others: float32 [batch, new height, new width, channels]."""
    batch, _, width, depth = images.shape
    shape = (batch, len(rows.counts), len(columns.counts), depth)
    result = xp.empty(shape, np.float32)
    whole = slice(0, shape[2])
    for part in some_lines(xp, (batch, shape[1], max(width, shape[2]), depth)):
        lines = _weighed(xp, images, rows, part)
        result[:, part] = _weighed(xp, lines.swapaxes(1, 2), columns, whole).swapaxes(1, 2)
    return result


def _weighed(xp: Any, values: Any, taps: Taps, part: slice) -> Any:
    """Those new pixels along axis 1. What has few taps is made tap by tap, few pixels of many taps one by one."""
    starts, counts = taps.starts[part], taps.counts[part]
    made = xp.zeros((len(values), len(starts), *values.shape[2:]), np.float32)
    if not made.size or not values.size:
        return made
    most = int(counts.max())
    if most > len(starts):
        _one_by_one(xp, values, taps, part, made)
        return made
    for step in range(most):
        checkpoint()
        which = np.flatnonzero(counts > step)
        found = _taken(xp, values, taps, starts[which] + step)
        if len(which) == len(starts):
            made += found
        else:
            made[:, xp.asarray(which)] += found
    return made


def _one_by_one(xp: Any, values: Any, taps: Taps, part: slice, made: Any) -> None:
    size = max(1, BLOCK * made.shape[1] // made.size)
    for number, (start, count) in enumerate(zip(taps.starts[part].tolist(), taps.counts[part].tolist(), strict=True)):
        checkpoint()
        for some in blocks(count, size):
            found = _taken(xp, values, taps, slice(start + some.start, start + some.stop))
            made[:, number] += found.sum(axis=1)


def _taken(xp: Any, values: Any, taps: Taps, which: Any) -> Any:
    rows = values[:, xp.asarray(taps.places[which])].astype(np.float32, copy=False)
    return rows * xp.asarray(taps.weights[which])[:, None, None]
