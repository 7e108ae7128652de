"""Kernels that resize images, crop and resize parts of them, and change their contrast.

Whole images are resized along the rows first, then along the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.convert import as_ints
from aioflow.kernels.image.grids import checked_size, original_size, positions, scale_of, scaling_flags, some_lines
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, Namespace

# ── bilinear ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _neighbours(old: int, new: int, flags: tuple[bool, bool]) -> tuple[Array, Array, Array]:
    """Return for each new pixel the two old pixels around it, and its distance from the first."""
    at = positions(old, new, *flags)
    # Beyond an edge both neighbors are the edge pixel.
    below = np.floor(at)
    return (
        np.maximum(below, 0).astype(np.int64),
        np.minimum(np.ceil(at), old - 1).astype(np.int64),
        (at - below).astype(np.float32),
    )


@binder("ResizeBilinear", fresh=True, host={"size": as_ints}, elastic=True)
def resize_bilinear(binding: Binding) -> Callable[[Array, tuple[int, ...]], Array]:
    xp, flags = binding.xp, scaling_flags(binding)

    def resize(images: Array, size: tuple[int, ...]) -> Array:
        height, width = checked_size(images, size)
        shape = (len(images), height, width, images.shape[3])
        claim_array(shape, np.dtype(np.float32))
        above, below, down = map(xp.asarray, _neighbours(images.shape[1], height, flags))
        left, right, across = map(xp.asarray, _neighbours(images.shape[2], width, flags))
        down, across = down[None, :, None, None], across[None, None, :, None]
        result = xp.empty(shape, np.float32)
        for part in some_lines(xp, shape):
            rows = (images[:, places[part]].astype(np.float32) for places in (above, below))
            top, bottom = (row[:, :, left] + (row[:, :, right] - row[:, :, left]) * across for row in rows)
            result[:, part] = top + (bottom - top) * down[:, part]
        return result

    return resize


def _weights(old: int, new: int, flags: tuple[bool, bool]) -> Array:
    """Return the weight of each old pixel in each new one: [old, new]."""
    below, above, share = _neighbours(old, new, flags)
    made = np.zeros((old, new), dtype=np.float32)
    columns = np.arange(new)
    np.add.at(made, (below, columns), 1 - share)
    np.add.at(made, (above, columns), share)
    return made


@binder("ResizeBilinearGrad", fresh=True)
def resize_bilinear_grad(binding: Binding) -> Callable[[Array, Array], Array]:
    xp, flags = binding.xp, scaling_flags(binding)

    def back(grads: Array, image: Array) -> Array:
        height, width = original_size(grads, image)
        rows = xp.asarray(_weights(height, grads.shape[1], flags))
        columns = xp.asarray(_weights(width, grads.shape[2], flags))
        return _transposed(xp, grads, rows, columns).astype(image.dtype)

    return back


def _transposed(xp: Namespace, grads: Array, rows: Array, columns: Array) -> Array:
    """Weigh rows, then columns: [batch, h, w, c] by [old h, h] and [old w, w]."""
    by_rows = xp.einsum("oh,bhwc->bowc", rows, grads, optimize=True)
    return xp.einsum("ow,bhwc->bhoc", columns, by_rows, optimize=True)


# ── nearest neighbour ─────────────────────────────────────────────────────────────────────────────────────────────────


def _nearest(old: int, new: int, corners: bool, centres: bool) -> Array:
    numbers = np.arange(new, dtype=np.float32)
    scale = scale_of(old, new, corners)
    at = (numbers + np.float32(0.5)) * scale if centres else numbers * scale
    # Half a pixel is rounded up here, not to even.
    chosen = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    inside: Array = np.clip(chosen, 0, old - 1)
    return inside.astype(np.int64)


@binder("ResizeNearestNeighbor", fresh=True, host={"size": as_ints}, elastic=True)
def resize_nearest_neighbor(binding: Binding) -> Callable[[Array, tuple[int, ...]], Array]:
    xp, flags = binding.xp, scaling_flags(binding)

    def resize(images: Array, size: tuple[int, ...]) -> Array:
        height, width = checked_size(images, size)
        shape = (len(images), height, width, images.shape[3])
        claim_array(shape, images.dtype)
        rows = xp.asarray(_nearest(images.shape[1], height, *flags))
        columns = xp.asarray(_nearest(images.shape[2], width, *flags))
        result = xp.empty(shape, images.dtype)
        for part in some_lines(xp, shape):
            result[:, part] = images[:, rows[part]][:, :, columns]
        return result

    return resize


@binder("ResizeNearestNeighborGrad", fresh=True, host={"size": as_ints}, elastic=True)
def resize_nearest_neighbor_grad(binding: Binding) -> Callable[[Array, tuple[int, ...]], Array]:
    xp, flags = binding.xp, scaling_flags(binding)

    def back(grads: Array, size: tuple[int, ...]) -> Array:
        height, width = checked_size(grads, size)
        shape = (len(grads), height, width, grads.shape[3])
        # Sums of many gradients would overflow a narrow dtype, or lose precision in it.
        narrow = grads.dtype.itemsize < 4
        wide = np.dtype(np.float32 if grads.dtype.kind in "fV" else np.int32) if narrow else grads.dtype
        claim_array(shape, wide)
        rows = xp.asarray(_nearest(height, grads.shape[1], *flags))
        columns = xp.asarray(_nearest(width, grads.shape[2], *flags))
        # Several new pixels may come from one old pixel, hence `add.at`, which indexes the first axis.
        by_rows = xp.zeros((height, len(grads), *grads.shape[2:]), wide)
        for part in some_lines(xp, grads.shape):
            xp.add.at(by_rows, rows[part], grads[:, part].astype(wide, copy=False).transpose(1, 0, 2, 3))
        made = xp.zeros((width, *shape[:2], shape[3]), wide)
        for part in some_lines(xp, (len(grads), grads.shape[2], height, grads.shape[3])):
            xp.add.at(made, columns[part], by_rows[:, :, part].transpose(2, 1, 0, 3))
        return xp.ascontiguousarray(made.transpose(1, 2, 0, 3)).astype(grads.dtype, copy=False)

    return back


# ── parts of images ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Axis(NamedTuple):
    """Positions of the pixels of crops along one axis of their images; each field is [boxes, new].

    Attributes:
        before: The first of the two neighboring pixels; the nearest pixel for that method.
        after: The second of the two neighboring pixels; the nearest pixel for that method.
        share: Distance from the first neighbor.
        inside: True where the position is inside the image.
    """

    before: Array
    after: Array
    share: Array
    inside: Array

    def of_lines(self) -> _Axis:
        """Return the axis with each field flattened to [boxes * new]."""
        return _Axis(*(value.reshape(-1) for value in self))

    def ends(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return both neighbors with their weights."""
        return (self.before, 1 - self.share), (self.after, self.share)


