"""Convolutions and pools over volumes.

The depth of a filter is folded tap by tap: what is left of a convolution are those over images of `convolution`, with
the frames of the volumes as the batch. Half precision is summed over the taps in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.volumes import VolumeWindow, conv3d_dims, pool3d_dims, pool3d_kernel
from aioflow.kernels.convert import as_ints
from aioflow.kernels.registry import Binding, binder
from aioflow_cupy import convolution
from aioflow_cupy.taps import Taps, picked, pooled, routed, spread
from aioflow_cupy.windows import Shape, Windows

__all__: list[str] = []


class _Volume:
    """What the ops over volumes share: NDHWC within a kernel, whatever the node says."""

    def __init__(self, binding: Binding) -> None:
        self.window = VolumeWindow.of(binding.attrs)
        self.last = self.window.channel == 4

    def inside(self, array: Any) -> Any:
        """The array as NDHWC, a view."""
        return array if self.last else array.transpose(0, 2, 3, 4, 1)

    def outside(self, array: Any) -> Any:
        """An NDHWC array in the node's layout, a view."""
        return array if self.last else array.transpose(0, 4, 1, 2, 3)

    def shape(self, shape: Shape) -> Shape:
        """A shape of the node's layout as NDHWC."""
        return shape if self.last else (shape[0], *shape[2:], shape[1])

    def taps(self, image: Shape, kernel: Shape, made: Shape) -> Taps:
        """The windows over a volume of shape `image`."""
        window = self.window
        size = window.spatial(image)
        before = tuple(first for first, _ in window.pads(size, kernel))
        return Taps(size, kernel, window.strides, window.dilations, before, window.spatial(made))


def _expect(name: str, actual: Shape, expected: Shape) -> None:
    if actual != expected:
        raise InvalidArgumentError(f"{name} has the wrong shape", expected=expected, actual=actual)


def _wide(xp: Any, dtype: Any) -> Any:
    """What is summed in: float32 for half precision."""
    return xp.float32 if dtype.itemsize == 2 else dtype


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Convolution(_Volume):
    """The windows of a convolution, worked out once for each pair of shapes."""

    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self.of = lru_cache(maxsize=16)(self._work_out)

    def _work_out(self, image: Shape, kernel: Shape) -> tuple[Taps, Windows, Shape]:
        window = self.window
        made: Any = conv3d_dims(window, image, kernel)
        taps = self.taps(image, kernel[:3], made)
        pads = window.pads(taps.size, taps.kernel)
        fields: list[Any] = [
            values[1:] for values in (taps.size, taps.kernel, taps.strides, taps.dilations, pads, taps.count)
        ]
        fields[4] = tuple(fields[4])
        return taps, Windows(*fields), made


def _frames(volumes: Any) -> Any:
    """The frames of volumes as a batch of images."""
    return volumes.reshape(-1, *volumes.shape[2:])


@binder("Conv3D", device="GPU", fresh=True)
def conv(binding: Binding) -> Callable[[Any, Any], Any]:
    xp, shared = binding.xp, _Convolution(binding)
    compute = convolution.best("forward", convolution.forward, binding)

    def body(image: Any, kernel: Any) -> Any:
        taps, flat, made = shared.of(image.shape, kernel.shape)
        if not math.prod(made):
            return xp.zeros(made, image.dtype)
        x = shared.inside(image)
        total = xp.zeros(shared.shape(made), _wide(xp, image.dtype))
        for tap, given, read in taps.along(0):
            part = total[:, given]
            part += compute(xp, _frames(x[:, read]), kernel[tap], flat).reshape(part.shape)
        return shared.outside(total.astype(image.dtype, copy=False))

    return body


@binder("Conv3DBackpropInputV2", device="GPU", host={"input_sizes": as_ints}, fresh=True)
def conv_by_input(binding: Binding) -> Callable[..., Any]:
    xp, shared = binding.xp, _Convolution(binding)
    compute = convolution.best("backprop_input", convolution.backprop_input, binding)

    def body(input_sizes: Shape, kernel: Any, out_backprop: Any) -> Any:
        taps, flat, made = shared.of(input_sizes, kernel.shape)
        _expect("out_backprop", out_backprop.shape, made)
        if not math.prod(made):
            return xp.zeros(input_sizes, out_backprop.dtype)
        sizes, dy = shared.shape(input_sizes), shared.inside(out_backprop)
        total = xp.zeros(sizes, _wide(xp, dy.dtype))
        for tap, given, read in taps.along(0):
            part, flowing = total[:, read], _frames(dy[:, given])
            part += compute(xp, (len(flowing), *sizes[2:]), kernel[tap], flowing, flat).reshape(part.shape)
        return shared.outside(total.astype(dy.dtype, copy=False))

    return body


