"""Kernels of the CPU device that need more than NumPy: convolutions, pools, and faster elementwise ones.

Shapes are checked by the rules of the ops' shape functions. A shape that is unknown while the graph is built is
therefore rejected at run time with the same message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from aioflow.graph.shapes import num_elements
from aioflow.kernels.convert import as_ints
from aioflow.kernels.nn import activations as nn
from aioflow.kernels.nn.windows import Convolution, Pool, expect_shape
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Shape
from aioflow.ops.nn.geometry import Pair
from aioflow_numpy import convolution, pooling
from aioflow_numpy import fused_blocks as _fused  # noqa: F401  # importing registers its kernels
from aioflow_numpy import integer_products as _integer_products  # noqa: F401
from aioflow_numpy import layer_norm as _layer_norm  # noqa: F401
from aioflow_numpy import volume_kernels as _volume_kernels  # noqa: F401
from aioflow_numpy.compiled import updates as _compiled_updates  # noqa: F401  # importing registers its kernels
from aioflow_numpy.conv_shapes import AxisPads


def _arguments(binding: Binding) -> Callable[..., tuple[Any, ...]]:
    """Return a function that maps the geometry to the arguments of `convolution`'s functions after their arrays."""
    return lambda size, kernel, strides, dilations, pads, count: (
        strides,
        pads,
        dilations,
        binding.attrs["data_format"],
    )


def _pool_arguments(binding: Binding) -> Callable[..., tuple[Any, ...]]:
    """Return a function that maps the geometry to the arguments of `pooling`'s functions after their arrays."""
    data_format = binding.attrs["data_format"]
    return lambda size, kernel, strides, dilations, pads, count: (kernel, strides, pads, data_format)


_FORWARD: dict[str, Callable[..., Array]] = {
    "Conv2D": convolution.conv2d,
    "DepthwiseConv2dNative": convolution.depthwise_conv2d,
}
_BY_INPUT: dict[str, Callable[..., Array]] = {
    "Conv2DBackpropInput": convolution.conv2d_backprop_input,
    "DepthwiseConv2dNativeBackpropInput": convolution.depthwise_conv2d_backprop_input,
}
_BY_FILTER: dict[str, Callable[..., Array]] = {
    "Conv2DBackpropFilter": convolution.conv2d_backprop_filter,
    "DepthwiseConv2dNativeBackpropFilter": convolution.depthwise_conv2d_backprop_filter,
}


@binder("Conv2D", device="CPU", fresh=True)
@binder("DepthwiseConv2dNative", device="CPU", fresh=True)
def conv(binding: Binding) -> Callable[[Array, Array], Array]:
    shared, compute = Convolution(binding, _arguments(binding)), _FORWARD[binding.op_type]
    constant = binding.constants[1]

    def body(image: Array, kernel: Array) -> Array:
        arguments, made = shared.of(image.shape, kernel.shape)
        if not kernel.size:
            return np.zeros(made, image.dtype)
        return compute(image, kernel, *arguments)

    if constant is None or constant.flags.c_contiguous:
        return body

    # The filter is copied in the first step rather than here, because binding must not take long.
    @cache
    def ordered() -> Array:
        return np.ascontiguousarray(constant)

    return lambda image, kernel: body(image, ordered())


@binder("Conv2DBackpropInput", device="CPU", host={"input_sizes": as_ints}, fresh=True)
@binder("DepthwiseConv2dNativeBackpropInput", device="CPU", host={"input_sizes": as_ints}, fresh=True)
def conv_by_input(binding: Binding) -> Callable[..., Array]:
    shared, compute = Convolution(binding, _arguments(binding)), _BY_INPUT[binding.op_type]

    def body(input_sizes: Shape, kernel: Array, out_backprop: Array) -> Array:
        arguments, made = shared.of(input_sizes, kernel.shape)
        expect_shape("out_backprop", out_backprop.shape, made)
        if not kernel.size:
            return np.zeros(input_sizes, out_backprop.dtype)
        return compute(input_sizes, kernel, out_backprop, *arguments)

    return body


@binder("Conv2DBackpropFilter", device="CPU", host={"filter_sizes": as_ints}, fresh=True)
@binder("DepthwiseConv2dNativeBackpropFilter", device="CPU", host={"filter_sizes": as_ints}, fresh=True)
def conv_by_filter(binding: Binding) -> Callable[..., Array]:
    shared, compute = Convolution(binding, _arguments(binding)), _BY_FILTER[binding.op_type]

    def body(image: Array, filter_sizes: Shape, out_backprop: Array) -> Array:
        arguments, made = shared.of(image.shape, filter_sizes)
        expect_shape("out_backprop", out_backprop.shape, made)
        if not math.prod(filter_sizes):
            return np.zeros(filter_sizes, out_backprop.dtype)
        return compute(image, filter_sizes, out_backprop, *arguments)

    return body


@binder("MaxPool", device="CPU", fresh=True)
@binder("AvgPool", device="CPU", fresh=True)
def pool(binding: Binding) -> Callable[[Array], Array]:
    shared = Pool(binding, _pool_arguments(binding))
    compute = pooling.max_pool if binding.op_type == "MaxPool" else pooling.avg_pool

    def body(image: Array) -> Array:
        return compute(image, *shared.of(image.shape)[0])

    return body