def _axis(xp: Namespace, begin: Array, end: Array, old: int, new: int, nearest: bool) -> _Axis:
    last = np.float32(old - 1)
    if new > 1:
        scale = (end - begin) * last / np.float32(new - 1)
        at = (begin * last)[:, None] + xp.arange(new, dtype=np.float32) * scale[:, None]
    else:
        # A single pixel is read from the middle of the box.
        at = ((begin + end) * np.float32(0.5) * last)[:, None]
    inside = (at >= 0) & (at <= last)
    # Positions outside read pixel 0, so that all indices are valid; `inside` marks them.
    at = xp.where(inside, at, np.float32(0))
    below = xp.floor(at)
    share = at - below
    if nearest:
        below, share = below + (share >= 0.5), xp.zeros_like(share)
    after = below if nearest else xp.ceil(at)
    return _Axis(below.astype(np.int64), after.astype(np.int64), share, inside)


def _slopes(xp: Namespace, old: int, new: int) -> tuple[Array, Array]:
    """Return the derivatives of a crop's pixel positions by the begin and the end of its box: [new] each."""
    along = xp.arange(new, dtype=np.float32) / np.float32(new - 1) if new > 1 else xp.full(1, 0.5, np.float32)
    return (1 - along) * (old - 1), along * (old - 1)


