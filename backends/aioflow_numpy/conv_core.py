"""Convolution of one group of NHWC channels as matrix products, in its three directions.

The BLAS does the arithmetic; this module decides how the operands reach it. A pointwise filter needs no copy.
Otherwise patches are copied: those of a small image at once, others one cache-sized block at a time. At stride 1 the
gradient of the input is itself a convolution. At other strides, the gradient is multiplied back into patches, which
are added to the elements that they were read from.
"""

from __future__ import annotations

import sys

import numpy as np

from aioflow.concurrency.stopping import batches
from aioflow.memory.values import Array
from aioflow_numpy.conv_patches import PatchBlock, line_rows, plan, tap_rows, whole, window_rows
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Windows, overlap, transposed_windows
from aioflow_numpy.products import matmul, matmul_here
from aioflow_numpy.threads import for_each, thread_count

# Sizes found by benchmarks/convolution.py on 1 MB of L2 per core.
_BLOCK_BYTES = 1 << 20
_WHOLE_BYTES = 1 << 22  # of all patches: up to this size, spinning helpers share first the copying, then the product
_UNCOPIED = sys.maxsize  # without a copy, a block may be as large as a thread's share
_MIN_PRODUCT = 1 << 23  # multiply-adds of a block: a smaller one costs less than handing it to a thread
_FEW_ELEMENTS = 16  # in kw * c: copying shorter runs is slower than copying by kernel position
_LINES_PAY = 2  # ratio of kw * c to co: above it, adding kh products of co columns costs less than copying kh * kw * c


def forward(x: Array, w: Array, g: Windows, out: Array) -> None:
    """Convolve x [n, h, w, c] with w [kh, kw, c, co] into `out` [n*oh*ow, co], whose rows may be strided."""
    matrix = w.reshape(-1, w.shape[3])
    if g.pointwise and _is_one_matrix(x, g):
        matmul(x.reshape(-1, g.c), matrix, out)
        return

    def by_pixels(block: PatchBlock) -> None:
        matmul_here(_read(x, g, block).reshape(-1, g.c), matrix, out[block.rows])

    def by_windows(block: PatchBlock) -> None:
        matmul_here(window_rows(x, g, block), matrix, out[block.rows])

    def by_taps(block: PatchBlock) -> None:
        matmul_here(tap_rows(x, g, block).T, matrix, out[block.rows])

    def by_lines(block: PatchBlock) -> None:
        _add_lines(line_rows(x, g, block), matrix.reshape(g.kh, -1, matrix.shape[1]), g, out[block.rows])

    if _few(g) and not g.pointwise:
        for_each(by_taps, _plan(g, matrix, 2 * _BLOCK_BYTES))
    elif g.rows * len(matrix) * matrix.itemsize <= _WHOLE_BYTES:
        # If each thread copied its own windows, each would read the whole filter, which is the larger operand here.
        matmul(window_rows(x, g, whole(g)), matrix, out)
    # The pixels are not the rows of one matrix here, because of strides or a slice of channels.
    elif g.pointwise:
        for_each(by_pixels, _plan(g, matrix, _UNCOPIED))
    elif _slides(g) and g.kw * g.c > _LINES_PAY * matrix.shape[1]:
        for_each(by_lines, _plan(g, matrix, g.kh * _BLOCK_BYTES))
    else:
        for_each(by_windows, _plan(g, matrix, _BLOCK_BYTES))


