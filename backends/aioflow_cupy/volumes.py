"""Convolutions and pools over volumes.

The depth of a filter is folded one position at a time. What remains are the image convolutions of `convolution`, with
the frames of the volumes as the batch. Half precision is summed over the positions in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from aioflow.kernels.convert import as_ints
from aioflow.kernels.nn.windows import Convolution, Pool, expect_shape
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace, NpDType, Shape
from aioflow_cupy import convolution
from aioflow_cupy.windows import ArrayWindows, ImageWindows, picked, pooled, routed, spread


def _wide(xp: Namespace, dtype: NpDType) -> Any:
    """Return the dtype of sums: float32 for half precision."""
    return xp.float32 if dtype.itemsize == 2 else dtype


# ── convolutions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _by_depth(*fields: Any) -> tuple[ArrayWindows, ImageWindows]:
    """Return the windows, and those over single frames."""
    # The first of three axes is the depth.
    return ArrayWindows(*fields), ImageWindows(*(values[1:] for values in fields))


def _frames(volumes: Array) -> Array:
    """Return the frames of volumes as a batch of images."""
    return volumes.reshape(-1, *volumes.shape[2:])


@binder("Conv3D", device="GPU", fresh=True)
def conv(binding: Binding) -> Callable[[Array, Array], Array]:
    xp, shared = binding.xp, Convolution(binding, _by_depth)
    layout = shared.layout
    compute = convolution.best("forward", convolution.forward, binding)

    def body(image: Array, kernel: Array) -> Array:
        (taps, flat), made = shared.of(image.shape, kernel.shape)
        if not math.prod(made):
            return xp.zeros(made, image.dtype)
        x = layout.last(image)
        total = xp.zeros(layout.sizes_last(made), _wide(xp, image.dtype))
        for tap, given, read in taps.along(0):
            part = total[:, given]
            part += compute(xp, _frames(x[:, read]), kernel[tap], flat).reshape(part.shape)
        return layout.back(total.astype(image.dtype, copy=False))

    return body


@binder("Conv3DBackpropInputV2", device="GPU", host={"input_sizes": as_ints}, fresh=True)
def conv_by_input(binding: Binding) -> KernelBody:
    xp, shared = binding.xp, Convolution(binding, _by_depth)
    layout = shared.layout
    compute = convolution.best("backprop_input", convolution.backprop_input, binding)

    def body(input_sizes: Shape, kernel: Array, out_backprop: Array) -> Array:
        (taps, flat), made = shared.of(input_sizes, kernel.shape)
        expect_shape("out_backprop", out_backprop.shape, made)
        if not math.prod(made):
            return xp.zeros(input_sizes, out_backprop.dtype)
        sizes, dy = layout.sizes_last(input_sizes), layout.last(out_backprop)
        total = xp.zeros(sizes, _wide(xp, dy.dtype))
        for tap, given, read in taps.along(0):
            part, flowing = total[:, read], _frames(dy[:, given])
            part += compute(xp, (len(flowing), *sizes[2:]), kernel[tap], flowing, flat).reshape(part.shape)
        return layout.back(total.astype(dy.dtype, copy=False))

    return body


@binder("Conv3DBackpropFilterV2", device="GPU", host={"filter_sizes": as_ints}, fresh=True)
def conv_by_filter(binding: Binding) -> KernelBody:
    xp, shared = binding.xp, Convolution(binding, _by_depth)
    layout = shared.layout
    compute = convolution.best("backprop_filter", convolution.backprop_filter, binding)

    def body(image: Array, filter_sizes: Shape, out_backprop: Array) -> Array:
        (taps, flat), made = shared.of(image.shape, filter_sizes)
        expect_shape("out_backprop", out_backprop.shape, made)
        total = xp.zeros(filter_sizes, out_backprop.dtype)
        if not math.prod(made) or not image.size:
            return total
        x, dy = layout.last(image), layout.last(out_backprop)
        for tap, given, read in taps.along(0):
            # Each position along the depth has weights of its own, so nothing is added up here.
            total[tap] = compute(xp, _frames(x[:, read]), filter_sizes[1:], _frames(dy[:, given]), flat)
        return total

    return body


# ── pools ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Mean:
    """Division of window sums by the number of elements in each window; the numbers are cached by shape."""

    def __init__(self, xp: Namespace) -> None:
        self._xp = xp
        self._counts = lru_cache(maxsize=4)(self._count)

    def __call__(self, sums: Array, taps: ArrayWindows) -> Array:
        """Return the means."""
        found: Array = sums / self._counts(taps).astype(sums.dtype, copy=False)
        return found

    def _count(self, taps: ArrayWindows) -> Array:
        """Return the number of elements of each window that lie inside the volume: [1, od, oh, ow, 1]."""
        # The elements of a window inside the volume form a box, so their number is a product.
        deep, high, wide = (np.array(taps.inside(axis), np.float32) for axis in range(3))
        return self._xp.asarray((deep[:, None, None] * high[:, None] * wide)[None, ..., None])


@binder("MaxPool3D", device="GPU", fresh=True)
def max_pool(binding: Binding) -> Callable[[Array], Array]:
    xp, shared = binding.xp, Pool(binding, ArrayWindows)
    layout = shared.layout

    def body(image: Array) -> Array:
        taps, _ = shared.of(image.shape)
        return layout.back(pooled(xp, layout.last(image), taps, xp.maximum, -np.inf))

    return body


@binder("AvgPool3D", device="GPU", fresh=True)
def avg_pool(binding: Binding) -> Callable[[Array], Array]:
    xp, shared = binding.xp, Pool(binding, ArrayWindows)
    layout, mean = shared.layout, _Mean(xp)

    def body(image: Array) -> Array:
        taps, _ = shared.of(image.shape)
        x = layout.last(image).astype(_wide(xp, image.dtype), copy=False)
        made = mean(pooled(xp, x, taps, xp.add, 0), taps)
        return layout.back(made.astype(image.dtype, copy=False))

    return body


@binder("AvgPool3DGrad", device="GPU", host={"orig_input_shape": as_ints}, fresh=True)
def avg_pool_grad(binding: Binding) -> KernelBody:
    xp, shared = binding.xp, Pool(binding, ArrayWindows)
    layout, mean = shared.layout, _Mean(xp)

    def body(orig_input_shape: Shape, grad: Array) -> Array:
        taps, made = shared.of(orig_input_shape)
        expect_shape("grad", grad.shape, made)
        dy = layout.last(grad).astype(_wide(xp, grad.dtype), copy=False)
        return layout.back(spread(xp, mean(dy, taps), taps).astype(grad.dtype, copy=False))

    return body


@binder("MaxPool3DGrad", device="GPU", fresh=True)
def max_pool_grad(binding: Binding) -> KernelBody:
    """Route each window's gradient to the first element that is its maximum."""
    xp, shared = binding.xp, Pool(binding, ArrayWindows)
    layout = shared.layout

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        taps, made = shared.of(orig_input.shape)
        expect_shape("orig_output", orig_output.shape, made)
        expect_shape("grad", grad.shape, made)
        x, y, dy = map(layout.last, (orig_input, orig_output, grad))
        slope = routed(xp, x, y, dy.astype(_wide(xp, dy.dtype), copy=False), taps)
        return layout.back(slope.astype(grad.dtype, copy=False))

    return body


@binder("MaxPool3DGradGrad", device="GPU", fresh=True)
def max_pool_grad_grad(binding: Binding) -> KernelBody:
    """Select, for each window, the element of `grad` at the position of its maximum: the adjoint of MaxPool3DGrad."""
    xp, shared = binding.xp, Pool(binding, ArrayWindows)
    layout = shared.layout

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        taps, made = shared.of(orig_input.shape)
        expect_shape("orig_output", orig_output.shape, made)
        expect_shape("grad", grad.shape, orig_input.shape)
        x, y, flowing = map(layout.last, (orig_input, orig_output, grad))
        return layout.back(picked(xp, x, y, flowing, taps))

    return body