class _Crops:
    """Crops, processed by lines: a line is a row of one crop."""

    def __init__(
        self, xp: Namespace, boxes: Array, box_ind: Array, image: tuple[int, ...], size: tuple[int, ...], method: str
    ) -> None:
        (_, old_height, old_width, _), (height, width), nearest = image, size, method == "nearest"
        self.xp, self.image, self.size = xp, image, size
        self.rows = _axis(xp, boxes[:, 0], boxes[:, 2], old_height, height, nearest).of_lines()
        self.columns = _axis(xp, boxes[:, 1], boxes[:, 3], old_width, width, nearest)
        self.boxes = xp.arange(len(boxes)).repeat(height)
        self.numbers = box_ind.astype(np.int64)[self.boxes]

    def parts(self) -> Iterator[tuple[slice, _Axis, _Axis, Array]]:
        """Yield blocks of lines: slice, rows [lines, 1], columns, and a mask of the pixels inside [lines, width, 1]."""
        for part in some_lines(self.xp, (1, len(self.boxes), self.size[1], self.image[3])):
            rows = _Axis(*(value[part, None] for value in self.rows))
            columns = _Axis(*(value[self.boxes[part]] for value in self.columns))
            yield part, rows, columns, (rows.inside & columns.inside)[..., None]

    def corners(self, image: Array, part: slice, rows: _Axis, columns: _Axis) -> list[Array]:
        """Return the four neighbors of each pixel as float32: above left, above right, below left, below right."""
        numbers = self.numbers[part, None]
        return [
            image[numbers, y, x].astype(np.float32, copy=False)
            for y in (rows.before, rows.after)
            for x in (columns.before, columns.after)
        ]


def _check_boxes(xp: Namespace, boxes: Array, box_ind: Array, image: tuple[int, ...], size: tuple[int, ...]) -> None:
    if len(image) != 4 or len(size) != 2 or min(image[1:3]) <= 0 or min(size) <= 0:
        raise InvalidArgumentError("a size must be positive", expected="rank 4, 2 sizes, > 0", actual=(image, size))
    if boxes.ndim != 2 or boxes.shape[1] != 4 or box_ind.shape != boxes.shape[:1]:
        raise InvalidArgumentError(
            "a box has 4 numbers, and one image",
            expected="(boxes, 4) and (boxes,)",
            actual=(boxes.shape, box_ind.shape),
        )
    if not bool(xp.isfinite(boxes).all()):
        raise InvalidArgumentError("boxes contains at least one element that is not finite", expected="finite numbers")
    wrong = (box_ind < 0) | (box_ind >= image[0])
    if bool(wrong.any()):
        raise InvalidArgumentError(
            "box_index has values outside [0, batch_size)",
            expected=f"0 <= box_index < {image[0]}",
            actual=int(box_ind[wrong][0]),
        )


@binder("CropAndResize", fresh=True, host={"crop_size": as_ints}, elastic=True, synchronises=True)
def crop_and_resize(binding: Binding) -> KernelBody:
    xp, method = binding.xp, binding.attrs["method"]
    beyond = np.float32(binding.attrs["extrapolation_value"])

    def crop(image: Array, boxes: Array, box_ind: Array, crop_size: tuple[int, ...]) -> Array:
        _check_boxes(xp, boxes, box_ind, image.shape, crop_size)
        shape = (len(boxes), *crop_size, image.shape[3])
        claim_array(shape, np.dtype(np.float32))
        crops = _Crops(xp, boxes, box_ind, image.shape, crop_size, method)
        result = xp.empty((len(crops.boxes), *shape[2:]), np.float32)
        for part, rows, columns, inside in crops.parts():
            corners = crops.corners(image, part, rows, columns)
            across = columns.share[..., None]
            top, bottom = (left + (right - left) * across for left, right in (corners[:2], corners[2:]))
            result[part] = xp.where(inside, top + (bottom - top) * rows.share[..., None], beyond)
        return result.reshape(shape)

    return crop


