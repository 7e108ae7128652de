"""Kernels that resize images with more than two neighbors per pixel: bicubic, by area, and by a filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import blocks, checkpoint
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, claim_array
from aioflow.kernels.convert import as_array, as_ints
from aioflow.kernels.image.grids import checked_size, original_size, positions, scale_of, scaling_flags, some_lines
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace

# ── resampling weights along one axis, and their application ──────────────────────────────────────────────────────────
#
# All resizing here is separable: the rows are weighed first, then the columns.


class ResamplingWeights(NamedTuple):
    """Resampling weights along one axis, in host memory.

    Pixel i is the weighted sum of the `counts[i]` entries from `starts[i]` on.

    Attributes:
        starts: int64 [new], the first entry of each new pixel.
        counts: int64 [new], the number of entries of each new pixel.
        places: int64 [entries], the old pixels.
        weights: float32 [entries], their weights.
    """

    starts: Array
    counts: Array
    places: Array
    weights: Array


def spans(first: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Return the entries of spans of neighboring old pixels, all int64: starts, and each entry's new and old pixel."""
    starts = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(len(counts)), counts)
    return starts, owners, np.arange(len(owners)) - starts[owners] + first[owners]


def transposed(taps: ResamplingWeights, old: int) -> ResamplingWeights:
    """Return the weights of the gradient, which sum over the new pixels for each old one."""
    owners = np.repeat(np.arange(len(taps.counts)), taps.counts)
    # Sorted by old pixel, the entries of all new pixels are the lists of the old ones.
    order = np.argsort(taps.places, kind="stable")
    counts = np.bincount(taps.places, minlength=old)
    return ResamplingWeights(np.cumsum(counts) - counts, counts, owners[order], taps.weights[order])


def resampled(xp: Namespace, images: Array, rows: ResamplingWeights, columns: ResamplingWeights) -> Array:
    """Return resampled images: float32 [batch, new height, new width, channels]."""
    batch, _, width, depth = images.shape
    shape = (batch, len(rows.counts), len(columns.counts), depth)
    result = xp.empty(shape, np.float32)
    whole = slice(0, shape[2])
    for part in some_lines(xp, (batch, shape[1], max(width, shape[2]), depth)):
        lines = _weighed(xp, images, rows, part)
        result[:, part] = _weighed(xp, lines.swapaxes(1, 2), columns, whole).swapaxes(1, 2)
    return result


def _weighed(xp: Namespace, values: Array, taps: ResamplingWeights, part: slice) -> Array:
    """Return the new pixels `part` along axis 1."""
    starts, counts = taps.starts[part], taps.counts[part]
    made = xp.zeros((len(values), len(starts), *values.shape[2:]), np.float32)
    if not made.size or not values.size:
        return made
    # The loop runs over the shorter of the two: entries of a pixel, or pixels.
    most = int(counts.max())
    if most > len(starts):
        _one_by_one(xp, values, taps, part, made)
        return made
    for step in range(most):
        checkpoint()
        which = np.flatnonzero(counts > step)
        found = _taken(xp, values, taps, starts[which] + step)
        if len(which) == len(starts):
            made += found
        else:
            made[:, xp.asarray(which)] += found
    return made


