"""Convolution of one group of NHWC channels as matrix products, in its three directions.

The BLAS does the arithmetic; what is left to decide is how the operands reach it. A pointwise filter needs no copy. Else
patches are copied out a cache-sized block at a time. The gradient of the input at stride 1 is a convolution itself; at
another stride, patches of the gradient are multiplied out and added where they came from.
"""

from __future__ import annotations

import numpy as np

from aioflow_numpy.conv_patches import tap_rows, window_rows
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Array, Windows, overlap, windows

# Sizes found by benchmarks/convolution.py on 1 MB of L2 a core.
_BLOCK_BYTES = 1 << 20
_MIN_BLOCK_ROWS = 256  # a shorter product spends its time starting
_FEW_ELEMENTS = 16  # in kw * c: a copy of shorter runs is slower than one by taps


def forward(x: Array, w: Array, g: Windows, out: Array) -> None:
    """Convolves x [n, h, w, c] with w [kh, kw, c, co] into `out` [n*oh*ow, co], whose rows may be a slice's."""
    co = w.shape[3]
    if g.pointwise:
        np.matmul(_pixels(x, g), w.reshape(g.c, co), out=out)
        return
    matrix = w.reshape(-1, co)
    if g.kw * g.c < _FEW_ELEMENTS:
        for rows, taps in tap_rows(x, g, _block_rows(g, x.dtype.itemsize)):
            np.matmul(taps.T, matrix, out=out[rows])
    else:
        for rows, patches in window_rows(x, g, _block_rows(g, x.dtype.itemsize)):
            np.matmul(patches, matrix, out=out[rows])


def backprop_filter(x: Array, dy: Array, g: Windows) -> Array:
    """The gradient [kh, kw, c, co] of the filter, from x [n, h, w, c] and dy [n*oh*ow, co]."""
    co = dy.shape[1]
    if g.pointwise:
        return np.asarray(np.matmul(_pixels(x, g).T, dy)).reshape(1, 1, g.c, co)
    total = np.zeros((g.kh * g.kw * g.c, co), dy.dtype)
    partial = scratch("product", total.shape, total.dtype)
    if g.kw * g.c < _FEW_ELEMENTS:
        for rows, taps in tap_rows(x, g, _block_rows(g, x.dtype.itemsize)):
            total += np.matmul(taps, dy[rows], out=partial)
    else:
        for rows, patches in window_rows(x, g, _block_rows(g, x.dtype.itemsize)):
            total += np.matmul(patches.T, dy[rows], out=partial)
    return total.reshape(g.kh, g.kw, g.c, co)


def backprop_input(w: Array, dy: Array, g: Windows, out: Array) -> None:
    """Writes the gradient of x to `out` [n*h*w, c], from w [kh, kw, c, co] and dy [n*oh*ow, co]; rows may be slices'."""
    transposed = _transposed(g, w.shape[3])
    if g.pointwise:
        _scatter_pixels(w, dy, g, out)
    elif transposed is not None:
        flipped = np.ascontiguousarray(w[::-1, ::-1].swapaxes(2, 3))
        forward(dy.reshape(g.n, g.oh, g.ow, -1), flipped, transposed, out)
    else:
        _scatter_patches(w, dy, g, out.reshape(g.n, g.h, g.w, g.c))


def _block_rows(g: Windows, itemsize: int) -> int:
    return max(_MIN_BLOCK_ROWS, _BLOCK_BYTES // (g.kh * g.kw * g.c * itemsize))


def _pixels(x: Array, g: Windows) -> Array:
    return x[:, : g.span_h : g.sh, : g.span_w : g.sw].reshape(-1, g.c)


def _transposed(g: Windows, co: int) -> Windows | None:
    """The windows over dy whose convolution with the flipped filter gives dx; None where it is no plain convolution."""
    top, left = (g.kh - 1) * g.dh - g.top, (g.kw - 1) * g.dw - g.left
    bottom, right = g.h + g.top - g.oh, g.w + g.left - g.ow
    if (g.sh, g.sw) != (1, 1) or min(top, left, bottom, right) < 0:
        return None
    flipped = windows((g.n, g.oh, g.ow, co), (g.kh, g.kw), (1, 1), ((top, bottom), (left, right)), (g.dh, g.dw))
    return flipped


def _scatter_pixels(w: Array, dy: Array, g: Windows, out: Array) -> None:
    matrix = w.reshape(g.c, -1).T
    if (g.oh, g.ow) == (g.h, g.w):
        np.matmul(dy, matrix, out=out)
        return
    image = out.reshape(g.n, g.h, g.w, g.c)
    image[...] = 0
    image[:, : g.span_h : g.sh, : g.span_w : g.sw] = np.matmul(dy, matrix).reshape(g.n, g.oh, g.ow, g.c)


def _scatter_patches(w: Array, dy: Array, g: Windows, out: Array) -> None:
    """Multiplies dy back into patches, block by block, and adds each tap of them onto the input it was read from."""
    out[...] = 0
    matrix = w.reshape(-1, w.shape[3]).T
    pixels = g.oh * g.ow
    step = max(1, _block_rows(g, dy.dtype.itemsize) // pixels)
    for n0 in range(0, g.n, step):
        samples = slice(n0, min(n0 + step, g.n))
        rows = dy[samples.start * pixels : samples.stop * pixels]
        patches = scratch("patches", (len(rows), matrix.shape[1]), dy.dtype)
        np.matmul(rows, matrix, out=patches)
        taps = patches.reshape(-1, g.oh, g.ow, g.kh, g.kw, g.c)
        for i in range(g.kh):
            source_h, target_h = overlap(g.h, g.oh, g.sh, i * g.dh - g.top)
            for j in range(g.kw):
                source_w, target_w = overlap(g.w, g.ow, g.sw, j * g.dw - g.left)
                out[samples, target_h, target_w] += taps[:, source_h, source_w, i, j]
