"""Max and average pooling in NumPy, with their gradients.

Often-used forward pools run as compiled code (`compiled/pools.py`).

The maximum or sum of a window combines its lines first and then its columns: kh + kw passes over long runs of memory.
Blocks of images keep the passes in the cache. Kernel positions outside the image are skipped, so nothing is padded.
NCHW is treated as NHWC of one channel, with the channels counted as images. No function writes to an argument.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from aioflow.concurrency.stopping import batches
from aioflow.memory.values import Array, NpDType, Shape
from aioflow.ops.nn.geometry import Pair
from aioflow_numpy.compiled.pools import WindowOrder, compiled_pool
from aioflow_numpy.conv_numbers import Numbers, float_numbers
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import AxisPads, Windows, overlap, shape_to_nhwc, windows
from aioflow_numpy.threads import for_each, thread_count

Tap = tuple[slice, slice]  # (windows with this kernel position inside the image, the elements that it reads)

# Bytes of input per block. Threads hand over the interpreter's lock at each array operation; with blocks below the
# minimum, two threads are slower than one.
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 512 << 10, 2 << 20


def max_pool(x: Array, ksize: Pair, strides: Pair, padding: AxisPads, data_format: str) -> Array:
    """Return the maximum of each window of x [n, h, w, c] or [n, c, h, w], in x's dtype and layout.

    The maximum of a window with a NaN is NaN. `padding` is ((top, bottom), (left, right)); a window of padding alone
    results in the dtype's lowest value.

    Raises:
        ValueError: a rank, window, stride, padding or `data_format` is invalid.
    """
    g, shape = _pool_windows(x.shape, ksize, strides, padding, data_format)
    numbers = float_numbers(x.dtype)
    images = numbers.widen(x).reshape(g.n, g.h, g.w, g.c)
    out = np.empty((g.n, g.oh, g.ow, g.c), numbers.compute)
    _fold(np.maximum, images, g, out, _lowest(numbers.compute))
    return numbers.narrow(out).reshape(shape)


def max_pool_grad(
    x: Array, y: Array, dy: Array, ksize: Pair, strides: Pair, padding: AxisPads, data_format: str
) -> Array:
    """Return the gradient of `max_pool` with respect to x, from its result y and dy of y's shape.

    The gradient has dy's dtype and x's layout. Each window passes its whole gradient to its first maximum in row-major
    order, as TensorFlow's CPU kernel does. A window whose y is NaN passes no gradient.

    Raises:
        ValueError: an argument is invalid as in `max_pool`, or y or dy does not have the shape of the pool.
    """
    g, shape = _pool_windows(x.shape, ksize, strides, padding, data_format)
    _check_shape("y", y, shape)
    _check_shape("dy", dy, shape)
    numbers = float_numbers(np.result_type(x, dy))
    images = numbers.widen(x).reshape(g.n, g.h, g.w, g.c)
    maxima, gradient = (np.ascontiguousarray(numbers.widen(array)).reshape(g.n, g.oh, g.ow, g.c) for array in (y, dy))
    out = np.empty(images.shape, numbers.compute)

    def route(samples: slice) -> None:
        _route(images[samples], maxima[samples], gradient[samples], g, out[samples])

    for_each(route, _blocks(g, numbers.compute))
    return Numbers(numbers.compute, dy.dtype).narrow(out).reshape(x.shape)


def avg_pool(x: Array, ksize: Pair, strides: Pair, padding: AxisPads, data_format: str) -> Array:
    """Return the mean of each window of x [n, h, w, c] or [n, c, h, w], in x's dtype and layout.

    Integers round towards zero. Padding is not counted: a window's sum is divided by the number of its elements inside
    the image. A window wholly outside results in 0.

    Raises:
        ValueError: an argument is invalid as in `max_pool`.
    """
    g, shape = _pool_windows(x.shape, ksize, strides, padding, data_format)
    numbers = _mean_numbers(x.dtype)
    images = numbers.widen(x).reshape(g.n, g.h, g.w, g.c)
    out = np.empty((g.n, g.oh, g.ow, g.c), numbers.compute)
    _fold(np.add, images, g, out, 0)
    out /= _counts(g, numbers.compute)
    return numbers.narrow(out).reshape(shape)


def avg_pool_grad(
    input_shape: Shape, dy: Array, ksize: Pair, strides: Pair, padding: AxisPads, data_format: str
) -> Array:
    """Return the gradient of `avg_pool` with respect to its input of `input_shape`, from dy, in dy's dtype.

    Gradients add up where windows overlap.

    Raises:
        ValueError: an argument is invalid as in `max_pool`, or dy does not have the shape of the pool.
    """
    g, shape = _pool_windows(input_shape, ksize, strides, padding, data_format)
    _check_shape("dy", dy, shape)
    numbers = _mean_numbers(dy.dtype)
    gradient = numbers.widen(dy).reshape(g.n, g.oh, g.ow, g.c)
    out = np.empty((g.n, g.h, g.w, g.c), numbers.compute)
    counts = _counts(g, numbers.compute)

    def spread(samples: slice) -> None:
        _spread(gradient[samples], counts, g, out[samples])

    for_each(spread, _blocks(g, numbers.compute))
    return numbers.narrow(out).reshape(input_shape)


def _fold(ufunc: np.ufunc, images: Array, g: Windows, out: Array, identity: Array | int) -> None:
    compiled = compiled_pool(ufunc, images.dtype, _fold_by_numpy, _order)
    if compiled is None or not compiled.run(images, g, out, identity):
        _fold_by_numpy(ufunc, images, g, out, identity)


def _fold_by_numpy(ufunc: np.ufunc, images: Array, g: Windows, out: Array, identity: Array | int) -> None:
    rows, columns = _taps(g)

    def fold(samples: slice) -> None:
        block = images[samples]
        lines = len(block) * g.oh
        # Lines are combined first, in runs of a whole line (w * c), then columns in runs of a pixel.
        folded = scratch("total", (len(block), g.oh, g.w * g.c), images.dtype)
        _fold_axis(ufunc, block.reshape(len(block), g.h, g.w * g.c), rows, folded, identity)
        result = out[samples].reshape(lines, g.ow, g.c)
        _fold_axis(ufunc, folded.reshape(lines, g.w, g.c), columns, result, identity)

    for_each(fold, _blocks(g, images.dtype))


def _order(g: Windows) -> WindowOrder:
    """Return the order in which `_fold_axis` combines elements."""
    rows, columns = _taps(g)
    return _order_along(rows, g.oh), _order_along(columns, g.ow)


def _order_along(taps: list[Tap], outputs: int) -> list[list[int]]:
    whole, rest = _whole_first(taps, outputs)
    found: list[list[int]] = [[] if whole else [-1] for _ in range(outputs)]
    for given, taken in (*whole, *rest):
        for place, at in zip(found[given], range(taken.start, taken.stop, taken.step or 1), strict=True):
            place.append(at)
    return found


def _whole_first(taps: list[Tap], outputs: int) -> tuple[list[Tap], list[Tap]]:
    """Return the kernel positions that are inside the image for all windows, and the others."""
    whole = [tap for tap in taps if tap[0].stop - tap[0].start == outputs]
    return whole, [tap for tap in taps if tap[0].stop - tap[0].start != outputs]


def _fold_axis(ufunc: np.ufunc, source: Array, taps: list[Tap], out: Array, identity: Array | int) -> None:
    """Reduce windows along axis 1 of `source` [a, size, run] into `out` [a, windows, run]."""
    whole, rest = _whole_first(taps, out.shape[1])
    # Two positions that every window has give the first values, so no pass for the identity is needed.
    if len(whole) >= 2:
        ufunc(source[:, whole[0][1]], source[:, whole[1][1]], out=out)
    elif whole:
        np.copyto(out, source[:, whole[0][1]])
    else:
        out.fill(identity)
    for _, taken in batches(whole[2:], 1):
        ufunc(out, source[:, taken], out=out)
    for given, taken in batches(rest, 1):
        ufunc(out[:, given], source[:, taken], out=out[:, given])


def _route(x: Array, y: Array, dy: Array, g: Windows, out: Array) -> None:
    """Overwrite `out` with the gradient: each window's dy goes to the first element of x that equals the window's y."""
    bits = np.dtype(f"i{x.dtype.itemsize}")
    rows, columns = _taps(g)
    apart = _apart(g)
    free, hit = scratch("free", y.shape, np.dtype(bool)), scratch("hit", y.shape, np.dtype(bool))
    gain = scratch("product", y.shape, bits)
    free.fill(True)
    if not (apart and _covers(rows, g.h) and _covers(columns, g.w)):
        out.fill(0)
    for given_h, taken_h in rows:
        for given_w, taken_w in batches(columns, 1):
            given, taken = (slice(None), given_h, given_w), (slice(None), taken_h, taken_w)
            np.equal(x[taken], y[given], out=hit[given])
            hit[given] &= free[given]
            # The hits are a part of the free windows, so this removes them.
            free[given] ^= hit[given]
            # 0 or 1 times the bits of dy: a product of floats would turn infinity and NaN times 0 into NaN.
            target = out.view(bits)[taken] if apart else gain[given]
            np.multiply(hit[given], dy.view(bits)[given], out=target, dtype=bits)
            # Windows read different elements at the same kernel position, so `+=` adds each gradient.
            if not apart:
                out[taken] += gain.view(x.dtype)[given]


def _spread(dy: Array, counts: Array, g: Windows, out: Array) -> None:
    rows, columns = _taps(g)
    share = scratch("total", dy.shape, dy.dtype)
    np.divide(dy, counts, out=share)
    lines = len(dy) * g.oh
    wide = scratch("product", (lines, g.w, g.c), dy.dtype)
    _spread_axis(share.reshape(lines, g.ow, g.c), columns, wide, g.sw >= g.kw)
    _spread_axis(wide.reshape(len(dy), g.oh, g.w * g.c), rows, out.reshape(len(dy), g.h, g.w * g.c), g.sh >= g.kh)


def _spread_axis(source: Array, taps: list[Tap], out: Array, apart: bool) -> None:
    """Overwrite `out` [a, size, run] with sums of `source` [a, windows, run] along axis 1.

    Each element receives the sum over the windows that read it.
    """
    if not (apart and _covers(taps, out.shape[1])):
        out.fill(0)
    for given, taken in batches(taps, 1):
        if apart:
            out[:, taken] = source[:, given]
        else:
            out[:, taken] += source[:, given]


def _pool_windows(
    shape: Shape, ksize: Pair, strides: Pair, padding: AxisPads, data_format: str
) -> tuple[Windows, Shape]:
    """Return the windows over NHWC images, and the pool's shape in `data_format`."""
    n, h, w, c = shape_to_nhwc(shape, data_format)
    if data_format == "NHWC":
        g = windows((n, h, w, c), ksize, strides, padding)
        return g, (n, g.oh, g.ow, c)
    g = windows((n * c, h, w, 1), ksize, strides, padding)
    return g, (n, c, g.oh, g.ow)


