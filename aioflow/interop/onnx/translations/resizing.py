"""Resize and Upsample, one axis after the other. Each output element is a weighted sum of a few input elements.

Sizes, scales and regions are numbers if they are known, otherwise scalar tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.static_value import partial_value
from aioflow.interop.onnx.sizes import Size, axes_of, int64, rank_of, sizes_of
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import make

_Number: TypeAlias = float | Tensor

_PRECISION: Final = dtypes.float32  # dtype of coordinates as in other runtimes, since it decides how ties round
_FEW: Final = 16  # positions gathered one by one, which needs no array of all of them
_WIDE: Final = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The resizing of an axis, in numbers or in int64 (sizes) and float32 scalars.

    Attributes:
        axis: The axis.
        given: Size of the input.
        made: Size of the output.
        scale: Size of the output divided by that of the input, before rounding.
        region: Start and end of the region of `tf_crop_and_resize`, as fractions of the whole.
    """

    axis: int
    given: Size
    made: Size
    scale: _Number
    region: tuple[_Number, _Number] | None

    @property
    def same(self) -> bool:
        """True if the axis is known to stay unchanged."""
        if self.region is not None and not (_is(self.region[0], 0) and _is(self.region[1], 1)):
            return False
        # A scale that is known to be 1 keeps an input size that is unknown.
        return _is(self.scale, 1) and (isinstance(self.given, Tensor) or _is(self.made, self.given))


def _is(value: _Number, number: float) -> bool:
    return not isinstance(value, Tensor) and math.isclose(value, number)


@translation("Upsample")
def upsample_by_attribute(node: OnnxNode, x: Tensor) -> Tensor:
    return _resized(node, x, _by_scales(node, x, list(range(rank_of(node, x))), node.required("scales"), None), True)


@translation("Upsample", since=9)
@translation("Resize")
def upsample(node: OnnxNode, x: Tensor, scales: Tensor) -> Tensor:
    axes = list(range(rank_of(node, x)))
    return _resized(node, x, _by_scales(node, x, axes, _numbers(node, scales, len(axes)), None), True)


@translation("Resize", since=11)
def resize(
    node: OnnxNode, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None
) -> Tensor:
    axes = axes_of(node, x, None)
    axes = list(range(rank_of(node, x))) if axes is None else axes
    regions = None
    if node.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        if roi is None:
            raise node.wrong("the inputs", "a roi", "none")
        regions = _numbers(node, roi, 2 * len(axes))
    if sizes is not None and sizes.dims != (0,):
        return _resized(node, x, _by_sizes(node, x, axes, sizes, regions), False)
    if scales is None:
        raise node.wrong("the inputs", "scales or sizes", "neither")
    return _resized(node, x, _by_scales(node, x, axes, _numbers(node, scales, len(axes)), regions), False)


def _numbers(node: OnnxNode, vector: Tensor, count: int) -> list[_Number]:
    """Return the elements of a vector, as floats or float32 scalars."""
    value = node.constant(vector)
    if value is None:
        wide = ops.cast(vector, _PRECISION)
        return [wide[i] for i in range(count)]
    if value.size != count:
        raise node.wrong("an input", f"{count} elements", value.size)
    return [float(v) for v in np.reshape(value, -1)]


def _by_scales(
    node: OnnxNode, x: Tensor, axes: list[int], scales: list[_Number], regions: list[_Number] | None
) -> list[_Axis]:
    sizes = sizes_of(x)
    if len(scales) != len(axes):
        raise node.wrong("the scales", f"{len(axes)} numbers", len(scales))
    return [
        _Axis(axis, sizes[axis], _whole(ops.floor, scale * _float(sizes[axis])), scale, _region(regions, i, len(axes)))
        for i, (axis, scale) in enumerate(zip(axes, scales, strict=True))
    ]


def _region(regions: list[_Number] | None, i: int, count: int) -> tuple[_Number, _Number] | None:
    return None if regions is None else (regions[i], regions[count + i])


