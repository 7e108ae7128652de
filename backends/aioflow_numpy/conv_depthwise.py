"""Depthwise convolution of NHWC images: no sum over channels, so no matrix product, but a multiply-add a tap.

A line of an image is one long run of w * c elements when the filter's tap is repeated along it, so that NumPy's inner
loop is long even where channels are few. Blocks keep the padded input, the product and the sum in a core's cache.
"""

from __future__ import annotations

import numpy as np

from aioflow_numpy.conv_patches import Block, padded_block, plan
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Array, Windows, overlap
from aioflow_numpy.conv_threads import for_each, thread_count

_BLOCK_BYTES = 256 << 10  # three arrays of this size and the padded input share the L2
_MIN_BLOCK_BYTES = 64 << 10


def forward(x: Array, w: Array, g: Windows) -> Array:
    """Convolves x [n, h, w, c] with w [kh, kw, c, m] into [n, oh, ow, c*m]."""
    multiplier = w.shape[3]
    out = np.empty((g.n, g.oh, g.ow, g.c, multiplier), x.dtype)
    runs = _runs(w, g)

    def convolve(block: Block) -> None:
        image = padded_block(x, g, block)
        lines = block.lines.stop - block.lines.start
        total = scratch("total", (len(image), lines, g.ow, g.c), x.dtype)
        product = scratch("product", total.shape, x.dtype)
        for m in range(multiplier):
            total.fill(0)
            for i, j in np.ndindex(g.kh, g.kw):
                tap = _tap(image, g, lines, i, j)
                np.multiply(tap, _alike(runs[i, j, m], g, tap), out=product.reshape(tap.shape))
                total += product
            out[block.samples, block.lines, :, :, m] = total

    for_each(convolve, _plan(g, x))
    return out.reshape(g.n, g.oh, g.ow, g.c * multiplier)


def backprop_input(w: Array, dy: Array, g: Windows) -> Array:
    """The gradient [n, h, w, c] of the input, from w [kh, kw, c, m] and dy [n, oh, ow, c*m]."""
    multiplier = w.shape[3]
    out = np.empty((g.n, g.h, g.w, g.c), dy.dtype)
    runs = _runs(w, g)
    inner_h, source_h = overlap(g.h, g.span_h, 1, -g.top)
    inner_w, source_w = overlap(g.w, g.span_w, 1, -g.left)

    def spread(samples: slice) -> None:
        part = dy[samples].reshape(-1, g.oh, g.ow, g.c, multiplier)
        padded = scratch("padded", (len(part), g.span_h, g.span_w, g.c), dy.dtype)
        padded.fill(0)
        product = scratch("product", (len(part), g.oh, g.ow * g.c), dy.dtype)
        for m in range(multiplier):
            gradient = np.ascontiguousarray(part[..., m]).reshape(product.shape)
            for i, j in np.ndindex(g.kh, g.kw):
                np.multiply(gradient, runs[i, j, m], out=product)
                tap = _tap(padded, g, g.oh, i, j)
                tap += product.reshape(tap.shape)
        out[samples] = 0
        out[samples, source_h, source_w] = padded[:, inner_h, inner_w]

    # An image's lines add to the same elements, so a block is of whole images here.
    for_each(spread, [block.samples for block in _plan(g, dy) if block.lines.start == 0])
    return out


def backprop_filter(x: Array, dy: Array, g: Windows, multiplier: int) -> Array:
    """The gradient [kh, kw, c, m] of the filter, from x [n, h, w, c] and dy [n, oh, ow, c*m]."""
    blocks = _plan(g, x)
    gradient = dy.reshape(g.n, g.oh, g.ow, g.c, multiplier)
    # Shares are fixed beforehand, so that the same sum comes out however the threads run.
    parts = min(thread_count(), len(blocks))
    totals = np.zeros((parts, g.kh, g.kw, multiplier, g.ow * g.c), x.dtype)

    def add(part: int) -> None:
        for block in blocks[part::parts]:
            _add_products(padded_block(x, g, block), gradient[block.samples, block.lines], g, totals[part])

    for_each(add, range(parts))
    per_pixel = totals.reshape(parts, g.kh, g.kw, multiplier, g.ow, g.c)
    return np.ascontiguousarray(per_pixel.sum(axis=(0, 4)).swapaxes(2, 3))


def _add_products(image: Array, dy: Array, g: Windows, total: Array) -> None:
    lines = dy.shape[1]
    product = scratch("product", (len(image), lines, g.ow * g.c), image.dtype)
    for m in range(dy.shape[4]):
        gradient = np.ascontiguousarray(dy[..., m])
        for i, j in np.ndindex(g.kh, g.kw):
            tap = _tap(image, g, lines, i, j)
            np.multiply(tap, gradient.reshape(tap.shape), out=product.reshape(tap.shape))
            total[i, j, m] += np.add.reduce(product, axis=(0, 1))


def _plan(g: Windows, like: Array) -> list[Block]:
    pixel = g.c * like.dtype.itemsize
    return plan(g, max(1, _BLOCK_BYTES // pixel), max(1, _MIN_BLOCK_BYTES // pixel))


def _runs(w: Array, g: Windows) -> Array:
    """The taps [kh, kw, m, ow*c], each repeated along a line of outputs."""
    return np.tile(w.transpose(0, 1, 3, 2), (1, 1, 1, g.ow))


def _alike(run: Array, g: Windows, tap: Array) -> Array:
    return run if tap.ndim == 3 else run.reshape(g.ow, g.c)


def _tap(image: Array, g: Windows, lines: int, i: int, j: int) -> Array:
    """What tap (i, j) of each window reads, a view: [n, lines, ow*c] at stride 1, else [n, lines, ow, c]."""
    top, left = i * g.dh, j * g.dw
    taken = image[:, top : top + (lines - 1) * g.sh + 1 : g.sh]
    if g.sw == 1:
        # The pixels of a line lie together, whatever lies between lines.
        return taken.reshape(len(image), lines, -1)[:, :, left * g.c : (left + g.ow) * g.c]
    return taken[:, :, left : left + (g.ow - 1) * g.sw + 1 : g.sw]
