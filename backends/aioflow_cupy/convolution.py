"""Convolutions as matrix products: windows become rows (im2col), which cuBLAS multiplies.

Images and filters are as in `aioflow.ops.nn.geometry`; groups are a batched product. A depthwise convolution is a sum
over the kernel positions instead, because the inner size of its products would be only a few elements. The code uses an
array namespace, so the tests compare it with the CPU's convolutions without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from aioflow.kernels.convert import as_ints
from aioflow.kernels.nn.windows import Convolution, expect_shape
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace, Shape, Value
from aioflow_cupy import cudnn
from aioflow_cupy.windows import ImageWindows

_PATCH_BYTES: Final = 1 << 28  # the most that the rows of one product take; a larger batch is split


# ── dense ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def forward(xp: Namespace, image: Array, kernel: Array, g: ImageWindows) -> Array:
    """Return the convolution [n, oh, ow, co] of NHWC images with a filter [kh, kw, c / groups, co]."""
    kh, kw, inner, outputs = kernel.shape
    groups = image.shape[3] // inner
    if groups > 1 and inner == 1:
        return depthwise_forward(xp, image, kernel.reshape(kh, kw, groups, outputs // groups), g)
    matrices = _by_group(kernel, groups)
    made = xp.empty((image.shape[0], *g.count, outputs), image.dtype)
    for part in _batches(image, g):
        rows = _rows(xp, image[part], g, groups)
        product = xp.matmul(rows, matrices)  # [groups, windows, co / groups]
        made[part] = product.transpose(1, 0, 2).reshape(made[part].shape)
    return made


def backprop_filter(xp: Namespace, image: Array, filter_shape: Shape, gradient: Array, g: ImageWindows) -> Array:
    """Return the gradient of `forward` with respect to its filter, from [n, oh, ow, co]."""
    kh, kw, inner, outputs = filter_shape
    groups = image.shape[3] // inner
    if groups > 1 and inner == 1:
        per_channel = depthwise_by_filter(xp, image, (kh, kw, groups, outputs // groups), gradient, g)
        return per_channel.reshape(filter_shape)
    total = xp.zeros((groups, kh * kw * inner, outputs // groups), gradient.dtype)
    for part in _batches(image, g):
        rows = _rows(xp, image[part], g, groups)
        flowing = gradient[part].reshape(-1, groups, outputs // groups).transpose(1, 0, 2)
        total += xp.matmul(rows.transpose(0, 2, 1), flowing)
    return total.reshape(groups, kh, kw, inner, -1).transpose(1, 2, 3, 0, 4).reshape(filter_shape)


def backprop_input(xp: Namespace, input_shape: Shape, kernel: Array, gradient: Array, g: ImageWindows) -> Array:
    """Return the gradient of `forward` with respect to its NHWC input, from [n, oh, ow, co]."""
    kh, kw, inner, outputs = kernel.shape
    groups = input_shape[3] // inner
    if groups > 1 and inner == 1:
        return depthwise_by_input(xp, input_shape, kernel.reshape(kh, kw, groups, outputs // groups), gradient, g)
    matrices = _by_group(kernel, groups).transpose(0, 2, 1)
    padded = xp.zeros((input_shape[0], *g.padded, input_shape[3]), gradient.dtype)
    for part in _batches(padded, g):
        flowing = gradient[part].reshape(-1, groups, outputs // groups).transpose(1, 0, 2)
        # [groups, n, oh, ow, kh, kw, c / groups]
        rows = xp.matmul(flowing, matrices).reshape(groups, -1, *g.count, kh, kw, inner)
        into = padded[part]
        for i, j, where in g.taps():
            share = rows[..., i, j, :].transpose(1, 2, 3, 0, 4)
            # At one kernel position no two windows cover the same element, so `+=` adds all of them.
            into[where] += share.reshape(*share.shape[:3], input_shape[3])
    return g.unpad(padded)


def _by_group(kernel: Array, groups: int) -> Array:
    """Return the filter as matrices [groups, kh * kw * c / groups, co / groups]."""
    kh, kw, inner, outputs = kernel.shape
    if groups == 1:
        return kernel.reshape(1, kh * kw * inner, outputs)
    apart = kernel.reshape(kh * kw * inner, groups, outputs // groups)
    return apart.transpose(1, 0, 2)


def _rows(xp: Namespace, images: Array, g: ImageWindows, groups: int) -> Array:
    """Return the windows as rows, [groups, n * oh * ow, kh * kw * c / groups]."""
    channels = images.shape[3]
    if g.pointwise:
        return images.reshape(-1, groups, channels // groups).transpose(1, 0, 2)
    windows = g.view(xp, g.pad(xp, images))
    taps = math.prod(g.kernel)
    if groups == 1:
        return windows.reshape(1, -1, taps * channels)
    # From [windows, taps, groups, c / groups] to [groups, windows, taps, c / groups].
    apart = windows.reshape(-1, taps, groups, channels // groups).transpose(2, 0, 1, 3)
    return apart.reshape(groups, -1, taps * channels // groups)


def _batches(images: Array, g: ImageWindows) -> Iterator[slice]:
    """Yield parts of the batch whose rows fit into the memory for them."""
    # Bytes of the rows of one image.
    each = math.prod(g.count) * math.prod(g.kernel) * images.shape[3] * images.dtype.itemsize
    step = max(1, _PATCH_BYTES // max(each, 1))
    for first in range(0, images.shape[0], step):
        yield slice(first, first + step)


# ── depthwise ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def depthwise_forward(xp: Namespace, image: Array, kernel: Array, g: ImageWindows) -> Array:
    """Convolve each channel with its own filters [kh, kw, c, m]; returns [n, oh, ow, c * m]."""
    padded = g.pad(xp, image)
    total = xp.zeros((image.shape[0], *g.count, *kernel.shape[2:]), _sum_dtype(xp, image))
    for i, j, where in g.taps():
        total += padded[where][..., None] * kernel[i, j]
    return total.reshape(*total.shape[:3], -1).astype(image.dtype, copy=False)


def depthwise_by_input(xp: Namespace, input_shape: Shape, kernel: Array, gradient: Array, g: ImageWindows) -> Array:
    """Return the gradient of `depthwise_forward` with respect to its input."""
    flowing = gradient.reshape(*gradient.shape[:3], *kernel.shape[2:])
    padded = xp.zeros((input_shape[0], *g.padded, input_shape[3]), _sum_dtype(xp, gradient))
    for i, j, where in g.taps():
        # As in `backprop_input`, the windows do not overlap at one kernel position.
        padded[where] += (flowing * kernel[i, j]).sum(axis=4)
    return g.unpad(padded).astype(gradient.dtype, copy=False)


def depthwise_by_filter(xp: Namespace, image: Array, filter_shape: Shape, gradient: Array, g: ImageWindows) -> Array:
    """Return the gradient of `depthwise_forward` with respect to its filter."""
    padded = g.pad(xp, image)
    flowing = gradient.reshape(*gradient.shape[:3], *filter_shape[2:])
    made = xp.empty(filter_shape, gradient.dtype)
    wide = _sum_dtype(xp, gradient)
    for i, j, where in g.taps():
        made[i, j] = (padded[where][..., None] * flowing).sum(axis=(0, 1, 2), dtype=wide)
    return made


def _sum_dtype(xp: Namespace, like: Array) -> Any:
    """Return the dtype of sums: float32 for half precision."""
    return xp.float32 if like.dtype.itemsize == 2 and like.dtype.kind not in "iu" else like.dtype


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def best(name: str, plain: KernelBody, binding: Binding) -> KernelBody:
    """Return cuDNN's function of that name if it serves the node, with `plain` as the fallback; otherwise `plain`."""
    fast = cudnn.preferred(name, binding)
    if fast is None:
        return plain
    chosen = fast

    def compute(*args: Any) -> Value:
        try:
            return chosen(*args)
        except cudnn.NotPlannedError:
            return plain(*args)

    return compute


