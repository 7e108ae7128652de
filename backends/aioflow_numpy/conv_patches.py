"""Patches: the windows of an image batch copied out as matrices, a block at a time, for a matrix product to eat.

A block is small enough to stay in the cache between the copy and the product. Two layouts: a window a row, copied in
runs of kw * c elements; and, where that run would be a handful of elements, a tap a row, copied in runs of ow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Array, Windows


def window_rows(x: Array, g: Windows, block_rows: int) -> Iterator[tuple[slice, Array]]:
    """Yields (slice of windows, patches [windows, kh*kw*c]) until all windows came; each block overwrites the last."""
    size = x.dtype.itemsize
    for samples, image in padded_images(x, g, max(1, block_rows // (g.oh * g.ow))):
        row, line, image_stride = image.strides[2], image.strides[1], image.strides[0]
        step = max(1, block_rows // g.ow) if len(image) == 1 else g.oh
        for y0 in range(0, g.oh, step):
            lines = min(step, g.oh - y0)
            taken = as_strided(
                image[:, y0 * g.sh :],
                (len(image), lines, g.ow, g.kh, g.kw, g.c),
                (image_stride, line * g.sh, row * g.sw, line * g.dh, row * g.dw, size),
            )
            block = scratch("patches", taken.shape, x.dtype)
            np.copyto(block, taken)
            start = (samples.start * g.oh + y0) * g.ow
            rows = len(image) * lines * g.ow
            yield slice(start, start + rows), block.reshape(rows, g.kh * g.kw * g.c)


def tap_rows(x: Array, g: Windows, block_rows: int) -> Iterator[tuple[slice, Array]]:
    """Yields (slice of windows, patches [kh*kw*c, windows]), blocks of whole images."""
    planes = x.transpose(0, 3, 1, 2)
    for samples, image in _planes(planes, g, max(1, block_rows // (g.oh * g.ow))):
        image_stride, plane, line, row = image.strides
        taken = as_strided(
            image,
            (g.kh, g.kw, g.c, len(image), g.oh, g.ow),
            (line * g.dh, row * g.dw, plane, image_stride, line * g.sh, row * g.sw),
        )
        block = scratch("patches", taken.shape, x.dtype)
        np.copyto(block, taken)
        pixels = g.oh * g.ow
        yield slice(samples.start * pixels, samples.stop * pixels), block.reshape(g.kh * g.kw * g.c, -1)


def padded_images(x: Array, g: Windows, step: int) -> Iterator[tuple[slice, Array]]:
    """Yields (slice of samples, padded images [samples, span_h, span_w, c]) with contiguous pixels of c elements."""
    size = x.dtype.itemsize
    if g.inside and x.strides[2:] == (g.c * size, size):
        for n0 in range(0, g.n, step):
            yield slice(n0, min(n0 + step, g.n)), x[n0 : n0 + step]
        return
    step = min(step, g.n)
    padded = scratch("padded", (step, g.span_h, g.span_w, g.c), x.dtype)
    padded.fill(0)
    inner, source = g.interior
    for n0 in range(0, g.n, step):
        samples = slice(n0, min(n0 + step, g.n))
        image = padded[: samples.stop - n0]
        # Only the interior is written: the border stays zero from block to block.
        image[:, inner[0], inner[1]] = x[samples, source[0], source[1]]
        yield samples, image


def _planes(planes: Array, g: Windows, step: int) -> Iterator[tuple[slice, Array]]:
    step = min(step, g.n)
    padded = scratch("padded", (step, g.c, g.span_h, g.span_w), planes.dtype)
    padded.fill(0)
    inner, source = g.interior
    for n0 in range(0, g.n, step):
        samples = slice(n0, min(n0 + step, g.n))
        image = padded[: samples.stop - n0]
        image[:, :, inner[0], inner[1]] = planes[samples, :, source[0], source[1]]
        yield samples, image

