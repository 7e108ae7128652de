"""RoiAlign and MaxRoiPool, which resample regions of images to one size."""

from __future__ import annotations

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sampling import shape_of_sizes
from aioflow.interop.onnx.sizes import Size, int64, product_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops


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
