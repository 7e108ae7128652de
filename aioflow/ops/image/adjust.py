"""Image preprocessing between decoding and the model: cropping, padding, flipping, colors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.static_value import constant_value
from aioflow.graph.traits import opaque
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_op
from aioflow.ops.control.branches_and_loops import case, cond
from aioflow.ops.math.random import random_uniform
from aioflow.ops.scoping import name_scope

_Size: TypeAlias = int | np.integer[Any] | Tensor  # in pixels


def _contrast(ctx: ShapeContext) -> Dims:
    ctx.require_rank("contrast_factor", 0)
    return ctx.require_rank("images", 3, -1)


define_op(
    "AdjustContrastv2",
    "images: T, contrast_factor: float32",
    "output: T",
    ["T: {float16, float32} = float32"],
    shape=_contrast,
    rows=rows.apart_from(lambda ctx: (-3, -2)),
    traits=opaque(),
)


@gradient("AdjustContrastv2")
def _contrast_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Differentiate `(image - mean) * factor + mean`, with the mean of each channel of each image."""
    images = op.inputs[0]
    factor = make("Cast", op.inputs[1], DstT=images.dtype)
    mean_of_grad = make("Mean", grad, [-3, -2], keep_dims=True)
    # Each pixel is part of the mean, so it also gets (1 - factor) times the mean of the gradients.
    rest = make("Mul", make("Sub", constant(1, images.dtype), factor), mean_of_grad)
    by_images = make("AddV2", make("Mul", grad, factor), rest)
    # By the factor: Σ grad · (image - mean).
    centred = make("Sub", images, make("Mean", images, [-3, -2], keep_dims=True))
    total = make("Sum", make("Reshape", make("Mul", grad, centred), [-1]), 0)
    return [by_images, make("Cast", total, DstT=dtypes.float32)]


def _image(value: TensorLike) -> tuple[Tensor, bool]:
    """Return the image or images as a batch, and whether a batch was given."""
    given = convert_to_tensor(value)
    if given.dims is not None and len(given.dims) not in (3, 4):
        raise InvalidArgumentError("an image has the wrong rank", expected="3 or 4", actual=format_dims(given.dims))
    if given.dims is not None and len(given.dims) == 4:
        return given, True
    images = make("ExpandDims", given, 0)
    # An image of unknown rank is treated as a single image.
    images.set_shape([None] * 4)
    return images, False


def _bare(images: Tensor, many: bool) -> Tensor:
    return images if many else make("Squeeze", images, squeeze_dims=[0])


def _sizes(images: Tensor) -> tuple[_Size, _Size]:
    """Return height and width: numbers if they are known, otherwise scalar tensors."""
    dims = (None,) * 4 if images.dims is None else images.dims
    shape = make("Shape", images) if None in dims[1:3] else None
    found = [
        size if size is not None else make("StridedSlice", shape, [axis], [axis + 1], [1], shrink_axis_mask=1)
        for axis, size in enumerate(dims[1:3], 1)
    ]
    return found[0], found[1]


def _known(value: _Size) -> int | None:
    """Return the number if it is known statically, else None."""
    found = constant_value(value) if isinstance(value, Tensor) else value
    return None if found is None else operator.index(int(found))


def _vector(*items: _Size) -> Tensor:
    known = [n for n in map(_known, items) if n is not None]
    if len(known) == len(items):
        return constant(known, dtypes.int32)
    return make("Pack", [convert_to_tensor(item, dtypes.int32) for item in items], axis=0)


def _demand(image: Tensor, *demands: tuple[_Size, str]) -> Tensor:
    """Return the image after a check that no number is negative: now if it is known, otherwise in the run."""
    checks: list[Operation] = []
    for number, what in demands:
        known = _known(number)
        if known is not None and known < 0:
            raise InvalidArgumentError(what, expected=">= 0", actual=known)
        if known is None:
            checks.append(make_op("Assert", make("GreaterEqual", number, 0), [constant(what), number]))
    if not checks:
        return image
    with image.graph.control_dependencies(checks):
        result = make("Identity", image)
    return result