@binder("CropAndResizeGradImage", fresh=True, host={"image_size": as_ints}, elastic=True, synchronises=True)
def crop_and_resize_grad_image(binding: Binding) -> KernelBody:
    xp, method, dtype = binding.xp, binding.attrs["method"], binding.output_dtypes[0].np_dtype
    # Gradients in 16 bits are summed in float32.
    wide = np.result_type(dtype, np.float32)

    def back(grads: Array, boxes: Array, box_ind: Array, image_size: tuple[int, ...]) -> Array:
        _check_boxes(xp, boxes, box_ind, image_size, grads.shape[1:3])
        _check_grads(grads, boxes, image_size)
        claim_array(image_size, wide)
        crops = _Crops(xp, boxes, box_ind, image_size, grads.shape[1:3], method)
        _, height, width, depth = image_size
        made, channels = xp.zeros(image_size, wide).reshape(-1), xp.arange(depth)
        lines = grads.reshape(len(crops.boxes), *grads.shape[2:])
        for part, rows, columns, inside in crops.parts():
            given = xp.where(inside, lines[part], 0).astype(wide, copy=False)
            for y, down in rows.ends():
                for x, across in columns.ends():
                    # The flat index of a channel is ((image * height + y) * width + x) * depth + channel.
                    pixels = (crops.numbers[part, None] * height + y) * width + x
                    places = pixels[..., None] * depth + channels
                    xp.add.at(made, places.reshape(-1), (given * (down * across)[..., None]).reshape(-1))
        return made.reshape(image_size).astype(dtype, copy=False)

    return back


def _check_grads(grads: Array, boxes: Array, image: tuple[int, ...]) -> None:
    if grads.ndim != 4 or (len(grads), grads.shape[3]) != (len(boxes), image[3]):
        raise InvalidArgumentError(
            "the gradients are not those of crops", expected=f"({len(boxes)}, …, {image[-1:]})", actual=grads.shape
        )


@binder("CropAndResizeGradBoxes", fresh=True, synchronises=True)
def crop_and_resize_grad_boxes(binding: Binding) -> KernelBody:
    """Bind the gradient by the boxes: each pixel's slope in the image, times the derivative of its position."""
    xp = binding.xp

    def back(grads: Array, image: Array, boxes: Array, box_ind: Array) -> Array:
        size = grads.shape[1:3]
        _check_boxes(xp, boxes, box_ind, image.shape, size)
        _check_grads(grads, boxes, image.shape)
        crops = _Crops(xp, boxes, box_ind, image.shape, size, "bilinear")
        by_rows, by_columns = _slopes(xp, image.shape[1], size[0]), _slopes(xp, image.shape[2], size[1])
        lines = grads.reshape(len(crops.boxes), *grads.shape[2:])
        sums = xp.zeros((3, len(crops.boxes)), np.float64)  # slope down; slope across times each of the derivatives
        for part, rows, columns, inside in crops.parts():
            given = xp.where(inside, lines[part], 0)
            above_left, above_right, below_left, below_right = crops.corners(image, part, rows, columns)
            left, right = below_left - above_left, below_right - above_right
            top, bottom = above_right - above_left, below_right - below_left
            down = (left + (right - left) * columns.share[..., None]) * given
            across = ((top + (bottom - top) * rows.share[..., None]) * given).sum(axis=-1)
            sums[0, part] = down.sum(axis=(1, 2))
            sums[1, part], sums[2, part] = ((across * slope).sum(axis=1) for slope in by_columns)
        down, first, last = sums.reshape(3, len(boxes), size[0])
        begins, ends = ((down * slope).sum(axis=1) for slope in by_rows)
        return xp.stack([begins, first.sum(axis=1), ends, last.sum(axis=1)], axis=1).astype(np.float32)

    return back


# ── contrast ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("AdjustContrastv2", fresh=True)
def adjust_contrast(images: Array, factor: Array) -> Array:
    if images.ndim < 3 or np.ndim(factor):
        raise InvalidArgumentError(
            "the images or the factor have the wrong rank", expected="rank >= 3 and a scalar", actual=images.shape
        )
    if not images.size:
        return images.copy()
    floats = images.astype(np.float32)
    mean = floats.mean(axis=(-3, -2), keepdims=True)
    adjusted: Array = (floats - mean) * factor + mean
    return adjusted.astype(images.dtype)
