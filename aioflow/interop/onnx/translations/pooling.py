"""Pools over windows, and over whole images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import product
from typing import Any, Final

import numpy as np

from aioflow.errors import UnimplementedError
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.geometry import (
    SpatialWindows,
    channels_first,
    channels_last,
    framed,
    in_last,
    keeps_last,
    windows_of,
)
from aioflow.interop.onnx.sizes import int64, integers, product_of, rank_of, shape_vector, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import constant
from aioflow.ops.nn import pooling, volumes
from aioflow.ops.nn.geometry import PaddingLike

_MOST_PARTS: Final = 1024  # most kernel positions for which a pool is unrolled into nodes


@translation("MaxPool")
def max_pool(node: OnnxNode, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    rank = rank_of(node, x)
    # aioflow's pools have no dilation.
    is_dilated = max(node.attr("dilations", []) or [1]) > 1
    windows = windows_of(node, x, node.required("kernel_shape"), not (rank > 4 or is_dilated or node.wants(1)))
    if node.wants(1):
        return _max_and_places(node, x, windows)
    if rank == 5 and not is_dilated and x.dtype.is_floating:
        volume = channels_last(framed(x, windows, _least(x)), 5)
        return channels_first(volumes.max_pool3d(volume, list(windows.kernel), list(windows.strides), "VALID"), 5)
    if rank > 4 or is_dilated:
        return _combined(framed(x, windows, _least(x)), windows, ops.maximum)
    if windows.is_fed:
        x, windows = framed(x, windows, _least(x)), windows.bare()
    image, windows = _as_image(x, windows)
    pads: PaddingLike = "SAME" if windows.pads is None else "VALID"
    if windows.pads is not None and windows.padded:
        pads = [[0, 0], *windows.whole_pads(), [0, 0]]
    return _from_image(pooling.max_pool(image, list(windows.kernel), list(windows.strides), pads), rank)


def _as_image(x: Tensor, windows: SpatialWindows) -> tuple[Tensor, SpatialWindows]:
    """Return images with two spatial axes and channels last, and their windows."""
    if len(windows.kernel) == 2:
        return channels_last(x, 4), windows
    pads = None if windows.pads is None else ((0, 0), *windows.pads)
    ones = (1,)
    return ops.expand_dims(channels_last(x, 3), 1), SpatialWindows(
        ones + windows.kernel, ones + windows.strides, ones + windows.dilations, pads, (0, *windows.extra)
    )


def _from_image(y: Tensor, rank: int) -> Tensor:
    return channels_first(ops.squeeze(y, [1]) if rank == 3 else y, rank)


def _least(x: Tensor) -> float:
    """Return the least value of the dtype, so that padding is never the maximum."""
    return -np.inf if x.dtype.is_floating else x.dtype.min


def _parts(x: Tensor, windows: SpatialWindows) -> Iterator[Tensor]:
    """Yield for each kernel position the elements that all windows have there.

    Raises:
        UnimplementedError: The kernel has more than `_MOST_PARTS` positions.
    """
    if math.prod(windows.kernel) > _MOST_PARTS:
        raise UnimplementedError("a window too large", expected=f"at most {_MOST_PARTS} places", actual=windows.kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(windows.kernel, windows.dilations, strict=True)]
    for place in product(*map(range, windows.kernel)):
        begin = [i * d for i, d in zip(place, windows.dilations, strict=True)]
        # The last window begins span - 1 elements before the end; an end of 0 is masked as open.
        end = [b - span + 1 for b, span in zip(begin, spans, strict=True)]
        open_ended = sum(1 << (i + 2) for i, e in enumerate(end) if e == 0)
        yield ops.strided_slice(
            x, [0, 0, *begin], [0, 0, *end], [1, 1, *windows.strides], begin_mask=3, end_mask=3 | open_ended
        )


def _combined(x: Tensor, windows: SpatialWindows, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Reduce the elements of each window by `combine`, one axis after the other."""
    ones, none = (1,) * len(windows.kernel), (0,) * len(windows.kernel)

    def along(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
        return (*ones[:axis], values[axis], *ones[axis + 1 :])

    # One axis after the other, the number of nodes is the sum of the kernel's sizes, not their product.
    for axis in range(len(ones)):
        kernel, strides = along(windows.kernel, axis), along(windows.strides, axis)
        alone = SpatialWindows(kernel, strides, along(windows.dilations, axis), None, none)
        x = reduce(combine, _parts(x, alone))
    return x


def _max_and_places(node: OnnxNode, x: Tensor, windows: SpatialWindows) -> tuple[Tensor, Tensor]:
    """Return the maxima and their positions in the flattened input. Of equal elements the first counts."""
    rank = rank_of(node, x)
    shape = shape_vector(x)
    every = ops.range(int64(0), ops.size(x, out_type="int64"), int64(1))
    order = list(range(rank))
    if node.attr("storage_order", 0):  # column-major: the order of spatial axes is reversed
        order = [0, 1, *reversed(range(2, rank))]
    places = ops.transpose(ops.reshape(every, ops.gather(shape, order)), order)
    values, found = None, None
    of_values = _parts(framed(x, windows, _least(x)), windows)
    # Padding has the least value, so its place never replaces that of an element.
    of_places = _parts(framed(places, windows, -1), windows)
    for value, place in zip(of_values, of_places, strict=True):
        if values is None or found is None:
            values, found = value, place
            continue
        # Strictly greater, so the first of equal elements stays.
        better = ops.greater(value, values)
        if windows.padded:
            # An element may have the least value, too.
            better = ops.logical_or(better, ops.less(found, int64(0)))
        values, found = ops.where_v2(better, value, values), ops.where_v2(better, place, found)
    if values is None or found is None:
        raise node.wrong("the kernel", "a size", "none")
    return values, found


@translation("AveragePool")
def average_pool(node: OnnxNode, x: Tensor) -> Tensor:
    rank, whole = rank_of(node, x), bool(node.attr("count_include_pad", 0))
    is_plain = rank <= 4 and not whole and max(node.attr("dilations", []) or [1]) == 1
    windows = windows_of(node, x, node.required("kernel_shape"), keeps_same=is_plain)
    if windows.pads is None:
        image, windows = _as_image(x, windows)
        return _from_image(pooling.avg_pool(image, list(windows.kernel), list(windows.strides), "SAME"), rank)
    sums = _mean(framed(x, windows, 0), windows)
    # Here every window counts as many elements as the kernel has.
    if not windows.padded or (whole and not windows.grown):
        return sums
    # The mean of the ones is the share of the window's elements that count.
    counts = _mean(_counted(x, windows, whole), windows)
    if keeps_last(sums):
        return in_last(sums, lambda image: ops.divide(image, channels_last(counts, rank)))
    return ops.divide(sums, counts)


def _counted(x: Tensor, windows: SpatialWindows, with_padding: bool) -> Tensor:
    """Return 1 for elements that count and 0 around them, in the shape of one padded image of one channel."""
    sizes = sizes_of(x)[2:]
    pads = windows.pads or ()
    inside: list[Any] = [size + sum(pad) if with_padding else size for size, pad in zip(sizes, pads, strict=True)]
    around = windows.whole_pads()
    if with_padding:
        around = [[0, extra] for extra in windows.extra]
    if all(isinstance(size, int) for size in inside) and not windows.is_fed:
        return constant(np.pad(np.ones((1, 1, *inside), x.dtype.np_dtype), [(0, 0), (0, 0), *map(tuple, around)]))
    ones = ops.fill(ops.stack([int64(size) for size in (1, 1, *inside)]), constant(1, x.dtype))
    return ops.pad(ones, [[0, 0], [0, 0], *around])


def _mean(x: Tensor, windows: SpatialWindows) -> Tensor:
    """Return the mean of each window of padded images."""
    rank = len(windows.kernel) + 2
    if rank <= 4 and max(windows.dilations) == 1:
        image, windows = _as_image(x, windows)
        y = pooling.avg_pool(image, list(windows.kernel), list(windows.strides), "VALID")
        return _from_image(y, rank)
    if rank == 5 and max(windows.dilations) == 1:
        y = volumes.avg_pool3d(channels_last(x, 5), list(windows.kernel), list(windows.strides), "VALID")
        return channels_first(y, 5)
    return ops.divide(_combined(x, windows, ops.add), constant(math.prod(windows.kernel), x.dtype))


@translation("LpPool")
def lp_pool(node: OnnxNode, x: Tensor) -> Tensor:
    windows = windows_of(node, x, node.required("kernel_shape"))
    p = constant(float(node.attr("p", 2)), x.dtype)
    mean = _mean(framed(ops.pow(ops.abs(x), p), windows, 0), windows)
    # The mean times the number of elements is the sum, since padding zeros count in it.
    return ops.pow(mean * constant(float(math.prod(windows.kernel)), x.dtype), 1 / p)


@translation("GlobalAveragePool")
def global_average_pool(node: OnnxNode, x: Tensor) -> Tensor:
    if x.dims is None:
        return ops.reduce_mean(x, ops.range(2, ops.rank(x)), keepdims=True)
    rank = rank_of(node, x)
    return channels_first(ops.reduce_mean(channels_last(x, rank), list(range(1, rank - 1)), keepdims=True), rank)


@translation("GlobalMaxPool")
def global_max_pool(node: OnnxNode, x: Tensor) -> Tensor:
    if x.dims is None:
        return ops.reduce_max(x, ops.range(2, ops.rank(x)), keepdims=True)
    rank = rank_of(node, x)
    return channels_first(ops.reduce_max(channels_last(x, rank), list(range(1, rank - 1)), keepdims=True), rank)


@translation("GlobalLpPool")
def global_lp_pool(node: OnnxNode, x: Tensor) -> Tensor:
    p = constant(float(node.attr("p", 2)), x.dtype)
    # (Σ |x|ᵖ)^(1/p).
    total = ops.reduce_sum(ops.pow(ops.abs(x), p), list(range(2, rank_of(node, x))), keepdims=True)
    return ops.pow(total, 1 / p)


@translation("MaxUnpool")
def max_unpool(node: OnnxNode, x: Tensor, places: Tensor, shape: Tensor | None = None) -> Tensor:
    kernel = node.required("kernel_shape")
    count = len(kernel)
    strides, pads = node.attr("strides", []) or [1] * count, node.attr("pads", []) or [0] * (2 * count)
    sizes = sizes_of(x)
    natural = [(size - 1) * strides[i] + kernel[i] - pads[i] - pads[i + count] for i, size in enumerate(sizes[2:])]
    whole = [*sizes[:2], *natural]
    # The places are indices into the flattened output of natural size.
    flat = ops.scatter_nd(
        ops.reshape(places, [-1, 1]), ops.reshape(x, [-1]), ops.reshape(int64(product_of(whole)), [1])
    )
    y = ops.reshape(flat, ops.stack([int64(size) for size in whole]))
    wanted = integers(node, shape, "sizes") if shape is None or node.constant(shape) is not None else None
    if shape is None:
        return y
    if wanted is None:
        missing = ops.maximum(int64(shape) - shape_vector(y), int64(0))
        y = ops.pad(y, ops.stack([ops.zeros_like(missing), missing], axis=1))
        y.set_shape((None,) * (count + 2))
        return y
    return ops.pad(y, ops.stack([int64([0] * (count + 2)), int64(wanted) - shape_vector(y)], axis=1))