# ── geometry ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def crop_to_bounding_box(
    image: TensorLike, offset_height: _Size, offset_width: _Size, target_height: _Size, target_width: _Size
) -> Tensor:
    """Return the part of an image (or of each image of a batch) of the target size that begins at the offsets.

    Raises:
        InvalidArgumentError: the part is not inside the image.
    """
    with default_graph().name_scope("crop_to_bounding_box"):
        images, many = _image(image)
        height, width = _sizes(images)
        checked = _demand(
            images,
            (offset_height, "offset_height must not be negative"),
            (offset_width, "offset_width must not be negative"),
            (target_height - 1, "target_height must be positive"),
            (target_width - 1, "target_width must be positive"),
            (height - (target_height + offset_height), "the crop must not be taller than the image"),
            (width - (target_width + offset_width), "the crop must not be wider than the image"),
        )
        begin = _vector(0, offset_height, offset_width, 0)
        made = make("Slice", checked, begin, _vector(-1, target_height, target_width, -1))
        made.set_shape([images.shape[0], _known(target_height), _known(target_width), images.shape[3]])
        return _bare(made, many)


def pad_to_bounding_box(
    image: TensorLike, offset_height: _Size, offset_width: _Size, target_height: _Size, target_width: _Size
) -> Tensor:
    """Place an image (or each image of a batch) at the offsets of a larger image of zeros.

    Raises:
        InvalidArgumentError: the image does not fit into the larger one.
    """
    with default_graph().name_scope("pad_to_bounding_box"):
        images, many = _image(image)
        height, width = _sizes(images)
        below = target_height - offset_height - height
        beside = target_width - offset_width - width
        checked = _demand(
            images,
            (offset_height, "offset_height must not be negative"),
            (offset_width, "offset_width must not be negative"),
            (below, "the image must not be taller than the target"),
            (beside, "the image must not be wider than the target"),
        )
        paddings = make("Reshape", _vector(0, 0, offset_height, below, offset_width, beside, 0, 0), [4, 2])
        made = make("Pad", checked, paddings)
        made.set_shape([images.shape[0], _known(target_height), _known(target_width), images.shape[3]])
        return _bare(made, many)


def _both(op_type: str, choose: Callable[..., int], left: _Size, right: _Size) -> _Size:
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return make(op_type, left, right)
    return choose(left, right)


