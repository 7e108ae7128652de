"""Sampling of images between their elements (grids, deformable convolutions), image decoding, and Col2Im."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Final

from aioflow.graph.graph import Tensor
from aioflow.graph.static_value import partial_value
from aioflow.interop.onnx.sampling import SamplingMethod, sampled, shape_of_sizes
from aioflow.interop.onnx.sizes import Size, int64, length_of, product_of, rank_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import make

_MODES: Final = {"bilinear": "linear", "linear": "linear", "bicubic": "cubic", "cubic": "cubic", "nearest": "nearest"}


@translation("GridSample")
def grid_sample(node: OnnxNode, x: Tensor, grid: Tensor) -> Tensor:
    mode, padding = node.attr("mode", "linear"), node.attr("padding_mode", "zeros")
    if mode not in _MODES or padding not in ("zeros", "border", "reflection"):
        raise node.wrong("its mode", "linear, cubic or nearest, of zeros, border or reflection", f"{mode}, {padding}")
    how = SamplingMethod(_MODES[mode], padding, bool(node.attr("align_corners", 0)))
    batch, channels, *sizes = sizes_of(x)
    places = sizes_of(grid)[1:-1]
    if rank_of(node, grid) != rank_of(node, x):
        raise node.wrong("the grid", f"rank {rank_of(node, x)}", rank_of(node, grid))
    flat = ops.reshape(grid, shape_of_sizes([batch, product_of(places), len(sizes)]))
    coordinates = []
    for axis, size in enumerate(sizes):
        at = flat[:, :, len(sizes) - 1 - axis]  # a grid's coordinates start with the last axis
        length = ops.cast(size, at.dtype)
        # From [-1, 1] to elements: with aligned corners (at + 1) / 2 · (length - 1), otherwise ((at + 1) · length - 1)
        # / 2.
        coordinates.append((at + 1.0) / 2.0 * (length - 1.0) if how.aligned else ((at + 1.0) * length - 1.0) / 2.0)
    y = ops.transpose(sampled(x, coordinates, how), [0, 2, 1])
    return ops.reshape(y, shape_of_sizes([batch, channels, *places]))


@translation("AffineGrid")
def affine_grid(node: OnnxNode, theta: Tensor, size: Tensor) -> Tensor:
    """Return the positions of a grid over [-1, 1] after an affine map, with the coordinate of the last axis first."""
    count = length_of(node, size) - 2
    sizes = _elements(size, count + 2)[2:]
    kind, rank = theta.dtype, count + 1
    axes: list[Tensor] = []
    for axis, length in enumerate(sizes):
        places = ops.cast(ops.range(int64(length)), kind)
        wide = ops.cast(length, kind)
        # The inverse of the map in `grid_sample`.
        at = places * 2.0 / (wide - 1.0) - 1.0 if node.attr("align_corners", 0) else (places * 2.0 + 1.0) / wide - 1.0
        axes.append(ops.broadcast_to(_on_axes(at, axis, count), shape_of_sizes(sizes)))
    # Homogeneous coordinates: those of the last axis first, and a 1 that the last column of theta, the shift,
    # multiplies.
    grid = ops.stack([*reversed(axes), ops.ones_like(axes[0])], count)  # [sizes …, axes + 1]
    flat = ops.reshape(grid, shape_of_sizes([1, product_of(sizes), rank]))
    # grid · thetaᵀ.
    moved = make("BatchMatMulV2", flat, theta, adj_y=True)
    return ops.reshape(moved, shape_of_sizes([sizes_of(theta)[0], *sizes, count]))


@translation("ImageDecoder")
def image_decoder(node: OnnxNode, encoded: Tensor) -> Tensor:
    return make("AioflowDecodePicture", encoded, pixel_format=node.attr("pixel_format", "RGB"))


@translation("DeformConv")
def deform_conv(
    node: OnnxNode, x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    if rank_of(node, x) != 4:
        return node.refuse(f"a deformed convolution along {rank_of(node, x) - 2} axes")
    kernel = [node.refuse("a filter of unknown size") if s is None else s for s in (w.dims or ())[2:]]
    groups, shifts, taps = node.attr("group", 1), node.attr("offset_group", 1), math.prod(kernel)
    batch, channels, rows, columns = sizes_of(x)
    made = sizes_of(offset)[2:]
    places = [taps, *made]
    # Offsets are pairs (row, column) for each kernel element.
    given = ops.reshape(offset, shape_of_sizes([batch * shifts, taps, 2, *made]))
    coordinates = [
        ops.reshape(given[:, :, axis] + _regular(node, axis, kernel, made, given), [_of(batch, shifts), -1])
        for axis in range(2)
    ]
    own = ops.reshape(x, shape_of_sizes([batch * shifts, _part(node, channels, shifts), rows, columns]))
    values = sampled(own, coordinates, SamplingMethod())
    if mask is not None:
        values = values * ops.reshape(mask, shape_of_sizes([batch * shifts, product_of(places), 1]))
    # [batch, groups, channels of a group · taps, places]: a convolution is then one product with the filters per group.
    patches = ops.reshape(
        ops.transpose(values, [0, 2, 1]),
        shape_of_sizes([batch, groups, _part(node, channels, groups) * taps, product_of(made)]),
    )
    outputs = _part(node, (w.dims or ())[0], groups)
    filters = ops.reshape(w, shape_of_sizes([1, groups, outputs, _part(node, channels, groups) * taps]))
    y = ops.reshape(make("BatchMatMulV2", filters, patches), shape_of_sizes([batch, groups * outputs, *made]))
    return y if b is None else y + ops.reshape(b, [1, -1, 1, 1])


def _of(batch: Size, count: int) -> int:
    return -1 if isinstance(batch, Tensor) else batch * count


def _part(node: OnnxNode, size: Size | None, count: int) -> int:
    if not isinstance(size, int):
        return node.refuse("an unknown number of channels")
    if count < 1 or size % count:
        raise node.wrong("the channels", f"a multiple of {count} groups", size)
    return size // count


def _regular(node: OnnxNode, axis: int, kernel: list[int], made: list[Size], like: Tensor) -> Tensor:
    """Return each kernel element's position in each window along an axis, [taps, rows, columns], without offsets."""
    stride = (node.attr("strides", []) or [1, 1])[axis]
    dilation = (node.attr("dilations", []) or [1, 1])[axis]
    before = (node.attr("pads", []) or [0, 0, 0, 0])[axis]
    taps = [position[axis] * dilation - before for position in product(*map(range, kernel))]
    windows = ops.reshape(ops.range(made[axis]) * stride, [1, -1, 1] if axis == 0 else [1, 1, -1])
    return ops.cast(ops.reshape(ops.cast(taps, windows.dtype), [-1, 1, 1]) + windows, like.dtype)


