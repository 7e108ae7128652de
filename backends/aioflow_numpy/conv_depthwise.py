"""Depthwise convolution of NHWC images: no sum over channels, so no matrix product, but a multiply-add a tap.

A line of an image is one long run of w * c elements when the filter's tap is repeated along it, so that NumPy's inner
loop is long even where channels are few. Blocks of images keep the padded input, the product and the sum in the cache.
"""

from __future__ import annotations

import numpy as np

from aioflow_numpy.conv_patches import padded_images
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Array, Windows

_BLOCK_BYTES = 256 << 10  # three arrays of this size and their padding share the L2


def forward(x: Array, w: Array, g: Windows) -> Array:
    """Convolves x [n, h, w, c] with w [kh, kw, c, m] into [n, oh, ow, c*m]."""
    multiplier = w.shape[3]
    out = np.empty((g.n, g.oh, g.ow, g.c, multiplier), x.dtype)
    lines = _lines(w, g)
    for samples, image in padded_images(x, g, _block_images(g, x.dtype.itemsize)):
        for m in range(multiplier):
            total = scratch("total", (len(image), g.oh, g.ow * g.c), x.dtype)
            product = scratch("product", total.shape, x.dtype)
            for i, j in np.ndindex(g.kh, g.kw):
                tap = _tap(image, g, i, j)
                if i == j == 0:
                    _multiply(tap, lines[i, j, m], g, total)
                else:
                    _multiply(tap, lines[i, j, m], g, product)
                    total += product
            out[samples, :, :, :, m] = total.reshape(len(image), g.oh, g.ow, g.c)
    return out.reshape(g.n, g.oh, g.ow, g.c * multiplier)


def backprop_input(w: Array, dy: Array, g: Windows) -> Array:
    """The gradient [n, h, w, c] of the input, from w [kh, kw, c, m] and dy [n, oh, ow, c*m]."""
    multiplier = w.shape[3]
    out = np.zeros((g.n, g.h, g.w, g.c), dy.dtype)
    lines = _lines(w, g)
    step = _block_images(g, dy.dtype.itemsize)
    for n0 in range(0, g.n, step):
        part = dy[n0 : n0 + step].reshape(-1, g.oh, g.ow, g.c, multiplier)
        padded = scratch("padded", (len(part), *g.padded), dy.dtype)
        padded.fill(0)
        product = scratch("product", (len(part), g.oh, g.ow * g.c), dy.dtype)
        for m in range(multiplier):
            gradient = np.ascontiguousarray(part[..., m]).reshape(product.shape)
            for i, j in np.ndindex(g.kh, g.kw):
                np.multiply(gradient, lines[i, j, m], out=product)
                tap = _tap(padded, g, i, j)
                tap += product.reshape(tap.shape)
        inner, source = g.interior
        out[n0 : n0 + step, source[0], source[1]] = padded[:, inner[0], inner[1]]
    return out


def backprop_filter(x: Array, dy: Array, g: Windows, multiplier: int) -> Array:
    """The gradient [kh, kw, c, m] of the filter, from x [n, h, w, c] and dy [n, oh, ow, c*m]."""
    total = np.zeros((g.kh, g.kw, multiplier, g.ow * g.c), x.dtype)
    for samples, image in padded_images(x, g, _block_images(g, x.dtype.itemsize)):
        part = dy[samples].reshape(-1, g.oh, g.ow, g.c, multiplier)
        product = scratch("product", (len(image), g.oh, g.ow * g.c), x.dtype)
        for m in range(multiplier):
            gradient = np.ascontiguousarray(part[..., m])
            for i, j in np.ndindex(g.kh, g.kw):
                tap = _tap(image, g, i, j)
                np.multiply(tap, gradient.reshape(tap.shape), out=product.reshape(tap.shape))
                total[i, j, m] += np.add.reduce(product, axis=(0, 1))
    per_pixel = total.reshape(g.kh, g.kw, multiplier, g.ow, g.c)
    return np.ascontiguousarray(per_pixel.sum(axis=3).swapaxes(2, 3))


def _block_images(g: Windows, itemsize: int) -> int:
    return max(1, _BLOCK_BYTES // (g.oh * g.ow * g.c * itemsize))


def _lines(w: Array, g: Windows) -> Array:
    """The taps [kh, kw, m, ow*c], each repeated along a line of outputs."""
    return np.tile(w.transpose(0, 1, 3, 2), (1, 1, 1, g.ow))


def _tap(image: Array, g: Windows, i: int, j: int) -> Array:
    """What tap (i, j) of each window reads: [n, oh, ow*c] at stride 1 along the width, else [n, oh, ow, c]."""
    top, left = i * g.dh, j * g.dw
    lines = image[:, top : top + (g.oh - 1) * g.sh + 1 : g.sh]
    if g.sw == 1:
        # One run a line; an image's lines are contiguous, whatever lies between them.
        flat = lines.reshape(len(image), g.oh, -1)
        return flat[:, :, left * g.c : (left + g.ow) * g.c]
    return lines[:, :, left : left + (g.ow - 1) * g.sw + 1 : g.sw]


def _multiply(tap: Array, line: Array, g: Windows, out: Array) -> None:
    np.multiply(tap, line if tap.ndim == 3 else line.reshape(g.ow, g.c), out=out.reshape(tap.shape))