def resize_image_with_crop_or_pad(image: TensorLike, target_height: _Size, target_width: _Size) -> Tensor:
    """Crop an image (or each image of a batch) to its center, or center it in zeros, to get the target size."""
    images, many = _image(image)
    height, width = _sizes(images)
    tall, wide = target_height - height, target_width - width
    # Per axis only one of the two does anything: an axis that is too long is cropped, one that is too short is padded.
    cropped = crop_to_bounding_box(
        images,
        # Half of the excess is cut off in front, rounded down; the rest is behind.
        _both("Maximum", max, -tall // 2, 0),
        _both("Maximum", max, -wide // 2, 0),
        _both("Minimum", min, target_height, height),
        _both("Minimum", min, target_width, width),
    )
    padded = pad_to_bounding_box(
        cropped, _both("Maximum", max, tall // 2, 0), _both("Maximum", max, wide // 2, 0), target_height, target_width
    )
    return _bare(padded, many)


def central_crop(image: TensorLike, central_fraction: float) -> Tensor:
    """Return the center of an image (or of each image of a batch): that fraction of its height and width.

    Raises:
        InvalidArgumentError: the fraction is not in (0, 1], or the rank is not known.
    """
    if not 0 < central_fraction <= 1:
        raise InvalidArgumentError("the fraction is out of range", expected="(0, 1]", actual=central_fraction)
    images, many = _image(image)
    if convert_to_tensor(image).dims is None:
        raise InvalidArgumentError("an image has the wrong rank", expected="3 or 4", actual=format_dims(None))
    if central_fraction == 1:
        return convert_to_tensor(image)
    with default_graph().name_scope("central_crop"):
        begins = [_margin(size, central_fraction) for size in _sizes(images)]
        sizes = [size - begin * 2 for size, begin in zip(_sizes(images), begins, strict=True)]
        made = make("Slice", images, _vector(0, *begins, 0), _vector(-1, *sizes, -1))
        made.set_shape([images.shape[0], *map(_known, sizes), images.shape[3]])
        return _bare(made, many)


def _margin(size: _Size, fraction: float) -> _Size:
    if not isinstance(size, Tensor):
        return int((size - size * fraction) / 2)
    # float64, as Python computes the margin of a known size.
    wide = make("Cast", size, DstT=dtypes.float64)
    rest = make("Sub", wide, make("Mul", wide, constant(fraction, dtypes.float64)))
    return make("Cast", make("RealDiv", rest, constant(2, dtypes.float64)), DstT=dtypes.int32)


def _flipped(image: TensorLike, axis: int) -> Tensor:
    given = convert_to_tensor(image)
    if given.dims is not None and len(given.dims) not in (3, 4):
        raise InvalidArgumentError("an image has the wrong rank", expected="3 or 4", actual=format_dims(given.dims))
    return make("ReverseV2", given, [axis])


def flip_left_right(image: TensorLike) -> Tensor:
    """Flip an image (or each image of a batch) horizontally."""
    return _flipped(image, -2)


def flip_up_down(image: TensorLike) -> Tensor:
    """Flip an image (or each image of a batch) vertically."""
    return _flipped(image, -3)


def transpose_image(image: TensorLike, name: str | None = None) -> Tensor:
    """Transpose an image (or each image of a batch): rows become columns."""
    given = convert_to_tensor(image)
    if given.dims is not None and len(given.dims) not in (3, 4):
        raise InvalidArgumentError("an image has the wrong rank", expected="3 or 4", actual=format_dims(given.dims))
    with name_scope(name, "transpose"):
        if given.dims is not None:
            return make("Transpose", given, [1, 0, 2] if len(given.dims) == 3 else [0, 2, 1, 3])
        # The last three axes are those of an image; a batch is in front.
        first = make("Sub", make("Rank", given), 3)
        last = make("AddV2", first, [1, 0, 2])
        return make("Transpose", given, make("ConcatV2", [make("Range", 0, first, 1), last], 0))


def rot90(image: TensorLike, k: _Size = 1, name: str | None = None) -> Tensor:
    """Rotate an image (or each image of a batch) counterclockwise by `k` quarter turns.

    Raises:
        InvalidArgumentError: the rank of the image is not 3 or 4, or k is not a scalar.
    """
    with name_scope(name, "rot90"):
        given = convert_to_tensor(image)
        turns: list[Callable[[], Tensor]] = [
            lambda: make("Identity", given),
            lambda: flip_up_down(transpose_image(given)),
            lambda: flip_up_down(flip_left_right(given)),
            lambda: transpose_image(flip_up_down(given)),
        ]
        quarters = convert_to_tensor(k, dtypes.int32)
        known = _known(quarters)
        if known is not None:
            return turns[known % 4]()
        chosen = make("FloorMod", quarters, 4)
        result: Tensor = case([(make("Equal", chosen, n), turn) for n, turn in enumerate(turns[1:], 1)], turns[0])
        if given.dims is not None and len(given.dims) in (3, 4):
            result.set_shape((*given.dims[:-3], None, None, given.dims[-1]))
        return result


def _maybe_flipped(image: TensorLike, axis: int, seed: int | None) -> Tensor:
    given = convert_to_tensor(image)
    if given.dims is not None and len(given.dims) == 3:
        # A single image needs only one of the branches; a batch needs both results anyway.
        flips = make("Less", random_uniform([], seed=seed), 0.5)
        result: Tensor = cond(flips, lambda: _flipped(given, axis), lambda: make("Identity", given))
        return result
    # Empty if an image of unknown rank is a single one.
    count = make("StridedSlice", make("Shape", given), [0], [-3], [1], begin_mask=1)
    flips = make("Less", random_uniform(count, seed=seed), 0.5)
    each = make("Reshape", flips, make("ConcatV2", [count, [1, 1, 1]], 0))
    return make("SelectV2", each, _flipped(given, axis), given)


def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """Apply `flip_left_right` with probability 1/2, independently to each image of a batch."""
    return _maybe_flipped(image, -2, seed)


def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """Apply `flip_up_down` with probability 1/2, independently to each image of a batch."""
    return _maybe_flipped(image, -3, seed)


# ── colors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def convert_image_dtype(image: TensorLike, dtype: DTypeLike, saturate: bool = False, name: str | None = None) -> Tensor:
    """Convert an image to another dtype, and scale its values.

    Floats are between 0 and 1, and integers go up to their maximum. With `saturate`, values outside of the range of an
    integer dtype are clipped. Floats that become other floats are neither scaled nor clipped.

    Raises:
        DTypeError: a dtype is neither an integer nor a floating one.
    """
    given, wanted = convert_to_tensor(image), as_dtype(dtype)
    for one in (given.dtype, wanted):
        if not one.is_integer and not one.is_floating:
            raise DTypeError("images cannot have this dtype", expected="integers or floats", actual=one.name)
    with name_scope(name, "convert_image"):
        if given.dtype is wanted:
            return make("Identity", given)
        if given.dtype.is_integer and wanted.is_integer:
            return _between_integers(given, wanted, saturate)
        if given.dtype.is_floating and wanted.is_floating:
            return _cast(given, wanted, False)
        if given.dtype.is_integer:
            scale = constant(1.0 / given.dtype.max, wanted)
            return make("Mul", _cast(given, wanted, False), scale)
        # The cast truncates, so 1.0 is scaled to half a step above the maximum. That may exceed the range of float16.
        if wanted.max + 0.5 > given.dtype.max:
            given = _cast(given, dtypes.float32, False)
        return _cast(make("Mul", given, constant(wanted.max + 0.5, given.dtype)), wanted, saturate)


def _between_integers(image: Tensor, dtype: DType, saturate: bool) -> Tensor:
    # Both ranges are powers of two, so one divides the other.
    most, wanted = int(image.dtype.max) + 1, int(dtype.max) + 1
    if most > wanted:
        return _cast(make("FloorDiv", image, constant(most // wanted, image.dtype)), dtype, saturate)
    return make("Mul", _cast(image, dtype, saturate), constant(wanted // most, dtype))


def _cast(image: Tensor, dtype: DType, saturate: bool) -> Tensor:
    if saturate:
        low, high = max(image.dtype.min, dtype.min), min(image.dtype.max, dtype.max)
        bounds = [constant(_inside(bound, image.dtype, dtype), image.dtype) for bound in (low, high)]
        image = make("Minimum", make("Maximum", image, bounds[0]), bounds[1])
    return make("Cast", image, DstT=dtype)


def _inside(bound: float, given: DType, wanted: DType) -> Any:
    """Return the bound in the given dtype, rounded so that it does not exceed the range of the wanted dtype."""
    if not given.is_floating or not wanted.is_integer:
        return bound
    number = given.np_dtype.type(bound)
    return np.nextafter(number, given.np_dtype.type(0)) if int(number) > wanted.max else number


def adjusted(image: TensorLike, adjust: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """Adjust an image in floating point, and convert it back to its dtype."""
    given = convert_to_tensor(image)
    with default_graph().name_scope(name):
        direct = given.dtype in (dtypes.float16, dtypes.float32)
        floats = given if direct else convert_image_dtype(given, dtypes.float32)
        return convert_image_dtype(adjust(floats), given.dtype, saturate=True)


def adjust_brightness(image: TensorLike, delta: TensorLike) -> Tensor:
    """Add `delta` to an image, where 1 is the whole range of its dtype."""

    def adjust(floats: Tensor) -> Tensor:
        return make("AddV2", floats, _cast(convert_to_tensor(delta), floats.dtype, False))

    return adjusted(image, adjust, "adjust_brightness")


def adjust_contrast(images: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """Multiply the distance of each pixel from the mean of its channel by `contrast_factor`."""
    return adjusted(
        images,
        lambda floats: make("AdjustContrastv2", floats, convert_to_tensor(contrast_factor, dtypes.float32)),
        "adjust_contrast",
    )


def adjust_gamma(image: TensorLike, gamma: float = 1, gain: float = 1) -> Tensor:
    """Replace each value `v` of an image by `gain * v**gamma`, where 1 is the whole range of its dtype.

    Raises:
        InvalidArgumentError: `gamma` is negative.
    """
    if gamma < 0:
        raise InvalidArgumentError("gamma is negative", expected=">= 0", actual=gamma)

    def adjust(floats: Tensor) -> Tensor:
        power = make("Pow", floats, constant(float(gamma), floats.dtype))
        return make("Mul", constant(float(gain), floats.dtype), power)

    return adjusted(image, adjust, "adjust_gamma")


def random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Apply `adjust_brightness` with a random number between `-max_delta` and `max_delta`.

    Raises:
        InvalidArgumentError: `max_delta` is negative.
    """
    if max_delta < 0:
        raise InvalidArgumentError("max_delta is negative", expected=">= 0", actual=max_delta)
    return adjust_brightness(image, random_uniform([], -max_delta, max_delta, seed=seed))


def random_contrast(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Apply `adjust_contrast` with a random factor between `lower` and `upper`.

    Raises:
        InvalidArgumentError: `0 <= lower < upper` does not hold.
    """
    if not 0 <= lower < upper:
        raise InvalidArgumentError(
            "lower and upper do not form a range", expected="0 <= lower < upper", actual=(lower, upper)
        )
    return adjust_contrast(image, random_uniform([], lower, upper, seed=seed))


def per_image_standardization(image: TensorLike) -> Tensor:
    """Subtract its mean from each image, and divide by its standard deviation, but at least by 1/√n.

    n is the number of values of an image.
    """
    with default_graph().name_scope("per_image_standardization"):
        floats = _cast(convert_to_tensor(image), dtypes.float32, False)
        # The last three sizes are those of one image.
        shape = make("StridedSlice", make("Shape", floats), [-3], [0], [1], end_mask=1)
        least = make("Rsqrt", make("Cast", make("Prod", shape, 0), DstT=dtypes.float32))
        centred = make("Sub", floats, make("Mean", floats, [-1, -2, -3], keep_dims=True))
        variance = make("Mean", make("Square", centred), [-1, -2, -3], keep_dims=True)
        deviation = make("Maximum", make("Sqrt", variance), least)
        return make("RealDiv", centred, deviation)


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """Convert images of three channels to one channel, their luminance."""
    given = convert_to_tensor(images)
    with name_scope(name, "rgb_to_grayscale"):
        floats = convert_image_dtype(given, dtypes.float32)
        # The luma weights of ITU-R BT.601.
        weighted = make("Mul", floats, constant([0.2989, 0.587, 0.114]))
        return convert_image_dtype(make("Sum", weighted, [-1], keep_dims=True), given.dtype)


def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Convert images of one channel to three equal channels.

    Raises:
        InvalidArgumentError: the images have another number of channels.
    """
    given = convert_to_tensor(images)
    if given.dims is not None and (not given.dims or given.dims[-1] not in (1, None)):
        raise InvalidArgumentError(
            "the images are not grayscale", expected="one channel", actual=format_dims(given.dims)
        )
    with name_scope(name, "grayscale_to_rgb"):
        result = make("ConcatV2", [given] * 3, -1)
        if given.dims is not None:
            result.set_shape((*given.dims[:-1], 3))
        return result