@binder("MaxPoolGrad", device="CPU", fresh=True)
def max_pool_grad(binding: Binding) -> Callable[..., Array]:
    shared = Pool(binding, _pool_arguments(binding))

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        arguments, made = shared.of(orig_input.shape)
        expect_shape("orig_output", orig_output.shape, made)
        expect_shape("grad", grad.shape, made)
        return pooling.max_pool_grad(orig_input, orig_output, grad, *arguments)

    return body


@binder("AvgPoolGrad", device="CPU", host={"orig_input_shape": as_ints}, fresh=True)
def avg_pool_grad(binding: Binding) -> Callable[..., Array]:
    shared = Pool(binding, _pool_arguments(binding))

    def body(orig_input_shape: Shape, grad: Array) -> Array:
        arguments, made = shared.of(orig_input_shape)
        expect_shape("grad", grad.shape, made)
        return pooling.avg_pool_grad(orig_input_shape, grad, *arguments)

    return body


@binder("MaxPoolGradGrad", device="CPU", fresh=True)
def max_pool_grad_grad(binding: Binding) -> Callable[..., Array]:
    """Bind the adjoint of MaxPoolGrad: each window returns the element of `grad` at the position of its maximum."""
    shared = Pool(binding, _pool_arguments(binding))

    def body(orig_input: Array, orig_output: Array, grad: Array) -> Array:
        arguments, made = shared.of(orig_input.shape)
        expect_shape("orig_output", orig_output.shape, made)
        expect_shape("grad", grad.shape, orig_input.shape)
        return _pick(orig_input, orig_output, grad, *arguments)

    return body


def _pick(x: Array, y: Array, grad: Array, ksize: Pair, strides: Pair, padding: AxisPads, data_format: str) -> Array:
    rows, columns = (1, 2) if data_format == "NHWC" else (2, 3)
    widths = [(0, 0)] * 4
    widths[rows], widths[columns] = padding
    # Padding is 0 here, which may equal a maximum, so a mask tells it apart.
    inside, image, gradient = (np.pad(a, widths) for a in (np.ones(x.shape, np.bool_), x, grad))
    free = np.ones(y.shape, np.bool_)
    out = np.zeros(y.shape, grad.dtype)
    for offset in np.ndindex(*ksize):
        tap = [slice(None)] * 4
        for axis, first, stride in zip((rows, columns), offset, strides, strict=True):
            tap[axis] = slice(first, first + (y.shape[axis] - 1) * stride + 1, stride)
        at = tuple(tap)
        hit = free & inside[at] & (image[at] == y)
        np.copyto(out, gradient[at], where=hit)
        free &= ~hit
    return out


_ZEROS = np.zeros(2048)
_BLOCKS = {np.dtype(t): _ZEROS.astype(t) for t in (np.float32, np.float64)}


@binder(
    "Relu",
    device="CPU",
    dtypes={"T": "float32 float64"},
    fresh=True,
    takes_out=True,
    exact_c="({0} != {0} || {0} > 0) ? {0} : (T)0",
)
def relu(binding: Binding) -> KernelBody:
    """Bind ReLU as a maximum with an array of zeros: NumPy 2.4 vectorizes that, but not a maximum with a scalar."""
    dtype = binding.output_dtypes[0].np_dtype
    zeros, zero = _BLOCKS[dtype], dtype.type(0)
    width, maximum = zeros.size, np.maximum

    def body(features: Array, out: Array | None = None) -> Array:
        size = features.size
        if size < width or not features.flags.c_contiguous or not (out is None or out.flags.c_contiguous):
            found: Array = maximum(features, zero, out=out)
            return found
        if out is None:
            out = np.empty(features.shape, dtype)
        whole = size - size % width
        source, target = features.reshape(-1), out.reshape(-1)
        maximum(source[:whole].reshape(-1, width), zeros, out=target[:whole].reshape(-1, width))
        if whole != size:
            maximum(source[whole:], zero, out=target[whole:])
        return out

    return body


_MANY, _FEW_CHANNELS, _LINE = 1 << 18, 64, 2048


@binder("BiasAdd", device="CPU", dtypes={"T": "float32 float64"}, fresh=True, takes_out=True, exact_c="{0} + {1}")
def bias_add(binding: Binding) -> KernelBody:
    """Bind BiasAdd; with few channels, repeat the bias along a line of many pixels to lengthen NumPy's inner loop."""
    plain = nn.bias_add(binding)
    count = num_elements(binding.input_dims[0])
    if binding.attrs["data_format"] == "NCHW" or (count is not None and count < _MANY):
        return plain

    def body(value: Array, bias: Array, out: Array | None = None) -> Array:
        channels = bias.size
        usable = value.size >= _MANY and channels <= _FEW_CHANNELS and value.shape[-1:] == bias.shape
        if not usable or not value.flags.c_contiguous or not (out is None or out.flags.c_contiguous):
            found: Array = plain(value, bias, out)
            return found
        # The largest power of two that divides the number of pixels and keeps a line within `_LINE`.
        pixels = math.gcd(value.size // channels, 1 << (_LINE // channels).bit_length() - 1)
        line = pixels * channels
        if out is None:
            out = np.empty(value.shape, value.dtype)
        np.add(value.reshape(-1, line), np.tile(bias, pixels), out.reshape(-1, line))
        return out

    return body
