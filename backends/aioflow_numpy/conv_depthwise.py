"""Depthwise convolution of NHWC images: no sum over channels, hence one multiply-add per kernel position.

`einsum` does that in one pass over memory where ufuncs need two. Machine code (`compiled.depthwise`), once compiled,
keeps the sums in registers. At stride 1 a line of an image is one run of w * c elements, and the filter is repeated
along it. This keeps NumPy's inner loop long even with few channels.
"""

from __future__ import annotations

import numpy as np

from aioflow.concurrency.stopping import batches
from aioflow.memory.values import Array
from aioflow_numpy.compiled.depthwise import compiled_depthwise
from aioflow_numpy.conv_patches import PatchBlock, padded_block, plan
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows, overlap, strided, transposed_windows
from aioflow_numpy.products import einsum
from aioflow_numpy.threads import for_each, thread_count

# Larger than a core's L2, for the reason given in `pooling`.
_MAX_BLOCK_BYTES = 2 << 20
_MIN_BLOCK_BYTES = 512 << 10
_COMPILED_BLOCK = 1 << 23  # multiplications of a block in machine code: about 0.3 ms


def forward(x: Array, w: Array, g: Windows) -> Array:
    """Convolve x [n, h, w, c] with w [kh, kw, c, m] into [n, oh, ow, c*m]."""
    compiled = compiled_depthwise(g, x.dtype, _by_numpy) if w.shape[3] == 1 else None
    if compiled is None:
        return _by_numpy(x, w, g)
    if not compiled.is_ready:
        compiled.worked()
        return _by_numpy(x, w, g)
    # Machine code receives bare addresses.
    image, taps = (np.require(each, requirements=("C", "A")) for each in (x, w))
    out = np.empty((g.n, g.oh, g.ow, g.c), x.dtype)
    for_each(lambda lines: compiled.convolve(image, taps, out, lines), _in_parts(g))
    return out


def _by_numpy(x: Array, w: Array, g: Windows) -> Array:
    multiplier = w.shape[3]
    out = np.empty((g.n, g.oh, g.ow, g.c, multiplier), x.dtype)
    runs = _runs(w, g)

    def convolve(block: PatchBlock) -> None:
        taps = _taps(padded_block(x, g, block), g, block.lines.stop - block.lines.start)
        shape = (*taps.shape[:3], taps.shape[5])
        if multiplier == 1:
            einsum("nhwijr,ijr->nhwr", taps, runs[0], out=out[block.samples, block.lines].reshape(shape))
            return
        total = scratch("total", shape, x.dtype)
        for m in range(multiplier):
            einsum("nhwijr,ijr->nhwr", taps, runs[m], out=total)
            target = out[block.samples, block.lines, :, :, m]
            target[...] = total.reshape(target.shape)

    for_each(convolve, _plan(g, x))
    return out.reshape(g.n, g.oh, g.ow, g.c * multiplier)


def backprop_input(w: Array, dy: Array, g: Windows) -> Array:
    """Return the gradient [n, h, w, c] of the input, from w [kh, kw, c, m] and dy [n, oh, ow, c*m]."""
    transposed = transposed_windows(g, g.c)
    if transposed is not None and w.shape[3] == 1:
        return forward(dy, w[::-1, ::-1], transposed)
    return _scatter(w, dy, g)


