"""Pools and their gradients, one kernel position at a time over all windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from aioflow.kernels.convert import as_ints
from aioflow.kernels.nn.windows import Pool, expect_shape
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace, NpDType, Shape
from aioflow_cupy.windows import ArrayWindows, ImageWindows, SliceTuple, picked, pooled


def _trimmed(*fields: Any) -> ImageWindows:
    return ImageWindows(*fields).trimmed()


class _Counts:
    """The number of elements of each window that lie inside the image, at least 1; cached by shape."""

    def __init__(self, xp: Namespace) -> None:
        self._xp = xp
        self._counts = lru_cache(maxsize=4)(self._count)

    def of(self, g: ImageWindows, dtype: NpDType) -> Array:
        """Return the counts [1, oh, ow, 1]."""
        return self._counts(g).astype(dtype, copy=False)

    def _count(self, g: ImageWindows) -> Array:
        # On the host, since it happens once for a shape, and does not read any array of the device.
        inside = g.pad(np, np.ones((1, *g.size, 1)))
        total = sum(inside[where] for _, _, where in g.taps())
        return self._xp.asarray(np.maximum(total, 1).astype(np.float32))


def lowest(dtype: NpDType) -> float:
    """Return the smallest number of a dtype."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _wide(array: Array) -> Array:
    """Convert to the dtype in which means are computed: float64 for integers, float32 for half precision."""
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


@binder("MaxPool", device="GPU", fresh=True)
def max_pool(binding: Binding) -> Callable[[Array], Array]:
    shared, xp = Pool(binding, _trimmed), binding.xp
    layout = shared.layout

    def body(image: Array) -> Array:
        g, _ = shared.of(image.shape)
        x = layout.last(image)
        padded = g.pad(xp, x, lowest(x.dtype))
        best: Any = None
        for _, _, where in g.taps():
            # A copy, since later positions are combined into it in place.
            best = padded[where].copy() if best is None else xp.maximum(best, padded[where], best)
        return layout.back(best)

    return body


@binder("AvgPool", device="GPU", fresh=True)
def avg_pool(binding: Binding) -> Callable[[Array], Array]:
    shared, xp = Pool(binding, _trimmed), binding.xp
    layout, counts = shared.layout, _Counts(xp)

    def body(image: Array) -> Array:
        g, _ = shared.of(image.shape)
        x = layout.last(image)
        padded = g.pad(xp, _wide(x))
        total = xp.zeros((x.shape[0], *g.count, x.shape[3]), padded.dtype)
        for _, _, where in g.taps():
            total += padded[where]
        total /= counts.of(g, total.dtype)
        return layout.back(total.astype(x.dtype, copy=False))

    return body


@binder("AvgPoolGrad", device="GPU", host={"orig_input_shape": as_ints}, fresh=True)
def avg_pool_grad(binding: Binding) -> KernelBody:
    shared, xp = Pool(binding, _trimmed), binding.xp
    layout, counts = shared.layout, _Counts(xp)

    def body(orig_input_shape: Shape, grad: Array) -> Array:
        g, made = shared.of(orig_input_shape)
        expect_shape("grad", grad.shape, made)
        dy = layout.last(grad)
        share = _wide(dy)
        share = share / counts.of(g, share.dtype)
        padded = xp.zeros((dy.shape[0], *g.padded, dy.shape[3]), share.dtype)
        for _, _, where in g.taps():
            # At one kernel position no two windows cover the same element.
            padded[where] += share
        return layout.back(g.unpad(padded).astype(dy.dtype, copy=False))

    return body


@binder("MaxPoolGrad", device="GPU", fresh=True)
def max_pool_grad(binding: Binding) -> KernelBody:
    """Route each window's gradient to the first element that is its maximum."""
    shared, xp = Pool(binding, _trimmed), binding.xp
    layout = shared.layout

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        g, made = shared.of(orig_input.shape)
        expect_shape("orig_output", orig_output.shape, made)
        expect_shape("grad", grad.shape, made)
        x, y, dy = map(layout.last, (orig_input, orig_output, grad))
        padded = xp.zeros((x.shape[0], *g.padded, x.shape[3]), _wide(dy).dtype)
        zero = dy.dtype.type(0)
        for where, hit in _winners(xp, g, x, y):
            padded[where] += xp.where(hit, dy, zero)
        return layout.back(g.unpad(padded).astype(dy.dtype, copy=False))

    return body