@binder("Conv2D", device="GPU", fresh=True)
@binder("DepthwiseConv2dNative", device="GPU", fresh=True)
def conv(binding: Binding) -> Callable[[Array, Array], Array]:
    xp, shared = binding.xp, Convolution(binding, ImageWindows)
    layout = shared.layout
    compute = depthwise_forward if shared.depthwise else best("forward", forward, binding)

    def body(image: Array, kernel: Array) -> Array:
        g, made = shared.of(image.shape, kernel.shape)
        # A sum of no products is 0.
        if not image.size * kernel.size:
            return xp.zeros(made, image.dtype)
        return layout.back(compute(xp, layout.last(image), kernel, g))

    return body


@binder("Conv2DBackpropInput", device="GPU", host={"input_sizes": as_ints}, fresh=True)
@binder("DepthwiseConv2dNativeBackpropInput", device="GPU", host={"input_sizes": as_ints}, fresh=True)
def conv_by_input(binding: Binding) -> KernelBody:
    xp, shared = binding.xp, Convolution(binding, ImageWindows)
    layout = shared.layout
    compute = depthwise_by_input if shared.depthwise else best("backprop_input", backprop_input, binding)

    def body(input_sizes: Shape, kernel: Array, out_backprop: Array) -> Array:
        g, made = shared.of(input_sizes, kernel.shape)
        expect_shape("out_backprop", out_backprop.shape, made)
        if not out_backprop.size * kernel.size:
            return xp.zeros(input_sizes, out_backprop.dtype)
        sizes, flowing = layout.sizes_last(input_sizes), layout.last(out_backprop)
        return layout.back(compute(xp, sizes, kernel, flowing, g))

    return body


@binder("Conv2DBackpropFilter", device="GPU", host={"filter_sizes": as_ints}, fresh=True)
@binder("DepthwiseConv2dNativeBackpropFilter", device="GPU", host={"filter_sizes": as_ints}, fresh=True)
def conv_by_filter(binding: Binding) -> KernelBody:
    xp, shared = binding.xp, Convolution(binding, ImageWindows)
    layout = shared.layout
    compute = depthwise_by_filter if shared.depthwise else best("backprop_filter", backprop_filter, binding)

    def body(image: Array, filter_sizes: Shape, out_backprop: Array) -> Array:
        g, made = shared.of(image.shape, filter_sizes)
        expect_shape("out_backprop", out_backprop.shape, made)
        if not out_backprop.size * image.size:
            return xp.zeros(filter_sizes, out_backprop.dtype)
        return compute(xp, layout.last(image), filter_sizes, layout.last(out_backprop), g)

    return body
