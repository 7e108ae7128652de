"""The kernel of projective transforms of images. It computes blocks of lines; a line is a row of one new image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array, full
from aioflow.kernels.convert import as_array, as_ints
from aioflow.kernels.image.grids import some_lines
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace, NpDType

_Places: TypeAlias = Callable[[Namespace, Array, int], Array]


# ── what is beyond the edges ──────────────────────────────────────────────────────────────────────────────────────────


def _clamped(xp: Namespace, at: Array, size: int) -> Array:
    return xp.clip(at, np.float32(0), np.float32(size - 1))


def _reflected(xp: Namespace, at: Array, size: int) -> Array:
    """Continue abcd as dcba|abcd|dcba."""
    if size <= 1:
        # NaN, a source infinitely far away, must reach `read`, which fills it.
        return xp.where(xp.isnan(at), at, np.float32(0))
    # Whole periods are removed; then the far half of the period is mirrored.
    period = np.float32(2 * size)
    before = at + period * xp.trunc(-at / period)
    before = xp.where(before < -size, before + period, -before - 1)
    after = at - period * xp.trunc(at / period)
    after = xp.where(after >= size, period - after - 1, after)
    return _clamped(xp, xp.where(at < 0, before, xp.where(at > size - 1, after, at)), size)


def _wrapped(xp: Namespace, at: Array, size: int) -> Array:
    """Continue abcd as abcd|abcd|abcd."""
    if size <= 1:
        return xp.where(xp.isnan(at), at, np.float32(0))
    # As in TensorFlow, whole turns are counted by size - 1, but each moves by size.
    last, whole = np.float32(size - 1), np.float32(size)
    before = at + whole * (xp.trunc(-at / last) + 1)
    after = at - whole * xp.trunc(at / last)
    return _clamped(xp, xp.where(at < 0, before, xp.where(at > last, after, at)), size)


_FILLS: Final[dict[str, _Places]] = {
    "CONSTANT": lambda xp, at, size: at,
    "NEAREST": _clamped,
    "REFLECT": _reflected,
    "WRAP": _wrapped,
}


# ── which pixels ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Source:
    """The images from which pixels are read; outside them, pixels have the fill value."""

    def __init__(self, xp: Namespace, images: Array, numbers: Array, fill: np.generic) -> None:
        self.xp, self.images, self.numbers, self.fill = xp, images, numbers, fill

    def read(self, y: Array, x: Array) -> Array:
        """Return the pixels at integer coordinates: [lines, width, channels]."""
        xp, (_, height, width, _) = self.xp, self.images.shape
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        # Positions outside read pixel 0, so that all indices are valid.
        rows, columns = (xp.where(inside, at, 0).astype(np.int64) for at in (y, x))
        return xp.where(inside[..., None], self.images[self.numbers, rows, columns], self.fill)

    def nearest(self, y: Array, x: Array) -> Array:
        """Return the nearest pixels; of two equally near ones, the one further from 0."""
        return self.read(*(_rounded(self.xp, at) for at in (y, x)))

    def bilinear(self, y: Array, x: Array) -> Array:
        """Interpolate between the four neighboring pixels, as float32."""
        xp = self.xp
        top, left = xp.floor(y), xp.floor(x)
        bottom, right = top + 1, left + 1

        def row(at: Array) -> Array:
            before, after = (self.read(at, column).astype(np.float32, copy=False) for column in (left, right))
            return (right - x)[..., None] * before + (x - left)[..., None] * after

        made = (bottom - y)[..., None] * row(top) + (y - top)[..., None] * row(bottom)
        # The weights of NaN are NaN, too, so its pixels are filled afterwards.
        return xp.where(xp.isnan(y + x)[..., None], self.fill, made)


def _rounded(xp: Namespace, at: Array) -> Array:
    # Not `rint`, which rounds halves to even.
    size = abs(at)
    whole = xp.floor(size)
    return xp.copysign(whole + (size - whole >= 0.5), at)


def _places(xp: Namespace, transforms: Array, rows: Array, width: int) -> tuple[Array, Array]:
    """Return the source coordinates y and x, float32 [lines, width], NaN if the source is infinitely far away."""
    # The source of (x, y) is x' = (a0 x + a1 y + a2) / k and y' = (b0 x + b1 y + b2) / k, with k = c0 x + c1 y + 1.
    a0, a1, a2, b0, b1, b2, c0, c1 = (number[:, None] for number in transforms.T)
    x, y = xp.arange(width, dtype=np.float32), rows[:, None].astype(np.float32)
    scale = c0 * x + c1 * y + np.float32(1)
    scale = xp.where(scale == 0, np.float32(np.nan), scale)
    return (b0 * x + b1 * y + b2) / scale, (a0 * x + a1 * y + a2) / scale


def _check(images: Array, transforms: Array, size: tuple[int, ...]) -> None:
    if images.ndim != 4 or len(size) != 2 or min(size) <= 0:
        raise InvalidArgumentError(
            "images are transformed in batches", expected="rank 4, 2 sizes > 0", actual=(images.shape, size)
        )
    if transforms.ndim != 2 or transforms.shape[1] != 8 or len(transforms) not in (1, len(images)):
        raise InvalidArgumentError(
            "there is a transform for all images, or one for each",
            expected=f"(1, 8) or ({len(images)}, 8)",
            actual=transforms.shape,
        )


def _filling(value: Array | float, dtype: NpDType) -> Any:
    with np.errstate(invalid="ignore"):
        return as_array(value).reshape(()).astype(dtype)[()]


@binder("ImageProjectiveTransformV2", fresh=True, host={"output_shape": as_ints}, elastic=True)
@binder(
    "ImageProjectiveTransformV3",
    fresh=True,
    host={"output_shape": as_ints, "fill_value": as_array},
    elastic=True,
)
def transform(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype
    bilinear = binding.attrs["interpolation"] == "BILINEAR"
    mapped = _FILLS[binding.attrs["fill_mode"]]

    def body(images: Array, transforms: Array, size: tuple[int, ...], fill_value: Array | float = 0.0) -> Array:
        _check(images, transforms, size)
        (batch, old_height, old_width, depth), (height, width) = images.shape, size
        shape = (batch, height, width, depth)
        claim_array(shape, dtype)
        fill = _filling(fill_value, dtype)
        if 0 in images.shape:
            return full(xp, shape, fill, dtype)
        made = xp.empty((batch * height, width, depth), dtype)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            # Interpolation reads four neighbors of each pixel.
            for part in some_lines(xp, (1, batch * height, width, 4 * depth)):
                lines = xp.arange(part.start, part.stop)
                numbers = lines // height
                chosen = transforms[numbers if len(transforms) > 1 else numbers * 0]
                y, x = _places(xp, chosen, lines % height, width)
                source = _Source(xp, images, numbers[:, None], fill)
                y, x = mapped(xp, y, old_height), mapped(xp, x, old_width)
                made[part] = (source.bilinear if bilinear else source.nearest)(y, x)
        return made.reshape(shape)

    return body