def _taps(g: Windows) -> tuple[list[Tap], list[Tap]]:
    rows = _taps_along(g.h, g.oh, g.sh, g.kh, g.top)
    columns = _taps_along(g.w, g.ow, g.sw, g.kw, g.left)
    return rows, columns


def _taps_along(size: int, outputs: int, stride: int, kernel: int, before: int) -> list[Tap]:
    """Return the kernel positions that meet the image; nearly all are in the padding if a window is much larger."""
    reach = before - (outputs - 1) * stride  # the last window's kernel position at the first element
    return [overlap(size, outputs, stride, tap - before) for tap in range(max(0, reach), min(kernel, before + size))]


def _apart(g: Windows) -> bool:
    """Return True if no two windows share an element."""
    return g.sh >= g.kh and g.sw >= g.kw


def _covers(taps: list[Tap], size: int) -> bool:
    """Return True if these kernel positions, of windows that do not overlap, read every element of an axis."""
    covered: int = sum(given.stop - given.start for given, _ in taps)
    return covered == size


@lru_cache(maxsize=256)
def _counts(g: Windows, dtype: NpDType) -> Array:
    """Return the number of elements of each window inside the image, at least 1.

    The shape is [oh, ow, 1], or [1] where all numbers are equal. Do not write to the result, which is cached.
    """
    rows, columns = _taps(g)
    counts = np.outer(_axis_counts(rows, g.oh), _axis_counts(columns, g.ow)).astype(dtype)
    np.maximum(counts, 1, out=counts)
    # A single number is divided by faster than an array that broadcasts.
    if counts.size and counts.min() == counts.max():
        return counts.reshape(-1)[:1]
    return counts[:, :, np.newaxis]


def _axis_counts(taps: list[Tap], windows_along: int) -> Array:
    counts = np.zeros(windows_along, np.int64)
    for given, _ in taps:
        counts[given] += 1
    return counts


def _blocks(g: Windows, dtype: NpDType) -> list[slice]:
    image = max(1, g.h * g.w * g.c * dtype.itemsize)
    size = min(_MAX_BLOCK_BYTES, max(_MIN_BLOCK_BYTES, g.n * image // thread_count()))
    step = max(1, -(-size // image))
    return [slice(n0, min(n0 + step, g.n)) for n0 in range(0, g.n, step)]


def _mean_numbers(result: NpDType) -> Numbers:
    return Numbers(np.dtype(np.float64), result) if result.kind in "iu" else float_numbers(result)


def _lowest(dtype: NpDType) -> Array | int:
    return np.iinfo(dtype).min if dtype.kind in "iu" else np.finfo(dtype).min


def _check_shape(name: str, array: Array, expected: Shape) -> None:
    if array.shape != expected:
        raise ValueError(f"{name} has shape {array.shape}, the pool {expected}")