def _one_by_one(xp: Namespace, values: Array, taps: ResamplingWeights, part: slice, made: Array) -> None:
    size = max(1, BLOCK * made.shape[1] // made.size)
    for number, (start, count) in enumerate(zip(taps.starts[part].tolist(), taps.counts[part].tolist(), strict=True)):
        checkpoint()
        for some in blocks(count, size):
            found = _taken(xp, values, taps, slice(start + some.start, start + some.stop))
            made[:, number] += found.sum(axis=1)


def _taken(xp: Namespace, values: Array, taps: ResamplingWeights, which: Array | slice) -> Array:
    rows = values[:, xp.asarray(taps.places[which])].astype(np.float32, copy=False)
    return rows * xp.asarray(taps.weights[which])[:, None, None]


# ── the kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────


_Pair: TypeAlias = tuple[np.float32, np.float32]
_F32: Final = np.float32
_LEAST: Final = _F32(1000) * np.finfo(np.float32).tiny  # the smallest sum of weights to divide by


def _normalized(weights: Array, owners: Array, new: int) -> Array:
    """Return weights that sum to 1 for each new pixel, or are 0 if their sum is nearly 0."""
    sums = np.bincount(owners, weights, new).astype(np.float32)
    solid = np.abs(sums) >= _LEAST
    return weights * np.where(solid, 1 / np.where(solid, sums, 1), 0)[owners].astype(np.float32)


def _sized(images: Array, height: int, width: int) -> None:
    claim_array((len(images), height, width, images.shape[3]), np.dtype(np.float32))


# ── bicubic ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_STEPS: Final = 1024  # entries of the weight table per pixel


def _cubic_table(sharpness: float) -> tuple[Array, Array]:
    """Return the weights by distance, from 0 to 1 and from 1 to 2; `sharpness` is Keys's parameter a."""
    # Keys's kernel is (a + 2) x³ - (a + 3) x² + 1 up to 1, and a x³ - 5a x² + 8a x - 4a from there to 2.
    a, near = sharpness, np.arange(_STEPS + 1) / _STEPS
    far = near + 1
    within = ((a + 2) * near - (a + 3)) * near * near + 1
    return within.astype(np.float32), (((far - 5) * a * far + 8 * a) * far - 4 * a).astype(np.float32)


# By `half_pixel_centers`: a is -½ with it, and -¾ without.
_TABLES: Final = {True: _cubic_table(-0.5), False: _cubic_table(-0.75)}


def _cubic(old: int, new: int, flags: tuple[bool, bool]) -> ResamplingWeights:
    centres = flags[1]
    at = positions(old, new, *flags)
    below = np.floor(at)
    # TensorFlow rounds distances to the steps of a table, so this does, too.
    step = np.rint((at - below) * _F32(_STEPS)).astype(np.int64)
    near, far = _TABLES[centres]
    # The four pixels are at the distances 1 + d, d, 1 - d and 2 - d.
    weights = np.stack([far[step], near[step], near[_STEPS - step], far[_STEPS - step]], axis=1).reshape(-1)
    places = (below.astype(np.int64)[:, None] + np.arange(-1, 3)).reshape(-1)
    inside = np.clip(places, 0, old - 1)
    if centres:  # pixels outside have no weight; without this flag the edge pixel replaces them
        weights = _normalized(np.where(inside == places, weights, _F32(0)), np.repeat(np.arange(new), 4), new)
    return ResamplingWeights(np.arange(new) * 4, np.full(new, 4), inside, weights)


@binder("ResizeBicubic", fresh=True, host={"size": as_ints}, elastic=True)
def resize_bicubic(binding: Binding) -> Callable[[Array, tuple[int, ...]], Array]:
    xp, flags = binding.xp, scaling_flags(binding)

    def resize(images: Array, size: tuple[int, ...]) -> Array:
        height, width = checked_size(images, size)
        _sized(images, height, width)
        return resampled(xp, images, _cubic(images.shape[1], height, flags), _cubic(images.shape[2], width, flags))

    return resize


@binder("ResizeBicubicGrad", fresh=True)
def resize_bicubic_grad(binding: Binding) -> Callable[[Array, Array], Array]:
    xp, flags = binding.xp, scaling_flags(binding)

    def back(grads: Array, image: Array) -> Array:
        height, width = original_size(grads, image)
        rows, columns = _cubic(height, grads.shape[1], flags), _cubic(width, grads.shape[2], flags)
        made = resampled(xp, grads, transposed(rows, height), transposed(columns, width))
        return made.astype(image.dtype, copy=False)

    return back


# ── by area ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _areas(old: int, new: int, corners: bool) -> ResamplingWeights:
    """Return each old pixel's share of the area of a new one. Beyond the image, the edge pixel is used."""
    scale = scale_of(old, new, corners)
    begins = np.arange(new, dtype=np.float32) * scale
    ends = np.arange(1, new + 1, dtype=np.float32) * scale
    first = np.floor(begins).astype(np.int64)
    counts = np.ceil(ends).astype(np.int64) - first
    starts, owners, places = spans(first, counts)
    # If one old pixel covers the new one entirely, its share is the scale.
    after = (places + 1).astype(np.float32)
    leading = np.where(after > ends[owners], scale, after - begins[owners])
    trailing = np.where(after > ends[owners], ends[owners] - places.astype(np.float32), _F32(1))
    share = np.where(places < begins[owners], leading, trailing)
    return ResamplingWeights(starts, counts, np.clip(places, 0, old - 1), (share / scale).astype(np.float32))


@binder("ResizeArea", fresh=True, host={"size": as_ints}, elastic=True)
def resize_area(binding: Binding) -> Callable[[Array, tuple[int, ...]], Array]:
    xp, corners = binding.xp, binding.attrs["align_corners"]

    def resize(images: Array, size: tuple[int, ...]) -> Array:
        height, width = checked_size(images, size)
        _sized(images, height, width)
        return resampled(xp, images, _areas(images.shape[1], height, corners), _areas(images.shape[2], width, corners))

    return resize


# ── by a filter ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _lanczos(radius: float) -> Callable[[Array], Array]:
    def weigh(x: Array) -> Array:
        # sinc(x) sinc(x / radius). Near 0 the quotient is 0 / 0, and its limit is 1.
        angle = np.where(x > 1e-3, x, 1) * np.float32(np.pi)
        waves = _F32(radius) * np.sin(angle) * np.sin(angle / _F32(radius)) / (angle * angle)
        return np.where(x > radius, 0, np.where(x > 1e-3, waves, 1))

    return weigh


def _gaussian(x: Array) -> Array:
    # exp(-x² / 2σ²) with σ = ½.
    return np.where(x >= 1.5, 0, np.exp(-x * x / _F32(2 * 0.5 * 0.5)))


def _box(x: Array) -> Array:
    return np.where(x < 0.5, 1, np.where(x == 0.5, 0.5, 0))


def _triangle(x: Array) -> Array:
    weights: Array = np.maximum(1 - x, 0)
    return weights


def _keys(x: Array) -> Array:
    near, far = ((1.5 * x - 2.5) * x) * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


def _mitchell(x: Array) -> Array:
    """Mitchell and Netravali's filter with B = C = 1/3.

    Source: "Reconstruction filters in computer graphics", 1988.
    """
    near, far = ((7 * x / 6 - 2) * x) * x + 8 / 9, ((-7 * x / 18 + 2) * x - 10 / 3) * x + 16 / 9
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


_FILTERS: Final[dict[str, tuple[float, Callable[[Array], Array]]]] = {  # radius and weights by distance
    "lanczos1": (1.0, _lanczos(1.0)),
    "lanczos3": (3.0, _lanczos(3.0)),
    "lanczos5": (5.0, _lanczos(5.0)),
    "gaussian": (1.5, _gaussian),
    "box": (0.5, _box),
    "triangle": (1.0, _triangle),
    "keyscubic": (2.0, _keys),
    "mitchellcubic": (2.0, _mitchell),
}


class _Filter:
    """The filter of a node. With `antialias`, it becomes wider if images are scaled down."""

    def __init__(self, binding: Binding) -> None:
        self._radius, self._weigh = _FILTERS[binding.attrs["kernel_type"]]
        self._antialias = binding.attrs["antialias"]

    def taps(self, old: int, new: int, scale: np.float32, moved: np.float32) -> ResamplingWeights:
        """Return the weights for new pixels at `scale * x + moved` of the old ones.

        A new pixel whose center is outside the old image has no weights, so it is 0.
        """
        step = _F32(1) / scale
        wide = max(step, _F32(1)) if self._antialias else _F32(1)
        reach = _F32(self._radius) * wide
        # The center of new pixel i lies at (i + ½ - moved) / scale of the old image.
        middles = (np.arange(new, dtype=np.float32) + _F32(0.5)) * step - step * moved
        inside = (middles >= 0) & (middles <= old)
        middles = np.where(inside, middles, _F32(0))
        # The centers of old pixels are at i + ½, so those within reach begin and end half a pixel earlier by number.
        first = np.clip(np.ceil(middles - reach - _F32(0.5)).astype(np.int64), 0, old - 1)
        last = np.clip(np.floor(middles + reach - _F32(0.5)).astype(np.int64), 0, old - 1)
        counts = np.where(inside, last + 1 - first, 0)
        claim_array((int(counts.sum()),), np.dtype(np.int64))
        starts, owners, places = spans(first, counts)
        away = np.abs(places.astype(np.float32) + _F32(0.5) - middles[owners]) * (_F32(1) / wide)
        return ResamplingWeights(starts, counts, places, _normalized(self._weigh(away).astype(np.float32), owners, new))


def _pair(value: Array, what: str) -> _Pair:
    numbers = as_array(value).reshape(-1)
    if numbers.shape != (2,) or not np.isfinite(numbers).all():
        raise InvalidArgumentError(f"{what} is not that of rows and columns", expected="2 numbers", actual=numbers)
    return numbers[0], numbers[1]


def _as_scale(value: Array) -> _Pair:
    scale = _pair(value, "scale")
    if min(scale) <= 0:
        raise InvalidArgumentError("a scale must be positive", expected="> 0", actual=scale)
    return scale


def _as_translation(value: Array) -> _Pair:
    return _pair(value, "translation")


_PLACED: Final = {"scale": _as_scale, "translation": _as_translation}


@binder("ScaleAndTranslate", fresh=True, host={"size": as_ints, **_PLACED}, elastic=True)
def scale_and_translate(binding: Binding) -> KernelBody:
    xp, filtering = binding.xp, _Filter(binding)

    def resize(images: Array, size: tuple[int, ...], scale: _Pair, moved: _Pair) -> Array:
        height, width = checked_size(images, size)
        _sized(images, height, width)
        rows = filtering.taps(images.shape[1], height, scale[0], moved[0])
        return resampled(xp, images, rows, filtering.taps(images.shape[2], width, scale[1], moved[1]))

    return resize


@binder("ScaleAndTranslateGrad", fresh=True, host=_PLACED)
def scale_and_translate_grad(binding: Binding) -> KernelBody:
    xp, filtering = binding.xp, _Filter(binding)

    def back(grads: Array, image: Array, scale: _Pair, moved: _Pair) -> Array:
        height, width = original_size(grads, image)
        rows = filtering.taps(height, grads.shape[1], scale[0], moved[0])
        columns = filtering.taps(width, grads.shape[2], scale[1], moved[1])
        return resampled(xp, grads, transposed(rows, height), transposed(columns, width))

    return back