def _by_sizes(node: OnnxNode, x: Tensor, axes: list[int], wanted: Tensor, regions: list[_Number] | None) -> list[_Axis]:
    value = partial_value(wanted)
    known = [None] * len(axes) if value is None else list(value)
    if len(known) != len(axes):
        raise node.wrong("the sizes", f"{len(axes)} numbers", len(known))
    made = [int64(wanted)[i] if v is None else int(v) for i, v in enumerate(known)]
    given = [sizes_of(x)[axis] for axis in axes]
    if any(_is(size, 0) for size in given):
        return node.refuse("an image without elements")
    scales = [_float(m) / _float(g) for m, g in zip(made, given, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = _extreme(scales, policy == "not_larger")
        scales = [scale] * len(axes)
        # Rounded half up.
        made = [_whole(ops.floor, scale * _float(g) + 0.5) for g in given]
    places = range(len(axes))
    return [_Axis(axes[i], given[i], made[i], scales[i], _region(regions, i, len(axes))) for i in places]


def _extreme(scales: list[_Number], least: bool) -> _Number:
    if not any(isinstance(scale, Tensor) for scale in scales):
        return min(scales) if least else max(scales)
    stacked = ops.stack([ops.cast(scale, _PRECISION) for scale in scales])
    return ops.reduce_min(stacked) if least else ops.reduce_max(stacked)


def _float(value: _Number) -> _Number:
    return ops.cast(value, _PRECISION) if isinstance(value, Tensor) else float(value)


def _whole(rounding: Callable[[Tensor], Tensor], value: _Number) -> Size:
    return ops.cast(rounding(value), "int64") if isinstance(value, Tensor) else math.floor(value)


# ── one axis ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _resized(node: OnnxNode, x: Tensor, axes: list[_Axis], old: bool) -> Tensor:
    """Return the tensor resized along each of its axes. `old` ops have fixed coordinates and rounding."""
    mode = node.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic", "bilinear"):
        raise node.wrong("attribute 'mode'", "nearest, linear or cubic", mode)
    # Weighted sums of integers or 16-bit floats are computed in float32, nearest elements are only copied.
    y = x if mode == "nearest" or x.dtype in _WIDE else ops.cast(x, "float32")
    outside = None
    for axis in axes:
        if axis.same:
            continue
        at = _coordinates(node, axis, "asymmetric" if old else _mode(node))
        if axis.region is not None:
            # Only cropping can lead outside; these elements get the extrapolation value.
            beyond = make("LogicalOr", ops.less(at, 0.0), ops.greater(at, _float(axis.given) - 1.0))
            beyond = ops.reshape(beyond, _column(rank_of(node, x), axis.axis))
            outside = beyond if outside is None else make("LogicalOr", outside, beyond)
        if mode == "nearest":
            y = ops.gather(y, _nearest(node, axis, at, old), axis=axis.axis)
        else:
            y = _weighted(node, y, axis, at, "linear" if mode == "bilinear" else mode)
    if outside is not None:
        y = ops.where_v2(outside, ops.cast(node.attr("extrapolation_value", 0.0), y.dtype), y)
    if y.dtype is not x.dtype:
        y = ops.saturate_cast(ops.round(y), x.dtype) if x.dtype.is_integer else ops.cast(y, x.dtype)
    return y


def _mode(node: OnnxNode) -> str:
    return str(node.attr("coordinate_transformation_mode", "half_pixel"))


def _column(rank: int, axis: int) -> list[int]:
    return [-1 if i == axis else 1 for i in range(rank)]


def _coordinates(node: OnnxNode, axis: _Axis, mode: str) -> Tensor:
    """Return the position of each output element in the input, in float32."""
    y = ops.cast(ops.range(axis.made), _PRECISION)
    given = _float(axis.given)
    length = axis.scale * given
    at = _moved(axis, mode, y, given, length)
    if at is None:
        raise node.wrong("attribute 'coordinate_transformation_mode'", "a mode of ONNX", mode)
    return at


def _moved(axis: _Axis, mode: str, y: Tensor, given: _Number, length: _Number) -> Tensor | None:
    if mode == "asymmetric":
        return y / axis.scale
    if mode == "half_pixel":
        return (y + 0.5) / axis.scale - 0.5
    if mode == "half_pixel_symmetric":
        offset = given / 2 * (1 - _float(axis.made) / length)
        return (y + 0.5) / axis.scale - 0.5 + offset
    if mode == "tf_half_pixel_for_nn":
        return (y + 0.5) / axis.scale
    if mode == "pytorch_half_pixel":
        # A single output element is at 0.
        return _if_one(_float(axis.made), y * 0.0, (y + 0.5) / axis.scale - 0.5)
    if mode == "align_corners":
        return _if_one(length, y * 0.0, y * (given - 1) / _not_zero(length - 1))
    if mode == "tf_crop_and_resize" and axis.region is not None:
        begin, end = axis.region
        # A single element is taken from the middle of the region.
        middle = y * 0.0 + (end - begin) * (given - 1) / 2
        return _if_one(length, middle, y * (end - begin) * (given - 1) / _not_zero(length - 1)) + begin * (given - 1)
    return None


def _if_one(length: _Number, one: Tensor, other: Tensor) -> Tensor:
    if not isinstance(length, Tensor):
        return one if length == 1 else other
    return ops.where_v2(ops.equal(length, 1.0), one, other)


def _not_zero(value: _Number) -> _Number:
    if not isinstance(value, Tensor):
        return value or 1.0
    return ops.where_v2(ops.equal(value, 0.0), ops.ones_like(value), value)


def _nearest(node: OnnxNode, axis: _Axis, at: Tensor, old: bool) -> Tensor:
    mode = "floor" if old else node.attr("nearest_mode", "round_prefer_floor")
    if mode == "round_prefer_floor":
        # A tie goes to the lower element.
        place = ops.ceil(at - 0.5)
    elif mode == "round_prefer_ceil":
        # A tie goes to the upper element.
        place = ops.floor(at + 0.5)
    elif mode in ("floor", "ceil"):
        place = ops.floor(at) if mode == "floor" else ops.ceil(at)
    else:
        raise node.wrong("attribute 'nearest_mode'", "a mode of ONNX", mode)
    return _inside(ops.cast(place, "int64"), axis)


def _inside(places: Tensor, axis: _Axis) -> Tensor:
    return ops.maximum(ops.minimum(places, axis.given - 1), 0)


def _weighted(node: OnnxNode, x: Tensor, axis: _Axis, at: Tensor, mode: str) -> Tensor:
    """Return the sum of the elements around each coordinate, weighted by a kernel of 2 or 4 elements.

    With `antialias`, the kernel is wider where the image shrinks.
    """
    width = 1 if mode == "linear" else 2
    reach: Size = width
    shrink: _Number = 1.0
    smooth = node.attr("antialias", 0)
    if smooth:
        shrink = ops.minimum(axis.scale, 1.0) if isinstance(axis.scale, Tensor) else min(axis.scale, 1.0)
        # A kernel that is stretched by 1 / shrink reaches that many more elements.
        reach = _whole(ops.ceil, width / shrink) if isinstance(shrink, Tensor) else math.ceil(width / shrink)
    base = ops.floor(at)
    offsets = ops.range(int64(1 - reach), int64(reach + 1))
    # Distances from the place to each element, in units of the stretched kernel.
    weights = _kernel(node, (ops.cast(offsets, _PRECISION) - ops.expand_dims(at - base, 1)) * shrink, mode)
    places = ops.expand_dims(ops.cast(base, "int64"), 1) + offsets
    outside = node.attr("exclude_outside", 0)
    if outside:
        weights = weights * ops.cast(ops.logical_and(places >= 0, places < axis.given), _PRECISION)
    if outside or smooth:
        # The weights sum to 1 again.
        weights = weights / _not_zero(ops.reduce_sum(weights, 1, keepdims=True))
    return _summed(rank_of(node, x), x, axis, _inside(places, axis), ops.cast(weights, x.dtype))


def _summed(rank: int, x: Tensor, axis: _Axis, places: Tensor, weights: Tensor) -> Tensor:
    """Return the elements at each row of places, summed with the row's weights."""
    count = (places.dims or (None, None))[1]
    if count is None or count > _FEW:
        sizes = [axis.made if i == axis.axis else 1 for i in range(rank)]
        # Gather puts the elements of a place into a new axis behind the resized one.
        sizes.insert(axis.axis + 1, ops.shape(places, out_type="int64")[1])
        shaped = ops.reshape(weights, ops.stack([int64(size) for size in sizes]))
        return ops.reduce_sum(ops.gather(x, places, axis=axis.axis) * shaped, axis.axis + 1)
    column = _column(rank, axis.axis)
    parts = [
        ops.gather(x, place, axis=axis.axis) * ops.reshape(weight, column)
        for place, weight in zip(ops.unstack(places, axis=1), ops.unstack(weights, axis=1), strict=True)
    ]
    return ops.add_n(parts)


def _kernel(node: OnnxNode, distance: Tensor, mode: str) -> Tensor:
    d = ops.abs(distance)
    if mode == "linear":
        return ops.maximum(1.0 - d, 0.0)
    a = node.attr("cubic_coeff_a", -0.75)
    # Keys' cubic convolution: (a + 2) d³ - (a + 3) d² + 1 up to 1, a d³ - 5 a d² + 8 a d - 4 a up to 2.
    near = ((a + 2) * d - (a + 3)) * d * d + 1.0
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return ops.where_v2(d <= 1.0, near, ops.where_v2(d < 2.0, far, ops.zeros_like(d)))