@binder("MaxPoolGradGrad", device="GPU", fresh=True)
def max_pool_grad_grad(binding: Binding) -> KernelBody:
    """Select, for each window, the element of `grad` at the position of its maximum: the adjoint of MaxPoolGrad."""
    shared, xp = Pool(binding, _trimmed), binding.xp
    layout = shared.layout

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        g, made = shared.of(orig_input.shape)
        expect_shape("orig_output", orig_output.shape, made)
        expect_shape("grad", grad.shape, orig_input.shape)
        x, y, flowing = map(layout.last, (orig_input, orig_output, grad))
        padded = g.pad(xp, flowing)
        out = xp.zeros(y.shape, grad.dtype)
        for where, hit in _winners(xp, g, x, y):
            out = xp.where(hit, padded[where], out)
        return layout.back(out)

    return body


def _winners(xp: Namespace, g: ImageWindows, x: Array, y: Array) -> Iterator[tuple[SliceTuple, Array]]:
    """Yield, for each kernel position, the part that it reads, and a mask of the windows whose first maximum it is."""
    padded = g.pad(xp, x)
    # Padding is 0 here, which may equal a maximum, so a mask tells it apart.
    inside = g.pad(xp, xp.ones((1, *g.size, 1), bool), False)
    free = xp.ones(y.shape, bool)
    for _, _, where in g.taps():
        hit = free & inside[where] & (padded[where] == y)
        free = free & ~hit
        yield where, hit


# ── max pooling that also returns the position of each maximum, and its gradient ──────────────────────────────────────
#
# The gradient never reads an index on the host, so the host does not wait. Gradients of positions outside of the image
# are dropped.


@binder("MaxPoolWithArgmax", device="GPU", fresh=True)
def max_pool_with_argmax(binding: Binding) -> Callable[[Array], tuple[Array, Array]]:
    xp, shared, whole = binding.xp, Pool(binding, ArrayWindows), binding.attrs["include_batch_in_index"]
    dtype = binding.output_dtypes[1].np_dtype

    def body(image: Array) -> tuple[Array, Array]:
        taps, _ = shared.of(image.shape)
        y = pooled(xp, image, taps, xp.maximum, lowest(image.dtype))
        # One image's numbers serve for all images, unless they count through the batch.
        numbered = image.shape if whole else (1, *image.shape[1:])
        places = xp.arange(math.prod(numbered), dtype=np.int64).reshape(numbered)
        return y, picked(xp, image, y, xp.broadcast_to(places, image.shape), taps).astype(dtype, copy=False)

    return body


@binder("MaxPoolGradWithArgmax", device="GPU", fresh=True)
def max_pool_grad_with_argmax(binding: Binding) -> Callable[[Array, Array, Array], Array]:
    xp, whole = binding.xp, binding.attrs["include_batch_in_index"]

    def body(image: Array, grad: Array, argmax: Array) -> Array:
        expect_shape("argmax", argmax.shape, grad.shape)
        limit = math.prod(image.shape if whole else image.shape[1:])
        made = xp.zeros(image.size, _summed(grad.dtype))
        if not grad.size or not image.size:
            return made.reshape(image.shape).astype(grad.dtype, copy=False)
        inside = (argmax >= 0) & (argmax < limit)
        # Element 0 gets the dropped gradients, which are replaced by zeros below.
        places = xp.where(inside, argmax.astype(np.int64, copy=False), 0)
        if not whole:
            expect_shape("grad", grad.shape[:1], image.shape[:1])
            places += xp.arange(len(grad)).reshape(-1, *(1,) * (grad.ndim - 1)) * limit
        flowing = xp.where(inside, grad.astype(made.dtype, copy=False), made.dtype.type(0))
        xp.add.at(made, places.reshape(-1), flowing.reshape(-1))
        return made.reshape(image.shape).astype(grad.dtype, copy=False)

    return body


def _summed(dtype: NpDType) -> NpDType:
    """Return the dtype for sums of `dtype`, one that the GPU adds atomically. Integers wrap around in any case."""
    if dtype.kind in "iu":
        # Addition modulo 2**64 agrees with that of every narrower integer, signed or not, in the bits that are kept.
        return np.dtype(np.uint64)
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype
