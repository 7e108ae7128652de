"""Color spaces: conversions between RGB and others, and adjustments of hue and saturation."""

from __future__ import annotations

from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims
from aioflow.graph.traits import opaque, transcendental
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.image.adjust import adjusted
from aioflow.ops.math.random import random_uniform
from aioflow.ops.scoping import name_scope


def _three_channels(dims: Dims) -> Dims:
    if dims is None:
        return None
    if not dims or dims[-1] not in (3, None):
        raise InvalidArgumentError(
            "colours have three channels", expected="3 in the last dimension", actual=format_dims(dims)
        )
    return (*dims[:-1], 3)


def _coloured(ctx: ShapeContext) -> Dims:
    return _three_channels(ctx.dims("images"))


def _recoloured(ctx: ShapeContext) -> Dims:
    ctx.require_rank(ctx.op_def.inputs[1].name, 0)
    return _three_channels(ctx.require_rank("images", 3, -1))


for _name in ("RGBToHSV", "HSVToRGB"):
    define_op(
        _name,
        "images: T",
        "output: T",
        ["T: {float16, bfloat16, float32, float64} = float32"],
        shape=_coloured,
        rows=rows.last_axes(1),
        traits=opaque(cost=transcendental()),
    )
for _name, _by in (("AdjustHue", "delta"), ("AdjustSaturation", "scale")):
    define_op(
        _name,
        f"images: T, {_by}: float32",
        "output: T",
        ["T: {float16, float32} = float32"],
        shape=_recoloured,
        rows=rows.last_axes(1),
        traits=opaque(cost=transcendental()),
    )


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _channels(images: Tensor) -> list[Tensor]:
    """Return each channel as images of one channel."""
    return make_list("Split", -1, images, num_split=3)


def _next(images: Tensor, steps: int) -> Tensor:
    """Return images in which each channel has the value of the channel `steps` further on."""
    return make("Roll", images, -steps, -1)


def _flags(condition: Tensor, dtype: dtypes.DType) -> Tensor:
    return make("Cast", condition, DstT=dtype)


def _extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 for the largest channel, and 1 for the smallest.

    Of equal channels the first (red, green, blue) is the largest and the last is the smallest, so the two differ.
    """
    red, green, blue = _channels(images)

    def all_of(*conditions: Tensor) -> Tensor:
        return make("LogicalAnd", *conditions)

    largest = [
        all_of(make("GreaterEqual", red, green), make("GreaterEqual", red, blue)),
        all_of(make("Greater", green, red), make("GreaterEqual", green, blue)),
        all_of(make("Greater", blue, red), make("Greater", blue, green)),
    ]
    smallest = [
        all_of(make("Less", red, green), make("Less", red, blue)),
        all_of(make("LessEqual", green, red), make("Less", green, blue)),
        all_of(make("LessEqual", blue, red), make("LessEqual", blue, green)),
    ]
    joined = (make("ConcatV2", found, -1) for found in (largest, smallest))
    first, second = (_flags(found, images.dtype) for found in joined)
    return first, second


@gradient("RGBToHSV")
def _rgb_to_hsv_grad(op: Operation, grad: Tensor) -> Tensor:
    """Differentiate hue, saturation and value by each channel, as TensorFlow does.

    Black only has a gradient of its value, and a channel that is 0 has no gradient of the saturation.
    """
    images, dtype = op.inputs[0], op.inputs[0].dtype
    by_hue, by_saturation, by_value = _channels(grad)
    _, _, value = _channels(op.outputs[0])
    largest, smallest = _extremes(images)
    zero = constant(0, dtype)

    def picked(chosen: Tensor, values: Tensor) -> Tensor:
        return make("Sum", chosen * values, [-1], keep_dims=True)

    least = picked(smallest, images)
    # Black has the value 0, and gray the range 0: their slopes become 0 instead of NaN.
    one_over_value = make("DivNoNan", constant(1, dtype), value)
    one_over_range = make("DivNoNan", constant(1, dtype), value - least)
    lit = _flags(make("Greater", images, zero), dtype)
    # saturation = 1 - least / value, so its slopes are least / value² and -1 / value.
    slope_of_saturation = lit * (largest * least * one_over_value * one_over_value - smallest * one_over_value)
    # The hue of a pixel whose channel k is the largest is (2 k + (the next - the one after that) / range) / 6.
    difference = picked(largest, _next(images, 1) - _next(images, 2))
    sides = _next(largest, -1) - _next(largest, -2)
    spread = (largest - smallest) * difference * one_over_range * one_over_range
    bright = _flags(make("Greater", value, zero), dtype)
    slope_of_hue = bright * (sides * one_over_range - spread) / constant(6, dtype)
    return by_value * largest + by_saturation * slope_of_saturation + by_hue * slope_of_hue


@gradient("HSVToRGB")
def _hsv_to_rgb_grad(op: Operation, grad: Tensor) -> Tensor:
    """Differentiate `(1 - saturation + saturation * t) * value`, where t goes from 0 to 1 and back with the hue."""
    images, dtype = op.inputs[0], op.inputs[0].dtype
    hue, saturation, value = _channels(images)
    # t is |6 h - 3| - 1 for red, 2 - |6 h - 2| for green and 2 - |6 h - 4| for blue, clipped to [0, 1].
    signs, centres, shifts = (constant(each, dtype) for each in ((1, -1, -1), (3, 2, 4), (-1, 2, 2)))
    zero, one, six = (constant(number, dtype) for number in (0, 1, 6))
    away = hue * six - centres
    ramp = signs * make("Abs", away) + shifts
    clipped = make("Minimum", make("Maximum", ramp, zero), one)
    moving = make("LogicalAnd", make("Greater", ramp, zero), make("Less", ramp, one))
    slope = _flags(moving, dtype) * signs * make("Sign", away) * six

    def total(values: Tensor) -> Tensor:
        return make("Sum", values, [-1], keep_dims=True)

    by_hue = total(grad * slope) * saturation * value
    by_saturation = total(grad * (clipped - one)) * value
    by_value = total(grad * (one - saturation + saturation * clipped))
    return make("ConcatV2", [by_hue, by_saturation, by_value], -1)


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def rgb_to_hsv(images: TensorLike, name: str | None = None) -> Tensor:
    """Convert red, green and blue to hue, saturation and value, each from 0 to 1.

    `images` is [..., 3], floats; the result has its shape and dtype.
    """
    return make("RGBToHSV", images, name=name)


def hsv_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Convert hue, saturation and value to red, green and blue. See `rgb_to_hsv`."""
    return make("HSVToRGB", images, name=name)


# Row i has the weights of the old channel i in the new channels.
_MIXED: Final[dict[str, tuple[tuple[float, ...], ...]]] = {
    "rgb_to_yiq": (
        (0.299, 0.59590059, 0.2115),
        (0.587, -0.27455667, -0.52273617),
        (0.114, -0.32134392, 0.31119955),
    ),
    "yiq_to_rgb": (
        (1.0, 1.0, 1.0),
        (0.95598634, -0.27201283, -1.10674021),
        (0.6208248, -0.64720424, 1.70423049),
    ),
    "rgb_to_yuv": (
        (0.299, -0.14714119, 0.61497538),
        (0.587, -0.28886916, -0.51496512),
        (0.114, 0.43601035, -0.10001026),
    ),
    "yuv_to_rgb": (
        (1.0, 1.0, 1.0),
        (0.0, -0.394642334, 2.03206185),
        (1.13988303, -0.58062185, 0.0),
    ),
}


def _mixed(images: TensorLike, name: str) -> Tensor:
    given = convert_to_tensor(images)
    dims = _three_channels(given.dims)
    with name_scope(None, name):
        # All pixels form one matrix, for a single product.
        rows = make("Reshape", given, [-1, 3])
        made = make("Reshape", make("MatMul", rows, constant(_MIXED[name], given.dtype)), make("Shape", given))
    made.set_shape(dims)
    return made


def rgb_to_yiq(images: TensorLike) -> Tensor:
    """Convert red, green and blue to the Y, I and Q of NTSC.

    Y is from 0 to 1, I is within 0.5957 and Q within 0.5226 of 0. `images` is [..., 3], floats; the result has its
    shape and dtype.
    """
    return _mixed(images, "rgb_to_yiq")


def yiq_to_rgb(images: TensorLike) -> Tensor:
    """Convert the Y, I and Q of NTSC to red, green and blue. See `rgb_to_yiq`."""
    return _mixed(images, "yiq_to_rgb")


def rgb_to_yuv(images: TensorLike) -> Tensor:
    """Convert red, green and blue to Y, U and V.

    Y is from 0 to 1, U and V are within 0.5 of 0. See `rgb_to_yiq`.
    """
    return _mixed(images, "rgb_to_yuv")


def yuv_to_rgb(images: TensorLike) -> Tensor:
    """Convert Y, U and V to red, green and blue. See `rgb_to_yuv`."""
    return _mixed(images, "yuv_to_rgb")


def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """Add `delta` to the hue of an RGB image, or of a batch of them, where 1 is a full turn. It has no gradient.

    Args:
        image: [..., height, width, 3].
        delta: A scalar, from -1 to 1.
        name: Name scope of the nodes.
    """
    factor = convert_to_tensor(delta, dtypes.float32)
    return adjusted(image, lambda floats: make("AdjustHue", floats, factor), name or "adjust_hue")


def adjust_saturation(image: TensorLike, saturation_factor: TensorLike, name: str | None = None) -> Tensor:
    """Multiply the saturation of an RGB image, or of a batch of them, up to 1. It has no gradient.

    Args:
        image: [..., height, width, 3].
        saturation_factor: A scalar.
        name: Name scope of the nodes.
    """
    factor = convert_to_tensor(saturation_factor, dtypes.float32)
    return adjusted(image, lambda floats: make("AdjustSaturation", floats, factor), name or "adjust_saturation")


def random_hue(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """Apply `adjust_hue` with a random number between `-max_delta` and `max_delta`.

    Raises:
        InvalidArgumentError: `max_delta` is not from 0 to 0.5.
    """
    if not 0 <= max_delta <= 0.5:
        raise InvalidArgumentError("max_delta is out of range", expected="0..0.5", actual=max_delta)
    return adjust_hue(image, random_uniform([], -max_delta, max_delta, seed=seed))


def random_saturation(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """Apply `adjust_saturation` with a random factor between `lower` and `upper`.

    Raises:
        InvalidArgumentError: `0 <= lower < upper` does not hold.
    """
    if not 0 <= lower < upper:
        raise InvalidArgumentError(
            "lower and upper do not form a range", expected="0 <= lower < upper", actual=(lower, upper)
        )
    return adjust_saturation(image, random_uniform([], lower, upper, seed=seed))
