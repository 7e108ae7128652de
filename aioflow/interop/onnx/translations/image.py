"""Sampling of images between their elements, regions and boxes of images, image decoding, and Col2Im."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, Final

import numpy as np

from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.graph.static_value import partial_value
from aioflow.interop.onnx.sampling import SamplingMethod, sampled, shape_of_sizes
from aioflow.interop.onnx.sizes import Size, int64, length_of, product_of, rank_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import convert_to_tensor, make
from aioflow.ops.image.boxes import non_max_suppression as best_boxes

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


# ── RoiAlign and MaxRoiPool, which resample regions of images to one size ─────────────────────────────────────────────


@translation("RoiAlign")
def roi_align_of_old(node: OnnxNode, x: Tensor, rois: Tensor, batches: Tensor) -> Tensor:
    return _roi_align(node, x, rois, batches, node.attr("coordinate_transformation_mode", "output_half_pixel"))


@translation("RoiAlign", since=16)
def roi_align(node: OnnxNode, x: Tensor, rois: Tensor, batches: Tensor) -> Tensor:
    return _roi_align(node, x, rois, batches, node.attr("coordinate_transformation_mode", "half_pixel"))


def _roi_align(node: OnnxNode, x: Tensor, rois: Tensor, batches: Tensor, mode: str) -> Tensor:
    """Sample a grid of positions in each part of a region, and return their mean or maximum."""
    made = node.attr("output_height", 1), node.attr("output_width", 1)
    channels, rows, columns = sizes_of(x)[1:]
    count = sizes_of(rois)[0]
    # Half a pixel lies between the coordinates of an element's corner and of its center.
    corners = ops.cast(rois, x.dtype) * node.attr("spatial_scale", 1.0) - (0.5 if mode == "half_pixel" else 0.0)
    axes = [
        _grid(node, corners[:, first], corners[:, first + 2], made[axis], size, mode == "half_pixel")
        for axis, (first, size) in enumerate(((1, rows), (0, columns)))
    ]
    # Shape of what follows: [regions, parts down, places down, parts across, places across].
    down = [ops.expand_dims(ops.expand_dims(each, 3), 4) for each in axes[0][:5]]
    across = [ops.expand_dims(ops.expand_dims(each, 1), 2) for each in axes[1][:5]]
    there = ops.logical_and(down[4], across[4])
    counted = ops.logical_and(there, ops.logical_and(down[3], across[3]))
    flat = ops.reshape(ops.transpose(x, [0, 2, 3, 1]), shape_of_sizes([-1, channels]))
    # The first row of the image in `flat`, whose rows are elements of all images.
    begin = ops.reshape(int64(batches), [-1, 1, 1, 1, 1]) * product_of([rows, columns])
    corner_values = []
    for y_place, y_weight in ((down[0], 1.0 - down[2]), (down[1], down[2])):
        for x_place, x_weight in ((across[0], 1.0 - across[2]), (across[1], across[2])):
            place = begin + y_place * columns + x_place
            # Bilinear weights; places outside of the image or beyond the number of samples count as 0.
            weight = ops.where_v2(counted, y_weight * x_weight, ops.zeros_like(y_weight * x_weight))
            corner_values.append(ops.gather(flat, place) * ops.expand_dims(weight, -1))
    y = _folded(node, corner_values, ops.expand_dims(there, -1), axes[0][5] * axes[1][5])
    return ops.reshape(ops.transpose(y, [0, 3, 1, 2]), shape_of_sizes([count, channels, *made]))


def _grid(node: OnnxNode, begin: Tensor, end: Tensor, parts: int, size: Size, halves: bool) -> tuple[Tensor, ...]:
    """Return the sampling positions of the regions along an axis.

    All but the last result have the shape [regions, parts, places]:

    - index of the element before the position,
    - index of the element after it,
    - distance from the element before,
    - whether the position is in the image,
    - whether the part has that many positions,
    - number of positions of a part, [regions].
    """
    # The older modes enlarge small regions to one element.
    length = end - begin if halves else ops.maximum(end - begin, ops.ones_like(begin))
    part = length / float(parts)
    asked = node.attr("sampling_ratio", 0)
    if asked > 0:
        counts, most = ops.ones_like(begin) * float(asked), int64(asked)
    else:
        # By default a part has one sample per element that it covers.
        counts = ops.ceil(part)
        most = ops.maximum(ops.reduce_max(int64(counts)), 1)
    number = ops.cast(ops.reshape(ops.range(most), [1, 1, -1]), begin.dtype)
    wide = [ops.reshape(each, [-1, 1, 1]) for each in (begin, part, ops.maximum(counts, ops.ones_like(counts)))]
    steps = ops.cast(ops.reshape(ops.range(parts), [1, -1, 1]), begin.dtype)
    # begin + part · (step + (number + ½) / count).
    at = wide[0] + steps * wide[1] + (number + 0.5) * wide[1] / wide[2]
    length_of_axis = ops.cast(size, begin.dtype)
    # Up to one element outside, a place reads the border; farther out it reads zero.
    inside = ops.logical_and(at >= -1.0, at <= length_of_axis)
    # `steps >= 0` always holds. It only gives the result the axis of the parts.
    there = ops.logical_and(number < ops.reshape(counts, [-1, 1, 1]), steps >= 0.0)
    at = ops.minimum(ops.maximum(at, ops.zeros_like(at)), length_of_axis - 1.0)
    low = int64(ops.floor(at))
    return low, ops.minimum(low + 1, size - 1), at - ops.floor(at), inside, there, counts


def _folded(node: OnnxNode, corners: list[Tensor], there: Tensor, places: Tensor) -> Tensor:
    """Return the mean or the maximum of each part, [regions, parts down, parts across, channels]."""
    if node.attr("mode", "avg").lower() == "max":
        greatest = corners[0]
        for each in corners[1:]:
            # The maximum is over the weighted values of the corners.
            greatest = ops.maximum(greatest, each)
        lowest = ops.cast(greatest.dtype.min, greatest.dtype) + ops.zeros_like(greatest)
        most = ops.reduce_max(ops.where_v2(there, greatest, lowest), [2, 4])
        return ops.where_v2(ops.reduce_any(there, [2, 4]), most, ops.zeros_like(most))
    count = ops.reshape(ops.maximum(places, ops.ones_like(places)), [-1, 1, 1, 1])
    return ops.cast(ops.reduce_sum(ops.add_n(corners), [2, 4]) / count, corners[0].dtype)


@translation("MaxRoiPool")
def max_roi_pool(node: OnnxNode, x: Tensor, rois: Tensor) -> Tensor:
    """Return the maximum of each part of each region, over whole elements."""
    made = node.required("pooled_shape")
    rows, columns = sizes_of(x)[2:]
    # Rounded half up, and without the image's number in column 0.
    rounded = int64(ops.floor(ops.cast(rois, "float32")[:, 1:] * node.attr("spatial_scale", 1.0) + 0.5))
    y = ops.gather(x, int64(rois[:, 0]))
    # The columns of each part come first, then the rows: the maximum of maxima is the same.
    for axis, first, size, parts in ((3, 0, columns, made[1]), (2, 1, rows, made[0])):
        y = _maxima(y, axis, rounded[:, first], rounded[:, first + 2], size, parts)
    # A part without elements has the least value, and becomes 0.
    empty = ops.equal(y, ops.cast(x.dtype.min, x.dtype))
    return ops.where_v2(empty, ops.zeros_like(y), y)


def _maxima(x: Tensor, axis: int, first: Tensor, last: Tensor, size: Size, parts: int) -> Tensor:
    """Return the maximum of each part between `first` and `last`, [regions], along an axis of x."""
    part = ops.cast(ops.maximum(last - first + 1, 1), "float32") / float(parts)
    results = []
    at = ops.expand_dims(ops.range(int64(size)), 0)
    for number in range(parts):
        begin = ops.clip_by_value(int64(ops.floor(part * float(number))) + first, 0, int64(size))
        end = ops.clip_by_value(int64(ops.ceil(part * float(number + 1))) + first, 0, int64(size))
        inside = ops.logical_and(at >= ops.expand_dims(begin, 1), at < ops.expand_dims(end, 1))
        shaped = ops.expand_dims(ops.expand_dims(inside, 1), 5 - axis)  # add the other axis of the image
        lowest = ops.cast(x.dtype.min, x.dtype) + ops.zeros_like(x)
        results.append(ops.reduce_max(ops.where_v2(shaped, x, lowest), axis))
    return ops.stack(results, axis)


# ── NonMaxSuppression: the best boxes of each class of each image ─────────────────────────────────────────────────────


_FEW: Final = 128  # most pairs of image and class with nodes of their own, instead of a loop


@translation("NonMaxSuppression")
def non_max_suppression(
    node: OnnxNode,
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    overlap: Tensor | None = None,
    least: Tensor | None = None,
) -> Tensor:
    if most is None:  # the default is 0 boxes of each class
        return convert_to_tensor(np.zeros((0, 3), np.int64))
    images, classes = sizes_of(scores)[:2]
    corners = _corners(boxes) if node.attr("center_point_box", 0) else boxes
    count = ops.cast(ops.minimum(ops.reshape(int64(most), []), 2**31 - 1), "int32")
    limit: float | Tensor = 0.0 if overlap is None else ops.reshape(overlap, [])
    worst: float | Tensor = float("-inf") if least is None else ops.reshape(least, [])

    def best(image: Size, each: Size) -> Tensor:
        found = best_boxes(corners[image], scores[image, each], ops.maximum(count, 0), limit, worst)
        # Rows of the result are (image, class, box).
        rows = [image + ops.zeros_like(int64(found)), each + ops.zeros_like(int64(found)), int64(found)]
        return ops.stack(rows, 1)

    if isinstance(images, int) and isinstance(classes, int) and images * classes <= _FEW:
        parts = [best(image, each) for image in range(images) for each in range(classes)]
        return ops.concat(parts, 0) if parts else convert_to_tensor(np.zeros((0, 3), np.int64))
    return _of_each(best, int64(images) * int64(classes), int64(classes))


def _of_each(best: Callable[[Tensor, Tensor], Tensor], count: Tensor, classes: Tensor) -> Tensor:
    """Return the concatenated results of a loop over the classes of all images."""

    def step(number: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        return number + 1, ops.concat([found, best(number // classes, ops.floormod(number, classes))], 0)

    shapes = [TensorShape([]), TensorShape([None, 3])]
    begin = [int64(0), convert_to_tensor(np.zeros((0, 3), np.int64))]
    _, found = ops.while_loop(lambda number, _: number < count, step, begin, shape_invariants=shapes)
    result: Tensor = found
    return result


def _corners(boxes: Tensor) -> Tensor:
    """Return boxes given by center and size, (x, y, width, height), as corners (y, x)."""
    x, y, width, height = (boxes[:, :, i] for i in range(4))
    return ops.stack([y - height / 2.0, x - width / 2.0, y + height / 2.0, x + width / 2.0], 2)
