"""Pools and their gradients, a tap at a time over all windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.windows import Window, pool_dims, pool_kernel
from aioflow.kernels.convert import as_ints
from aioflow.kernels.registry import Binding, binder
from aioflow_cupy.windows import Shape, Windows, from_nhwc, to_nhwc

__all__: list[str] = []


class _Pool:
    """What the ops of pooling share, worked out once for each shape."""

    def __init__(self, binding: Binding) -> None:
        self.xp = binding.xp
        self.window = Window.of(binding.attrs)
        self.ksize = binding.attrs["ksize"]
        self.kernel = pool_kernel(self.window, self.ksize)
        self.data_format: str = binding.attrs["data_format"]
        self.of = lru_cache(maxsize=16)(self._work_out)
        self.counts = lru_cache(maxsize=4)(self._count)

    def _work_out(self, image: Shape) -> tuple[Windows, Shape]:
        made: Any = pool_dims(self.window, self.ksize, image)
        size = self.window.layout.spatial(image)
        padding = self.window.pads(size, self.kernel)
        count = self.window.layout.spatial(made)
        return Windows(size, self.kernel, self.window.strides, (1, 1), padding, count).trimmed(), made

    def _count(self, g: Windows) -> Any:
        """How many elements of each window lie inside the image, at least 1: [1, oh, ow, 1]."""
        inside = g.pad(np, np.ones((1, *g.size, 1)))
        total = sum(inside[where] for _, _, where in g.taps())
        return self.xp.asarray(np.maximum(total, 1).astype(np.float32))

    def images(self, *arrays: Any) -> tuple[Any, ...]:
        """The arrays as NHWC."""
        return tuple(to_nhwc(a, self.data_format) for a in arrays)

    def result(self, array: Any) -> Any:
        """An NHWC array in the op's layout."""
        return from_nhwc(array, self.data_format)


def _expect(name: str, actual: Shape, expected: Shape) -> None:
    if actual != expected:
        raise InvalidArgumentError(f"{name} has the wrong shape", expected=expected, actual=actual)


def _lowest(dtype: Any) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _wide(array: Any) -> Any:
    """What means are computed in: float64 for integers, float32 for half precision."""
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


@binder("MaxPool", device="GPU", fresh=True)
def max_pool(binding: Binding) -> Callable[[Any], Any]:
    shared, xp = _Pool(binding), binding.xp

    def body(image: Any) -> Any:
        g, _ = shared.of(image.shape)
        (x,) = shared.images(image)
        padded = g.pad(xp, x, _lowest(x.dtype))
        best = None
        for _, _, where in g.taps():
            best = padded[where].copy() if best is None else xp.maximum(best, padded[where], best)
        return shared.result(best)

    return body


@binder("AvgPool", device="GPU", fresh=True)
def avg_pool(binding: Binding) -> Callable[[Any], Any]:
    shared, xp = _Pool(binding), binding.xp

    def body(image: Any) -> Any:
        g, _ = shared.of(image.shape)
        (x,) = shared.images(image)
        padded = g.pad(xp, _wide(x))
        total = xp.zeros((x.shape[0], *g.count, x.shape[3]), padded.dtype)
        for _, _, where in g.taps():
            total += padded[where]
        total /= shared.counts(g).astype(total.dtype, copy=False)
        return shared.result(total.astype(x.dtype, copy=False))

    return body


@binder("AvgPoolGrad", device="GPU", host={"orig_input_shape": as_ints}, fresh=True)
def avg_pool_grad(binding: Binding) -> Callable[..., Any]:
    shared, xp = _Pool(binding), binding.xp

    def body(orig_input_shape: Shape, grad: Any) -> Any:
        g, made = shared.of(orig_input_shape)
        _expect("grad", grad.shape, made)
        (dy,) = shared.images(grad)
        share = _wide(dy)
        share = share / shared.counts(g).astype(share.dtype, copy=False)
        padded = xp.zeros((dy.shape[0], *g.padded, dy.shape[3]), share.dtype)
        for _, _, where in g.taps():
            padded[where] += share
        return shared.result(g.unpad(padded).astype(dy.dtype, copy=False))

    return body


@binder("MaxPoolGrad", device="GPU", fresh=True)
def max_pool_grad(binding: Binding) -> Callable[..., Any]:
    """Each window's gradient goes to the first element that is its maximum."""
    shared, xp = _Pool(binding), binding.xp

    def body(orig_input: Any, orig_output: Any, grad: Any) -> Any:
        g, made = shared.of(orig_input.shape)
        _expect("orig_output", orig_output.shape, made)
        _expect("grad", grad.shape, made)
        x, y, dy = shared.images(orig_input, orig_output, grad)
        padded = xp.zeros((x.shape[0], *g.padded, x.shape[3]), _wide(dy).dtype)
        zero = dy.dtype.type(0)
        for where, hit in _winners(xp, g, x, y):
            padded[where] += xp.where(hit, dy, zero)
        return shared.result(g.unpad(padded).astype(dy.dtype, copy=False))

    return body


@binder("MaxPoolGradGrad", device="GPU", fresh=True)
def max_pool_grad_grad(binding: Binding) -> Callable[..., Any]:
    """Each window takes from `grad` what lies where its maximum is: the adjoint of MaxPoolGrad."""
    shared, xp = _Pool(binding), binding.xp

    def body(orig_input: Any, orig_output: Any, grad: Any) -> Any:
        g, made = shared.of(orig_input.shape)
        _expect("orig_output", orig_output.shape, made)
        _expect("grad", grad.shape, orig_input.shape)
        x, y, flowing = shared.images(orig_input, orig_output, grad)
        padded = g.pad(xp, flowing)
        out = xp.zeros(y.shape, grad.dtype)
        for where, hit in _winners(xp, g, x, y):
            out = xp.where(hit, padded[where], out)
        return shared.result(out)

    return body


def _winners(xp: Any, g: Windows, x: Any, y: Any) -> Any:
    """For each tap where it reads, and in which windows it is the first that equals the maximum."""
    padded = g.pad(xp, x)
    inside = g.pad(xp, xp.ones((1, *g.size, 1), bool), False)
    free = xp.ones(y.shape, bool)
    for _, _, where in g.taps():
        hit = free & inside[where] & (padded[where] == y)
        free = free & ~hit
        yield where, hit