def backprop_filter(x: Array, dy: Array, g: Windows, multiplier: int) -> Array:
    """Return the gradient [kh, kw, c, m] of the filter, from x [n, h, w, c] and dy [n, oh, ow, c*m]."""
    blocks = _plan(g, x)
    gradient = dy.reshape(g.n, g.oh, g.ow, g.c, multiplier)
    run = g.ow * g.c if g.sw == 1 else g.c
    # Shares are fixed in advance, so that the result does not depend on the order in which threads run.
    parts = min(thread_count(), len(blocks))
    totals = np.zeros((parts, multiplier, g.kh, g.kw, run), x.dtype)

    def add(part: int) -> None:
        for block in batches(blocks[part::parts], 1):
            taps = _taps(padded_block(x, g, block), g, block.lines.stop - block.lines.start)
            for m in range(multiplier):
                rows = np.ascontiguousarray(gradient[block.samples, block.lines, :, :, m])
                rows = rows.reshape(*taps.shape[:3], run)
                totals[part, m] += einsum("nhwijr,nhwr->ijr", taps, rows)

    for_each(add, range(parts))
    # At stride 1 a run is a whole line, so its pixels are added up as well as the shares.
    per_pixel = totals.reshape(parts, multiplier, g.kh, g.kw, -1, g.c)
    return np.ascontiguousarray(per_pixel.sum(axis=(0, 4)).transpose(1, 2, 3, 0))


def _scatter(w: Array, dy: Array, g: Windows) -> Array:
    """Return the gradient of the input: add dy times each filter element to the inputs of that element."""
    out = np.empty((g.n, g.h, g.w, g.c), dy.dtype)
    runs = _runs(w, g)
    inner_h, source_h = overlap(g.h, g.span_h, 1, -g.top)
    inner_w, source_w = overlap(g.w, g.span_w, 1, -g.left)

    def spread(samples: slice) -> None:
        part = dy[samples].reshape(-1, g.oh, g.ow, g.c, w.shape[3])
        padded = scratch("padded", (len(part), g.span_h, g.span_w, g.c), dy.dtype)
        # Windows overlap, so each kernel position adds to what others have added.
        padded.fill(0)
        taps = _taps(padded, g, g.oh, writeable=True)
        shape = (*taps.shape[:3], taps.shape[5])
        product = scratch("product", shape, dy.dtype)
        for m in range(w.shape[3]):
            gradient = np.ascontiguousarray(part[..., m]).reshape(shape)
            for i, j in batches(np.ndindex(g.kh, g.kw), 1):
                tap = taps[:, :, :, i, j]
                tap += np.multiply(gradient, runs[m, i, j], out=product)
        out[samples] = 0
        out[samples, source_h, source_w] = padded[:, inner_h, inner_w]

    # Lines of one image add to the same elements, so a block consists of whole images here.
    for_each(spread, [block.samples for block in _plan(g, dy) if block.lines.start == 0])
    return out


def _in_parts(g: Windows) -> list[slice]:
    """Split the lines of windows of all images into parts for machine code."""
    lines = g.n * g.oh
    least = max(1, _COMPILED_BLOCK // (g.ow * g.c * g.kh * g.kw))
    count = max(1, lines // least)
    return [slice(lines * k // count, lines * (k + 1) // count) for k in range(count)]


def _plan(g: Windows, like: Array) -> list[PatchBlock]:
    pixel = g.c * like.dtype.itemsize
    return plan(g, max(1, _MAX_BLOCK_BYTES // pixel), max(1, _MIN_BLOCK_BYTES // pixel))


def _runs(w: Array, g: Windows) -> Array:
    """Return the filter as [m, kh, kw, run], repeated along a line where a run is a line."""
    # C-contiguous, because the order in which `einsum` adds depends on the memory layout of its operands.
    return np.ascontiguousarray(np.tile(w.transpose(3, 0, 1, 2), (1, 1, 1, g.ow if g.sw == 1 else 1)))


def _taps(image: Array, g: Windows, lines: int, writeable: bool = False) -> Array:
    """Return the elements that the windows read of a padded block, as a view [n, lines, runs, kh, kw, run].

    A run is a line at stride 1, else a pixel.
    """
    samples, line, pixel, size = image.strides
    runs, run = (1, g.ow * g.c) if g.sw == 1 else (g.ow, g.c)
    return strided(
        image,
        (len(image), lines, runs, g.kh, g.kw, run),
        (samples, line * g.sh, pixel * g.sw, line * g.dh, pixel * g.dw, size),
        writeable=writeable,
    )