def backprop_filter(x: Array, dy: Array, g: Windows) -> Array:
    """Return the gradient [kh, kw, c, co] of the filter, from x [n, h, w, c] and dy [n*oh*ow, co]."""
    co = dy.shape[1]
    slides = _slides(g)
    shape = (g.kh, g.kw * g.c, co) if slides else (1, g.kh * g.kw * g.c, co)

    def add(blocks: list[PatchBlock], total: Array) -> None:
        for number, block in enumerate(batches(blocks, 1)):
            parts, rows = _filter_operands(x, dy, g, block)
            for part, sum_of_part in zip(parts, total, strict=True):
                # The first block writes the sums, so that they need not be cleared.
                if number == 0:
                    matmul_here(part, rows, sum_of_part)
                else:
                    sum_of_part += matmul_here(part, rows, scratch("product", sum_of_part.shape, rows.dtype))

    # A block's product is as large as the filter, so a block needs enough rows to outweigh adding that product.
    # The plan reads only the shape and dtype of the matrix.
    matrix = np.broadcast_to(dy[:1, :1], (g.kh * g.kw * g.c, co))
    blocks = _plan(g, matrix, _UNCOPIED if g.pointwise else 2 * _BLOCK_BYTES * (g.kh if slides else 1))
    # Shares are fixed in advance, so that the result does not depend on the order in which threads run.
    count = min(thread_count(), len(blocks))
    shares = [(blocks[k::count], np.empty(shape, dy.dtype)) for k in range(count)]
    for_each(lambda share: add(*share), shares)
    total = shares[0][1]
    for _, share in shares[1:]:
        total += share
    return total.reshape(g.kh, g.kw, g.c, co)


def backprop_input(w: Array, dy: Array, g: Windows, out: Array) -> None:
    """Write the gradient of x to `out` [n*h*w, c], from w [kh, kw, c, co] and dy [n*oh*ow, co].

    The rows of `out` and dy may be those of a slice of channels.
    """
    transposed = transposed_windows(g, w.shape[3])
    if g.pointwise:
        _scatter_pixels(w, dy, g, out)
    elif transposed is not None and not _few(g):
        # At stride 1, dx is the convolution of dy with w rotated by 180 degrees, inputs and outputs exchanged.
        flipped = np.ascontiguousarray(w[::-1, ::-1].swapaxes(2, 3))
        forward(dy.reshape(g.n, g.oh, g.ow, -1), flipped, transposed, out)
    else:
        _scatter_patches(w, dy, g, out.reshape(g.n, g.h, g.w, g.c))


def _is_one_matrix(x: Array, g: Windows) -> bool:
    """Return True if the pixels of x are the rows of a matrix without a copy, and each pixel is a window."""
    lines = x.strides[0] == g.h * x.strides[1] or g.n == 1
    return (g.oh, g.ow) == (g.h, g.w) and lines and x.strides[1] == g.w * x.strides[2]


def _few(g: Windows) -> bool:
    return g.kw * g.c < _FEW_ELEMENTS


def _slides(g: Windows) -> bool:
    """Return True if one copy can serve all lines of kernel positions."""
    return g.sh == 1 and g.kh > 1 and not _few(g)


def _shifted(lines: Array, g: Windows) -> list[Array]:
    """Return, for each line of kernel positions, the transposed view [kw*c, windows] of its elements in `lines`."""
    count = len(lines) - (g.kh - 1) * g.dh
    return [lines[i * g.dh : i * g.dh + count].reshape(-1, lines.shape[3]).T for i in range(g.kh)]


def _lines_first(rows: Array, samples: int, g: Windows) -> Array:
    """Reorder rows from (sample, line, column) to (line, sample, column), the order of `line_rows`."""
    # With one sample both orders are the same.
    if samples == 1:
        return rows
    source = rows.reshape(samples, -1, g.ow, rows.shape[1]).swapaxes(0, 1)
    ordered = scratch("ordered", source.shape, rows.dtype)
    np.copyto(ordered, source)
    return ordered.reshape(rows.shape)


def _add_lines(lines: Array, matrices: Array, g: Windows, out: Array) -> None:
    """Multiply each line of kernel positions by its part [kw*c, co] of the filter, and write the sum to `out`."""
    samples = lines.shape[1]
    # The rows of `lines` have lines before samples. With several samples the sum is therefore reordered at the end.
    total = out if samples == 1 else scratch("total", out.shape, out.dtype)
    for i, (shifted, matrix) in enumerate(zip(_shifted(lines, g), matrices, strict=True)):
        if i == 0:
            matmul_here(shifted.T, matrix, total)
        else:
            total += matmul_here(shifted.T, matrix, scratch("product", out.shape, out.dtype))
    if samples > 1:
        ordered = total.reshape(-1, samples, g.ow, out.shape[1]).swapaxes(0, 1)
        out.reshape(ordered.shape)[...] = ordered