@translation("Col2Im")
def col2im(node: OnnxNode, columns: Tensor, image_shape: Tensor, block_shape: Tensor) -> Tensor:
    """Add each element of the blocks to its position in the image. Elements in the padding are dropped."""
    count = length_of(node, image_shape)
    image, block = _elements(image_shape, count), _elements(block_shape, count)
    strides, dilations = node.attr("strides", []) or [1] * count, node.attr("dilations", []) or [1] * count
    pads = node.attr("pads", []) or [0] * (2 * count)
    place: Any = None
    inside: Any = None
    for axis, size in enumerate(image):
        # Number of blocks along the axis, as for a convolution's windows.
        span = (block[axis] - 1) * dilations[axis] + 1
        blocks = (size + pads[axis] + pads[axis + count] - span) // strides[axis] + 1
        taps = ops.range(int64(block[axis])) * dilations[axis] - pads[axis]
        # Element of the block plus begin of the block, over all pairs of both.
        at = _on_axes(taps, axis, 2 * count) + _on_axes(
            ops.range(int64(blocks)) * strides[axis], axis + count, 2 * count
        )
        own = ops.logical_and(at >= 0, at < size)
        place = at if place is None else place * size + at
        inside = own if inside is None else ops.logical_and(inside, own)
    # The segment sum drops rows with negative numbers.
    places = ops.reshape(ops.where_v2(inside, place, -ops.ones_like(place)), [-1])
    batch, depth, _ = sizes_of(columns)
    total = shape_of_sizes([batch, depth // product_of(block), ops.size(places, out_type="int64")])
    values = ops.transpose(ops.reshape(columns, total), [2, 0, 1])
    sums = ops.transpose(ops.unsorted_segment_sum(values, places, int64(product_of(image))), [1, 2, 0])
    return ops.reshape(sums, shape_of_sizes([batch, depth // product_of(block), *image]))


def _elements(vector: Tensor, count: int) -> list[Size]:
    """Return the elements of a vector of sizes, as numbers where they are known."""
    known = partial_value(vector)
    values = [None] * count if known is None else list(known)
    return [int64(vector)[i] if value is None else int(value) for i, value in enumerate(values)]


def _on_axes(vector: Tensor, axis: int, rank: int) -> Tensor:
    return ops.reshape(vector, [-1 if i == axis else 1 for i in range(rank)])
