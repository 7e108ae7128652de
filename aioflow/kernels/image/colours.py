"""Kernels of color spaces. They process blocks of pixels, of shape [pixels, 3]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, on_host
from aioflow.kernels.convert import as_number
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array, Namespace


def _by_pixels(xp: Namespace, images: Array, convert: Callable[[Array], Array]) -> Array:
    """Return new images whose pixels `convert` computes, from blocks [n, 3] in single or double precision."""
    if not images.ndim or images.shape[-1] != 3:
        raise InvalidArgumentError("colours have three channels", expected="[..., 3]", actual=images.shape)
    pixels = images.reshape(-1, 3)
    made = xp.empty(pixels.shape, images.dtype)
    wide = np.dtype(np.float64) if images.dtype == np.float64 else np.dtype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in blocks(len(pixels), BLOCK // 16 if on_host(xp) else max(1, len(pixels))):
            made[part] = convert(pixels[part].astype(wide, copy=False))
    return made.reshape(images.shape)


def _hue(xp: Namespace, pixels: Array, value: Array, spread: Array) -> Array:
    """Return the hue, from 0 to 1."""
    red, green, blue = pixels.T
    sixth = pixels.dtype.type(1 / 6)
    # Gray has no hue. The divisor 1 only avoids 0 / 0, and the hue becomes 0 below.
    norm = sixth / xp.where(spread > 0, spread, 1)
    # On a circle of length 1 red is at 0, green at 2/6 and blue at 4/6.
    hue = xp.where(
        red == value,
        norm * (green - blue),
        xp.where(green == value, norm * (blue - red) + 2 * sixth, norm * (red - green) + 4 * sixth),
    )
    hue = xp.where(spread > 0, hue, 0)
    return xp.where(hue < 0, hue + 1, hue)


def _coloured(xp: Namespace, hue: Array, white: Array, spread: Array) -> Array:
    """Return `white` plus the share of `spread` that each channel has at that hue."""
    # For a hue of h sixths, red is |h - 3| - 1, green 2 - |h - 2| and blue 2 - |h - 4|, clipped to [0, 1].
    turn = hue * 6
    red = abs(turn - 3) - 1
    parts = xp.stack([red, 2 - abs(turn - 2), 2 - abs(turn - 4)], axis=1)
    pixels: Array = white[:, None] + spread[:, None] * xp.clip(parts, 0, 1)
    return pixels


def _as_hsv(xp: Namespace, pixels: Array) -> tuple[Array, Array, Array]:
    value = pixels.max(axis=1)
    spread = value - pixels.min(axis=1)
    saturation = xp.where(value > 0, spread / xp.where(value > 0, value, 1), 0)
    return _hue(xp, pixels, value, spread), saturation, value


@binder("RGBToHSV", fresh=True)
def rgb_to_hsv(binding: Binding) -> Callable[[Array], Array]:
    xp = binding.xp
    return lambda images: _by_pixels(xp, images, lambda pixels: xp.stack(_as_hsv(xp, pixels), axis=1))


@binder("HSVToRGB", fresh=True)
def hsv_to_rgb(binding: Binding) -> Callable[[Array], Array]:
    xp = binding.xp

    def convert(pixels: Array) -> Array:
        hue, saturation, value = pixels.T
        return _coloured(xp, hue, (1 - saturation) * value, saturation * value)

    return lambda images: _by_pixels(xp, images, convert)


def _check_images(images: Array) -> None:
    if images.ndim < 3:
        raise InvalidArgumentError("an image has the wrong rank", expected=">= 3", actual=images.shape)


@binder("AdjustHue", fresh=True, host={"delta": as_number})
def adjust_hue(binding: Binding) -> Callable[[Array, float], Array]:
    xp = binding.xp

    def adjust(images: Array, delta: float) -> Array:
        def convert(pixels: Array) -> Array:
            value, white = pixels.max(axis=1), pixels.min(axis=1)
            hue = _hue(xp, pixels, value, value - white) + pixels.dtype.type(delta)
            # The hue is periodic; the difference lies in [0, 1).
            return _coloured(xp, hue - xp.floor(hue), white, value - white)

        _check_images(images)
        return _by_pixels(xp, images, convert)

    return adjust


@binder("AdjustSaturation", fresh=True, host={"scale": as_number})
def adjust_saturation(binding: Binding) -> Callable[[Array, float], Array]:
    xp = binding.xp

    def adjust(images: Array, scale: float) -> Array:
        def convert(pixels: Array) -> Array:
            hue, saturation, value = _as_hsv(xp, pixels)
            saturation = xp.clip(saturation * pixels.dtype.type(scale), 0, 1)
            return _coloured(xp, hue, (1 - saturation) * value, saturation * value)

        _check_images(images)
        return _by_pixels(xp, images, convert)

    return adjust
