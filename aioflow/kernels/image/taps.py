"""Resampling weights of resized images along one axis, and their application.

All resizing here is separable: the rows are weighed first, then the columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aioflow.concurrency.stopping import blocks, checkpoint
from aioflow.kernels.blockwise import BLOCK
from aioflow.kernels.image.grids import some_lines
from aioflow.memory.values import Array, Namespace


class ResamplingWeights(NamedTuple):
    """Resampling weights along one axis, in host memory.

    Pixel i is the weighted sum of the `counts[i]` entries from `starts[i]` on.

    Attributes:
        starts: int64 [new], the first entry of each new pixel.
        counts: int64 [new], the number of entries of each new pixel.
        places: int64 [entries], the old pixels.
        weights: float32 [entries], their weights.
    """

    starts: Array
    counts: Array
    places: Array
    weights: Array


def spans(first: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Return the entries of spans of neighboring old pixels, all int64: starts, and each entry's new and old pixel."""
    starts = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(len(counts)), counts)
    return starts, owners, np.arange(len(owners)) - starts[owners] + first[owners]


def transposed(taps: ResamplingWeights, old: int) -> ResamplingWeights:
    """Return the weights of the gradient, which sum over the new pixels for each old one."""
    owners = np.repeat(np.arange(len(taps.counts)), taps.counts)
    # Sorted by old pixel, the entries of all new pixels are the lists of the old ones.
    order = np.argsort(taps.places, kind="stable")
    counts = np.bincount(taps.places, minlength=old)
    return ResamplingWeights(np.cumsum(counts) - counts, counts, owners[order], taps.weights[order])


def resampled(xp: Namespace, images: Array, rows: ResamplingWeights, columns: ResamplingWeights) -> Array:
    """Return resampled images: float32 [batch, new height, new width, channels]."""
    batch, _, width, depth = images.shape
    shape = (batch, len(rows.counts), len(columns.counts), depth)
    result = xp.empty(shape, np.float32)
    whole = slice(0, shape[2])
    for part in some_lines(xp, (batch, shape[1], max(width, shape[2]), depth)):
        lines = _weighed(xp, images, rows, part)
        result[:, part] = _weighed(xp, lines.swapaxes(1, 2), columns, whole).swapaxes(1, 2)
    return result


def _weighed(xp: Namespace, values: Array, taps: ResamplingWeights, part: slice) -> Array:
    """Return the new pixels `part` along axis 1."""
    starts, counts = taps.starts[part], taps.counts[part]
    made = xp.zeros((len(values), len(starts), *values.shape[2:]), np.float32)
    if not made.size or not values.size:
        return made
    # The loop runs over the shorter of the two: entries of a pixel, or pixels.
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


def _one_by_one(xp: Namespace, values: Array, taps: ResamplingWeights, part: slice, made: Array) -> None:
    size = max(1, BLOCK * made.shape[1] // made.size)
    for number, (start, count) in enumerate(zip(taps.starts[part].tolist(), taps.counts[part].tolist(), strict=True)):
        checkpoint()
        for some in blocks(count, size):
            found = _taken(xp, values, taps, slice(start + some.start, start + some.stop))
            made[:, number] += found.sum(axis=1)


def _taken(xp: Namespace, values: Array, taps: ResamplingWeights, which: Array | slice) -> Array:
    rows = values[:, xp.asarray(taps.places[which])].astype(np.float32, copy=False)
    return rows * xp.asarray(taps.weights[which])[:, None, None]