def _filter_operands(x: Array, dy: Array, g: Windows, block: PatchBlock) -> tuple[list[Array], Array]:
    """Return the transposed patches of the block and the rows of dy to multiply each of them with.

    The patches are one matrix per line of kernel positions where one copy serves all lines (`_slides`), else one
    matrix.
    """
    rows = dy[block.rows]
    if g.pointwise:
        return [_read(x, g, block).reshape(-1, g.c).T], rows
    if _few(g):
        return [tap_rows(x, g, block)], rows
    if _slides(g):
        lines = line_rows(x, g, block)
        return _shifted(lines, g), _lines_first(rows, lines.shape[1], g)
    return [window_rows(x, g, block).T], rows


def _plan(g: Windows, matrix: Array, block_bytes: int) -> list[PatchBlock]:
    inner, outputs = matrix.shape
    return plan(g, block_bytes // (inner * matrix.dtype.itemsize), _MIN_PRODUCT // (inner * outputs))


def _read(image: Array, g: Windows, block: PatchBlock) -> Array:
    """Return the view [samples, lines, ow, c] of the elements that the pointwise windows of the block read."""
    top, bottom = block.lines.start * g.sh, (block.lines.stop - 1) * g.sh + 1
    return image[block.samples, top : bottom : g.sh, : g.span_w : g.sw]


def _scatter_pixels(w: Array, dy: Array, g: Windows, out: Array) -> None:
    matrix = w.reshape(g.c, -1).T
    whole = (g.oh, g.ow) == (g.h, g.w)
    # Pixels between the strides are in no window, so their gradient is 0.
    image = out.reshape(g.n, g.h, g.w, g.c)
    if not whole:
        image[...] = 0

    def scatter(block: PatchBlock) -> None:
        if whole:
            matmul_here(dy[block.rows], matrix, out[block.rows])
        else:
            pixels = _read(image, g, block)
            rows = dy[block.rows]
            product = matmul_here(rows, matrix, scratch("product", (len(rows), g.c), dy.dtype))
            pixels[...] = product.reshape(pixels.shape)

    for_each(scatter, _plan(g, matrix, _UNCOPIED))


def _scatter_patches(w: Array, dy: Array, g: Windows, out: Array) -> None:
    """Multiply dy back into patches, block by block, and add them to the elements of `out` that they were read from."""
    matrix = np.ascontiguousarray(w).reshape(-1, w.shape[3])

    def scatter(blocks: list[PatchBlock]) -> None:
        out[blocks[0].samples] = 0
        for block in batches(blocks, 1):
            _add_taps(_patches(matrix, dy[block.rows], g), g, block, out[block.samples])

    # Lines of one image add to the same elements, so all blocks of an image go to one thread.
    by_samples: dict[int, list[PatchBlock]] = {}
    for block in _plan(g, matrix, _BLOCK_BYTES):
        by_samples.setdefault(block.samples.start, []).append(block)
    for_each(scatter, list(by_samples.values()))


def _patches(matrix: Array, rows: Array, g: Windows) -> Array:
    """Return the gradient of the patches [windows, kh, kw, c], stored by windows or by kernel positions."""
    if _few(g):
        patches = scratch("patches", (len(matrix), len(rows)), rows.dtype)
        matmul_here(matrix, rows.T, patches)
        return patches.T.reshape(-1, g.kh, g.kw, g.c)
    patches = scratch("patches", (len(rows), len(matrix)), rows.dtype)
    matmul_here(rows, matrix.T, patches)
    return patches.reshape(-1, g.kh, g.kw, g.c)


def _add_taps(patches: Array, g: Windows, block: PatchBlock, out: Array) -> None:
    lines = block.lines.stop - block.lines.start
    # One kernel position at a time: windows read different elements at the same position, so `+=` adds each product.
    taps = patches.reshape(-1, lines, g.ow, g.kh, g.kw, g.c)
    for i in range(g.kh):
        source_h, target_h = overlap(g.h, lines, g.sh, block.lines.start * g.sh + i * g.dh - g.top)
        for j in range(g.kw):
            source_w, target_w = overlap(g.w, g.ow, g.sw, j * g.dw - g.left)
            out[:, target_h, target_w] += taps[:, source_h, source_w, i, j]
