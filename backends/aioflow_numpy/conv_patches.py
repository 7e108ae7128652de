"""Patches: the windows of an image batch, copied as matrices for a matrix product, one block at a time.

A block is small enough to stay in a core's cache between the copy and the product. There are three layouts:

- One window per row, copied in runs of kw * c elements.
- One line of a window per row. One copy serves all kh lines of kernel positions, each of which is a shifted view.
- One kernel position per row, copied in runs of ow elements, where a run of kw * c would be very short.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.compiled.patches import PATCHES
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows, overlap, strided
from aioflow_numpy.threads import thread_count


class PatchBlock(NamedTuple):
    """Whole images, or lines of windows of one image; `rows` is their range among all windows."""

    samples: slice
    lines: slice
    rows: slice


def plan(g: Windows, max_rows: int, min_rows: int) -> list[PatchBlock]:
    """Split the windows into blocks of at most `max_rows` rows.

    Blocks are smaller, but not below `min_rows`, where that gives work to each thread. A line of windows is never
    split, so a block may be larger than `max_rows`.
    """
    # As many rows as each thread gets (rounded up), within the limits.
    each = max(min_rows, min(max_rows, -(-g.rows // thread_count())))
    images = _even(g.n, max(1, each // (g.oh * g.ow)))
    if images > 1 or g.oh * g.ow <= each:
        lines = g.oh
    else:
        lines = _even(g.oh, max(1, each // g.ow))
    return [
        _block(g, slice(n0, min(n0 + images, g.n)), slice(y0, min(y0 + lines, g.oh)))
        for n0 in range(0, g.n, images)
        for y0 in range(0, g.oh, lines)
    ]


def whole(g: Windows) -> PatchBlock:
    """Return all windows as one block."""
    return PatchBlock(slice(0, g.n), slice(0, g.oh), slice(0, g.rows))


def window_rows(x: Array, g: Windows, block: PatchBlock) -> Array:
    """Return the patches [windows, kh*kw*c] of the block, in scratch memory."""
    windows = block.rows.stop - block.rows.start
    patches = scratch("patches", (windows, g.kh * g.kw * g.c), x.dtype)
    first = block.samples.start * g.oh + block.lines.start
    if not PATCHES.copy(x, g, first, first + windows // g.ow, patches):
        _copy_windows(x, g, block, patches)
    return patches


def _copy_windows(x: Array, g: Windows, block: PatchBlock, patches: Array) -> None:
    image = padded_block(x, g, block)
    samples, line, pixel, size = image.strides
    taken = strided(
        image,
        (len(image), block.lines.stop - block.lines.start, g.ow, g.kh, g.kw, g.c),
        (samples, line * g.sh, pixel * g.sw, line * g.dh, pixel * g.dw, size),
    )
    np.copyto(patches.reshape(taken.shape), taken)


def line_rows(x: Array, g: Windows, block: PatchBlock) -> Array:
    """Return the lines of the block's windows, [lines, samples, ow, kw*c], in scratch memory.

    For windows at stride 1 along the height, line i of all windows is `[i*dh : i*dh + count]`. Lines come before
    samples so that this slice is a matrix without a copy.
    """
    image = padded_block(x, g, block)
    samples, line, pixel, size = image.strides
    height = block.lines.stop - block.lines.start + (g.kh - 1) * g.dh
    taken = strided(
        image,
        (height, len(image), g.ow, g.kw, g.c),
        (line, samples, pixel * g.sw, pixel * g.dw, size),
    )
    lines = scratch("patches", taken.shape, x.dtype)
    np.copyto(lines, taken)
    return lines.reshape(height, len(image), g.ow, g.kw * g.c)


def tap_rows(x: Array, g: Windows, block: PatchBlock) -> Array:
    """Return the transposed patches [kh*kw*c, windows] of the block, in scratch memory."""
    image = padded_block(x, g, block, planes=True)
    samples, line, pixel, plane = image.strides
    taken = strided(
        image,
        (g.kh, g.kw, g.c, len(image), block.lines.stop - block.lines.start, g.ow),
        (line * g.dh, pixel * g.dw, plane, samples, line * g.sh, pixel * g.sw),
    )
    patches = scratch("patches", taken.shape, x.dtype)
    np.copyto(patches, taken)
    return patches.reshape(g.kh * g.kw * g.c, -1)


def padded_block(x: Array, g: Windows, block: PatchBlock, planes: bool = False) -> Array:
    """Return the input of the block's windows with its padding, [samples, lines, span_w, c]. Do not write to it.

    In memory the channels of a pixel are adjacent, or, with `planes`, the pixels of a channel. The result is a view of
    x where the layout allows that.
    """
    # In lines of the padded image, which begins `top` lines above the image.
    first = block.lines.start * g.sh
    height = (block.lines.stop - 1) * g.sh + (g.kh - 1) * g.dh + 1 - first
    size = x.dtype.itemsize
    # A view must have adjacent channels and pixels, since callers copy or multiply whole runs.
    if g.inside and not planes and x.strides[2:] == (g.c * size, size):
        return x[block.samples, first : first + height]
    count = block.samples.stop - block.samples.start
    if planes:
        padded = scratch("padded", (count, g.c, height, g.span_w), x.dtype).transpose(0, 2, 3, 1)
    else:
        padded = scratch("padded", (count, height, g.span_w, g.c), x.dtype)
    inner_h, source_h = overlap(g.h, height, 1, first - g.top)
    inner_w, source_w = overlap(g.w, g.span_w, 1, -g.left)
    if inner_h != slice(0, height) or inner_w != slice(0, g.span_w):
        padded.fill(0)
    padded[:, inner_h, inner_w] = x[block.samples, source_h, source_w]
    return padded


def _block(g: Windows, samples: slice, lines: slice) -> PatchBlock:
    start = (samples.start * g.oh + lines.start) * g.ow
    stop = ((samples.stop - 1) * g.oh + lines.stop) * g.ow
    return PatchBlock(samples, lines, slice(start, stop))


def _even(total: int, most: int) -> int:
    """Return the size of nearly equal parts of `total`, each at most `most`."""
    parts = -(-total // most)
    return -(-total // parts)
