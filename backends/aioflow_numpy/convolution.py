"""Convolution in NumPy, with compiled code where available: dense, grouped and depthwise, each with its two gradients.

This module checks arguments, normalizes layouts and dtypes (to NHWC and a dtype that the BLAS supports) and splits
groups; `conv_core` and `conv_depthwise` compute. In every function `padding` is ((top, bottom), (left, right)), and
strides and dilations are (height, width). `data_format`, NHWC or NCHW, applies to the images passed and returned;
docstrings show shapes as for NHWC. float16 and bfloat16 are summed in float32, and integers wrap. No function writes
to an argument.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from aioflow.memory.values import Array, Shape
from aioflow.ops.nn.geometry import Pair
from aioflow_numpy import conv_core, conv_depthwise
from aioflow_numpy.conv_numbers import product_numbers
from aioflow_numpy.conv_shapes import AxisPads, Windows, from_nhwc, shape_to_nhwc, to_nhwc, windows
from aioflow_numpy.conv_shapes import output_size as output_size

_REMEMBERED = 256  # shapes of a network's layers: computing the windows takes as long as a small product


def conv2d(x: Array, w: Array, strides: Pair, padding: AxisPads, dilations: Pair, data_format: str) -> Array:
    """Return the convolution [n, oh, ow, co] of x [n, h, w, c] with w [kh, kw, c / groups, co], in x's dtype.

    The number of groups is x's channel count divided by w's; input group g makes output group g.

    Raises:
        ValueError: a rank, channel count, stride, dilation, padding or `data_format` is invalid.
    """
    image = to_nhwc(x, data_format)
    g = _dense_windows(image.shape, w.shape, strides, padding, dilations)
    if _is_depthwise(g, w.shape):
        return depthwise_conv2d(x, _as_depthwise(w, g), strides, padding, dilations, data_format)
    # An empty sum is 0. Sizes of 0 are handled here, because the plans of blocks divide by them.
    if g.rows * w.size == 0:
        return from_nhwc(np.zeros((g.n, g.oh, g.ow, w.shape[3]), x.dtype), data_format)
    numbers = product_numbers(x, w, g.kh * g.kw * w.shape[2])
    image, w = numbers.widen(image), numbers.widen(w)
    rows = np.empty((g.rows, w.shape[3]), numbers.compute)
    for group, inputs, outputs in _groups(g, w.shape):
        conv_core.forward(image[..., inputs], np.ascontiguousarray(w[..., outputs]), group, rows[:, outputs])
    return from_nhwc(numbers.narrow(rows).reshape(g.n, g.oh, g.ow, -1), data_format)


def conv2d_backprop_input(
    input_shape: Shape, w: Array, dy: Array, strides: Pair, padding: AxisPads, dilations: Pair, data_format: str
) -> Array:
    """Return the gradient of `conv2d` with respect to its input of `input_shape`, from dy [n, oh, ow, co].

    The gradient has dy's dtype.

    Raises:
        ValueError: an argument is invalid as in `conv2d`, or dy does not have the shape of the convolution.
    """
    g = _dense_windows(shape_to_nhwc(input_shape, data_format), w.shape, strides, padding, dilations)
    if _is_depthwise(g, w.shape):
        filters = _as_depthwise(w, g)
        return depthwise_conv2d_backprop_input(input_shape, filters, dy, strides, padding, dilations, data_format)
    gradient = _checked_gradient(dy, g, w.shape[3], data_format)
    if gradient.size * w.size == 0:
        return np.zeros(input_shape, dy.dtype)
    numbers = product_numbers(dy, w, g.kh * g.kw * w.shape[3])
    gradient, w = np.ascontiguousarray(numbers.widen(gradient)).reshape(g.rows, -1), numbers.widen(w)
    rows = np.empty((g.n * g.h * g.w, g.c), numbers.compute)
    for group, inputs, outputs in _groups(g, w.shape):
        conv_core.backprop_input(np.ascontiguousarray(w[..., outputs]), gradient[:, outputs], group, rows[:, inputs])
    return from_nhwc(numbers.narrow(rows).reshape(g.n, g.h, g.w, g.c), data_format)


def conv2d_backprop_filter(
    x: Array, filter_shape: Shape, dy: Array, strides: Pair, padding: AxisPads, dilations: Pair, data_format: str
) -> Array:
    """Return the gradient of `conv2d` with respect to its filter of `filter_shape`, from x and dy [n, oh, ow, co].

    The gradient has dy's dtype.

    Raises:
        ValueError: an argument is invalid as in `conv2d`, or dy does not have the shape of the convolution.
    """
    image = to_nhwc(x, data_format)
    g = _dense_windows(image.shape, filter_shape, strides, padding, dilations)
    if _is_depthwise(g, filter_shape):
        shape = (g.kh, g.kw, g.c, filter_shape[3] // g.c)
        per_channel = depthwise_conv2d_backprop_filter(x, shape, dy, strides, padding, dilations, data_format)
        return per_channel.reshape(filter_shape)
    gradient = _checked_gradient(dy, g, filter_shape[3], data_format)
    result = np.zeros(filter_shape, dy.dtype)
    if gradient.size * x.size == 0:
        return result
    numbers = product_numbers(dy, x, g.rows)
    image, gradient = numbers.widen(image), np.ascontiguousarray(numbers.widen(gradient)).reshape(g.rows, -1)
    for group, inputs, outputs in _groups(g, filter_shape):
        part = conv_core.backprop_filter(image[..., inputs], gradient[:, outputs], group)
        result[..., outputs] = numbers.narrow(part)
    return result


def depthwise_conv2d(x: Array, w: Array, strides: Pair, padding: AxisPads, dilations: Pair, data_format: str) -> Array:
    """Convolve each channel of x [n, h, w, c] with its own m filters of w [kh, kw, c, m] into [n, oh, ow, c*m].

    Raises:
        ValueError: an argument is invalid as in `conv2d`.
    """
    image = to_nhwc(x, data_format)
    g = _depthwise_windows(image.shape, w.shape, strides, padding, dilations)
    if g.rows * w.size == 0:
        return from_nhwc(np.zeros((g.n, g.oh, g.ow, g.c * w.shape[3]), x.dtype), data_format)
    numbers = product_numbers(x, w, g.kh * g.kw)
    result = conv_depthwise.forward(numbers.widen(image), numbers.widen(w), g)
    return from_nhwc(numbers.narrow(result), data_format)


def depthwise_conv2d_backprop_input(
    input_shape: Shape, w: Array, dy: Array, strides: Pair, padding: AxisPads, dilations: Pair, data_format: str
) -> Array:
    """Return the gradient of `depthwise_conv2d` with respect to its input, from dy [n, oh, ow, c*m].

    The gradient has the shape `input_shape` and dy's dtype.

    Raises:
        ValueError: an argument is invalid as in `conv2d`, or dy does not have the shape of the convolution.
    """
    g = _depthwise_windows(shape_to_nhwc(input_shape, data_format), w.shape, strides, padding, dilations)
    gradient = _checked_gradient(dy, g, g.c * w.shape[3], data_format)
    if gradient.size == 0:
        return np.zeros(input_shape, dy.dtype)
    numbers = product_numbers(dy, w, g.kh * g.kw * w.shape[3])
    result = conv_depthwise.backprop_input(numbers.widen(w), numbers.widen(gradient), g)
    return from_nhwc(numbers.narrow(result), data_format)


def depthwise_conv2d_backprop_filter(
    x: Array, filter_shape: Shape, dy: Array, strides: Pair, padding: AxisPads, dilations: Pair, data_format: str
) -> Array:
    """Return the gradient of `depthwise_conv2d` with respect to its filter of `filter_shape`, from x and dy.

    The gradient has dy's dtype.

    Raises:
        ValueError: an argument is invalid as in `conv2d`, or dy does not have the shape of the convolution.
    """
    image = to_nhwc(x, data_format)
    g = _depthwise_windows(image.shape, filter_shape, strides, padding, dilations)
    gradient = _checked_gradient(dy, g, g.c * filter_shape[3], data_format)
    if gradient.size == 0:
        return np.zeros(filter_shape, dy.dtype)
    numbers = product_numbers(dy, x, g.rows)
    result = conv_depthwise.backprop_filter(numbers.widen(image), numbers.widen(gradient), g, filter_shape[3])
    return numbers.narrow(result)


@lru_cache(maxsize=_REMEMBERED)
def _dense_windows(shape: Shape, filter_shape: Shape, strides: Pair, padding: AxisPads, dilations: Pair) -> Windows:
    g = windows(shape, _kernel(filter_shape), strides, padding, dilations)
    per_group, outputs = filter_shape[2], filter_shape[3]
    if per_group == 0 and g.c == 0:
        return g
    if per_group == 0 or g.c % per_group or (g.c and outputs % (g.c // per_group)):
        raise ValueError(
            f"input channels ({g.c}) must be a multiple of the filter's ({per_group}), "
            f"and output channels ({outputs}) of their quotient"
        )
    return g


@lru_cache(maxsize=_REMEMBERED)
def _depthwise_windows(shape: Shape, filter_shape: Shape, strides: Pair, padding: AxisPads, dilations: Pair) -> Windows:
    g = windows(shape, _kernel(filter_shape), strides, padding, dilations)
    if filter_shape[2] != g.c:
        raise ValueError(f"a depthwise filter has its input's {g.c} channels, got filter shape {tuple(filter_shape)}")
    return g


def _kernel(filter_shape: Shape) -> Pair:
    if len(filter_shape) != 4:
        raise ValueError(f"expected a filter of rank 4, got shape {tuple(filter_shape)}")
    return filter_shape[0], filter_shape[1]


def _checked_gradient(dy: Array, g: Windows, channels: int, data_format: str) -> Array:
    gradient = to_nhwc(dy, data_format)
    expected = (g.n, g.oh, g.ow, channels)
    if gradient.shape != expected:
        raise ValueError(f"the gradient has shape {gradient.shape} (as NHWC), the convolution {expected}")
    return gradient


def _is_depthwise(g: Windows, filter_shape: Shape) -> bool:
    """Return True if there are several groups of one channel each.

    For these, matrix products would degenerate to vector products.
    """
    # Not for one channel, which is an ordinary matrix product.
    return filter_shape[2] == 1 and g.c > 1


def _as_depthwise(w: Array, g: Windows) -> Array:
    return w.reshape(g.kh, g.kw, g.c, w.shape[3] // g.c)


@lru_cache(maxsize=_REMEMBERED)
def _groups(g: Windows, filter_shape: Shape) -> list[tuple[Windows, slice, slice]]:
    """Return, for each group, its windows, its slice of input channels and its slice of output channels."""
    inputs = filter_shape[2]
    count = g.c // inputs
    outputs = filter_shape[3] // count
    group = replace(g, c=inputs)
    return [(group, slice(k * inputs, (k + 1) * inputs), slice(k * outputs, (k + 1) * outputs)) for k in range(count)]
