"""Kernels that resize images and change their contrast. Resizing looks up, or weighs, rows first, then columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, claim_array, on_host
from aioflow.kernels.convert import as_ints
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.stopping import blocks

__all__: list[str] = []


def _checked_size(images: Any, size: tuple[int, ...]) -> tuple[int, int]:
    if images.ndim != 4 or len(size) != 2:
        raise InvalidArgumentError("images are resized in batches", expected="rank 4, 2 sizes", actual=images.shape)
    if min(size) <= 0 or min(images.shape[1:3]) <= 0:
        raise InvalidArgumentError("a size must be positive", expected="> 0", actual=(images.shape[1:3], size))
    return size[0], size[1]


def _scale(old: int, new: int, corners: bool) -> Any:
    """How many old pixels there are to a new one, float32."""
    if corners and new > 1:
        return np.float32(old - 1) / np.float32(new - 1)
    return np.float32(old) / np.float32(new)


def _positions(old: int, new: int, corners: bool, centres: bool) -> Any:
    """Where the new pixels are among the old ones, float32."""
    numbers = np.arange(new, dtype=np.float32)
    scale = _scale(old, new, corners)
    if centres:
        return (numbers + np.float32(0.5)) * scale - np.float32(0.5)
    return numbers * scale


def _flags(binding: Binding) -> tuple[bool, bool]:
    corners, centres = binding.attrs["align_corners"], binding.attrs["half_pixel_centers"]
    if corners and centres:
        raise InvalidArgumentError(
            "pixels are aligned in one way", expected="align_corners or half_pixel_centers", actual="both"
        )
    return corners, centres


def _lines(xp: Any, shape: tuple[int, ...]) -> Iterator[slice]:
    """Some lines of images at a time, on the CPU."""
    batch, height, width, depth = shape
    return blocks(height, max(1, BLOCK // max(1, batch * width * depth)) if on_host(xp) else max(1, height))


# ── bilinear ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _neighbours(old: int, new: int, flags: tuple[bool, bool]) -> tuple[Any, Any, Any]:
    """For each new pixel the two old ones between which it is, and how far it is from the first."""
    at = _positions(old, new, *flags)
    below = np.floor(at)
    return (
        np.maximum(below, 0).astype(np.int64),
        np.minimum(np.ceil(at), old - 1).astype(np.int64),
        (at - below).astype(np.float32),
    )


@binder("ResizeBilinear", fresh=True, host={"size": as_ints}, elastic=True)
def resize_bilinear(binding: Binding) -> Callable[[Any, tuple[int, ...]], Any]:
    xp, flags = binding.xp, _flags(binding)

    def resize(images: Any, size: tuple[int, ...]) -> Any:
        height, width = _checked_size(images, size)
        shape = (len(images), height, width, images.shape[3])
        claim_array(shape, np.dtype(np.float32))
        above, below, down = map(xp.asarray, _neighbours(images.shape[1], height, flags))
        left, right, across = map(xp.asarray, _neighbours(images.shape[2], width, flags))
        down, across = down[None, :, None, None], across[None, None, :, None]
        result = xp.empty(shape, np.float32)
        for part in _lines(xp, shape):
            rows = (images[:, places[part]].astype(np.float32) for places in (above, below))
            top, bottom = (row[:, :, left] + (row[:, :, right] - row[:, :, left]) * across for row in rows)
            result[:, part] = top + (bottom - top) * down[:, part]
        return result

    return resize


def _weights(old: int, new: int, flags: tuple[bool, bool]) -> Any:
    """[old, new]: how much of each old pixel there is in each new one."""
    below, above, share = _neighbours(old, new, flags)
    made = np.zeros((old, new), dtype=np.float32)
    columns = np.arange(new)
    np.add.at(made, (below, columns), 1 - share)
    np.add.at(made, (above, columns), share)
    return made


@binder("ResizeBilinearGrad", fresh=True)
def resize_bilinear_grad(binding: Binding) -> Callable[[Any, Any], Any]:
    xp, flags = binding.xp, _flags(binding)

    def back(grads: Any, image: Any) -> Any:
        height, width = _checked_size(grads, image.shape[1:3])
        rows = xp.asarray(_weights(height, grads.shape[1], flags))
        columns = xp.asarray(_weights(width, grads.shape[2], flags))
        return _transposed(xp, grads, rows, columns).astype(image.dtype)

    return back


def _transposed(xp: Any, grads: Any, rows: Any, columns: Any) -> Any:
    """Weigh rows, then columns: [batch, h, w, c] by [old h, h] and [old w, w]."""
    by_rows = xp.einsum("oh,bhwc->bowc", rows, grads, optimize=True)
    return xp.einsum("ow,bhwc->bhoc", columns, by_rows, optimize=True)


# ── nearest neighbour ────────────────────────────────────────────────────────────────────────────────────────────────


def _nearest(old: int, new: int, corners: bool, centres: bool) -> Any:
    numbers = np.arange(new, dtype=np.float32)
    scale = _scale(old, new, corners)
    at = (numbers + np.float32(0.5)) * scale if centres else numbers * scale
    # Half a pixel is rounded up here, not to the even one.
    chosen = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    return np.clip(chosen, 0, old - 1).astype(np.int64)


@binder("ResizeNearestNeighbor", fresh=True, host={"size": as_ints}, elastic=True)
def resize_nearest_neighbor(binding: Binding) -> Callable[[Any, tuple[int, ...]], Any]:
    xp, flags = binding.xp, _flags(binding)

    def resize(images: Any, size: tuple[int, ...]) -> Any:
        height, width = _checked_size(images, size)
        shape = (len(images), height, width, images.shape[3])
        claim_array(shape, images.dtype)
        rows = xp.asarray(_nearest(images.shape[1], height, *flags))
        columns = xp.asarray(_nearest(images.shape[2], width, *flags))
        result = xp.empty(shape, images.dtype)
        for part in _lines(xp, shape):
            result[:, part] = images[:, rows[part]][:, :, columns]
        return result

    return resize


@binder("ResizeNearestNeighborGrad", fresh=True, host={"size": as_ints}, elastic=True)
def resize_nearest_neighbor_grad(binding: Binding) -> Callable[[Any, tuple[int, ...]], Any]:
    xp, flags = binding.xp, _flags(binding)

    def back(grads: Any, size: tuple[int, ...]) -> Any:
        height, width = _checked_size(grads, size)
        shape = (len(grads), height, width, grads.shape[3])
        narrow = grads.dtype.itemsize < 4
        wide = np.dtype(np.float32 if grads.dtype.kind in "fV" else np.int32) if narrow else grads.dtype
        claim_array(shape, wide)
        rows = xp.asarray(_nearest(height, grads.shape[1], *flags))
        columns = xp.asarray(_nearest(width, grads.shape[2], *flags))
        by_rows = xp.zeros((height, len(grads), *grads.shape[2:]), wide)
        for part in _lines(xp, grads.shape):
            xp.add.at(by_rows, rows[part], grads[:, part].astype(wide, copy=False).transpose(1, 0, 2, 3))
        made = xp.zeros((width, *shape[:2], shape[3]), wide)
        for part in _lines(xp, (len(grads), grads.shape[2], height, grads.shape[3])):
            xp.add.at(made, columns[part], by_rows[:, :, part].transpose(2, 1, 0, 3))
        return xp.ascontiguousarray(made.transpose(1, 2, 0, 3)).astype(grads.dtype, copy=False)

    return back


# ── contrast ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("AdjustContrastv2", fresh=True)
def adjust_contrast(images: Any, factor: Any) -> Any:
    if images.ndim < 3 or np.ndim(factor):
        raise InvalidArgumentError("not images and a factor", expected="rank >= 3 and a scalar", actual=images.shape)
    if not images.size:
        return images.copy()
    floats = images.astype(np.float32)
    mean = floats.mean(axis=(-3, -2), keepdims=True)
    return ((floats - mean) * factor + mean).astype(images.dtype)