@binder("Conv3DBackpropFilterV2", device="GPU", host={"filter_sizes": as_ints}, fresh=True)
def conv_by_filter(binding: Binding) -> Callable[..., Any]:
    xp, shared = binding.xp, _Convolution(binding)
    compute = convolution.best("backprop_filter", convolution.backprop_filter, binding)

    def body(image: Any, filter_sizes: Shape, out_backprop: Any) -> Any:
        taps, flat, made = shared.of(image.shape, filter_sizes)
        _expect("out_backprop", out_backprop.shape, made)
        total = xp.zeros(filter_sizes, out_backprop.dtype)
        if not math.prod(made) or not image.size:
            return total
        x, dy = shared.inside(image), shared.inside(out_backprop)
        for tap, given, read in taps.along(0):
            total[tap] = compute(xp, _frames(x[:, read]), filter_sizes[1:], _frames(dy[:, given]), flat)
        return total

    return body


# ── pools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Pool(_Volume):
    """The windows of a pool, worked out once for each shape."""

    def __init__(self, binding: Binding) -> None:
        super().__init__(binding)
        self.xp, self.ksize = binding.xp, binding.attrs["ksize"]
        self.of = lru_cache(maxsize=16)(self._work_out)
        self.counts = lru_cache(maxsize=4)(self._count)

    def _work_out(self, image: Shape) -> tuple[Taps, Shape]:
        made: Any = pool3d_dims(self.window, self.ksize, image)
        return self.taps(image, pool3d_kernel(self.window, self.ksize), made), made

    def _count(self, taps: Taps) -> Any:
        """How many elements of each window lie inside the volume: [1, od, oh, ow, 1]."""
        deep, high, wide = (np.array(taps.inside(axis), np.float32) for axis in range(3))
        return self.xp.asarray((deep[:, None, None] * high[:, None] * wide)[None, ..., None])

    def mean(self, sums: Any, taps: Taps) -> Any:
        """The sums by the number of elements of each window."""
        return sums / self.counts(taps).astype(sums.dtype, copy=False)


@binder("MaxPool3D", device="GPU", fresh=True)
def max_pool(binding: Binding) -> Callable[[Any], Any]:
    xp, shared = binding.xp, _Pool(binding)

    def body(image: Any) -> Any:
        taps, _ = shared.of(image.shape)
        return shared.outside(pooled(xp, shared.inside(image), taps, xp.maximum, -np.inf))

    return body


@binder("AvgPool3D", device="GPU", fresh=True)
def avg_pool(binding: Binding) -> Callable[[Any], Any]:
    xp, shared = binding.xp, _Pool(binding)

    def body(image: Any) -> Any:
        taps, _ = shared.of(image.shape)
        x = shared.inside(image).astype(_wide(xp, image.dtype), copy=False)
        made = shared.mean(pooled(xp, x, taps, xp.add, 0), taps)
        return shared.outside(made.astype(image.dtype, copy=False))

    return body


@binder("AvgPool3DGrad", device="GPU", host={"orig_input_shape": as_ints}, fresh=True)
def avg_pool_grad(binding: Binding) -> Callable[..., Any]:
    xp, shared = binding.xp, _Pool(binding)

    def body(orig_input_shape: Shape, grad: Any) -> Any:
        taps, made = shared.of(orig_input_shape)
        _expect("grad", grad.shape, made)
        dy = shared.inside(grad).astype(_wide(xp, grad.dtype), copy=False)
        return shared.outside(spread(xp, shared.mean(dy, taps), taps).astype(grad.dtype, copy=False))

    return body


@binder("MaxPool3DGrad", device="GPU", fresh=True)
def max_pool_grad(binding: Binding) -> Callable[..., Any]:
    """Each window's gradient goes to the first element that is its maximum."""
    xp, shared = binding.xp, _Pool(binding)

    def body(orig_input: Any, orig_output: Any, grad: Any) -> Any:
        taps, made = shared.of(orig_input.shape)
        _expect("orig_output", orig_output.shape, made)
        _expect("grad", grad.shape, made)
        x, y, dy = map(shared.inside, (orig_input, orig_output, grad))
        slope = routed(xp, x, y, dy.astype(_wide(xp, dy.dtype), copy=False), taps)
        return shared.outside(slope.astype(grad.dtype, copy=False))

    return body


@binder("MaxPool3DGradGrad", device="GPU", fresh=True)
def max_pool_grad_grad(binding: Binding) -> Callable[..., Any]:
    """Each window takes from `grad` what lies where its maximum is: the adjoint of MaxPool3DGrad."""
    xp, shared = binding.xp, _Pool(binding)

    def body(orig_input: Any, orig_output: Any, grad: Any) -> Any:
        taps, made = shared.of(orig_input.shape)
        _expect("orig_output", orig_output.shape, made)
        _expect("grad", grad.shape, orig_input.shape)
        x, y, flowing = map(shared.inside, (orig_input, orig_output, grad))
        return shared.outside(picked(xp, x, y, flowing, taps))

    return body
