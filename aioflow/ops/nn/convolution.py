"""Two-dimensional convolutions, dense and depthwise, with both of their gradients as ops of their own.

The attribute lists of the ops hold four values, one per axis, in the order of `data_format`. The builders accept one,
two or four.
"""

from __future__ import annotations

from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Half, product
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.nn.activations import renamed
from aioflow.ops.nn.geometry import ImageFormat, PaddingLike, Window, conv_dims, depthwise_dims
from aioflow.ops.nn.windows import (
    Ints,
    conv_shape,
    convolution,
    depthwise,
    differentiate_convolution,
    given_shape,
    padding_attrs,
    per_axis,
)
from aioflow.ops.scoping import name_scope

_PADDING = ["padding: {'SAME', 'VALID', 'EXPLICIT'}", "explicit_paddings: list(int) = []"]
_REST = [*_PADDING, "data_format: {'NHWC', 'NCHW'} = 'NHWC'", "dilations: list(int) = [1, 1, 1, 1]"]
_DENSE = ["strides: list(int)", "use_cudnn_on_gpu: bool = True", *_REST]
_DEPTHWISE = ["strides: list(int)", *_REST]
_ONES = (1, 1, 1, 1)


def _depthwise_shape(ctx: ShapeContext) -> Dims:
    return depthwise_dims(Window.of(ctx.attrs), ctx.dims("input"), ctx.dims("filter"))


define_op(
    "Conv2D",
    "input: T, filter: T",
    "output: T",
    ["T: {floats, int32}", *_DENSE],
    shape=conv_shape,
    rows=rows.first_axis,
    traits=product(half=Half.GAINS, cost=convolution(2, 1), row_major=True),
)
define_op(
    "Conv2DBackpropInput",
    "input_sizes: int32, filter: T, out_backprop: T",
    "output: T",
    ["T: {floats, int32}", *_DENSE],
    shape=given_shape("input_sizes", "out_backprop"),
    rows=rows.transposed_convolution,
    traits=product(half=Half.GAINS, cost=convolution(2, 1)),
)
define_op(
    "Conv2DBackpropFilter",
    "input: T, filter_sizes: int32, out_backprop: T",
    "output: T",
    ["T: {floats}", *_DENSE],
    shape=given_shape("filter_sizes", "out_backprop"),
    traits=product(half=Half.GAINS, cost=convolution(2, 3)),
)
define_op(
    "DepthwiseConv2dNative",
    "input: T, filter: T",
    "output: T",
    ["T: {floats}", *_DEPTHWISE],
    shape=_depthwise_shape,
    rows=rows.first_axis,
    traits=product(half=Half.GAINS, cost=depthwise(2, 1), row_major=True),
)
define_op(
    "DepthwiseConv2dNativeBackpropInput",
    "input_sizes: int32, filter: T, out_backprop: T",
    "output: T",
    ["T: {floats}", *_DEPTHWISE],
    shape=given_shape("input_sizes", "out_backprop"),
    rows=rows.transposed_convolution,
    traits=product(half=Half.GAINS, cost=depthwise(2, 1)),
)
define_op(
    "DepthwiseConv2dNativeBackpropFilter",
    "input: T, filter_sizes: int32, out_backprop: T",
    "output: T",
    ["T: {floats}", *_DEPTHWISE],
    shape=given_shape("filter_sizes", "out_backprop"),
    traits=product(half=Half.GAINS, cost=depthwise(2, 3)),
)


differentiate_convolution("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")
differentiate_convolution(
    "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"
)


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _attrs(
    strides: Ints | None, padding: PaddingLike | None, data_format: ImageFormat | None, dilations: Ints | None
) -> Attrs:
    layout = data_format or "NHWC"
    return {
        "strides": per_axis(strides, 2, layout, "strides"),
        "dilations": per_axis(dilations, 2, layout, "dilations"),
        "data_format": layout,
        **padding_attrs(padding),
    }


def conv2d(
    input: TensorLike,
    filter: TensorLike | None = None,
    strides: Ints | None = None,
    padding: PaddingLike | None = None,
    use_cudnn_on_gpu: bool = True,
    data_format: ImageFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
    filters: TensorLike | None = None,
) -> Tensor:
    """Return the convolution (cross-correlation) of images with a bank of filters.

    Args:
        input: [batch, rows, columns, channels], or [batch, channels, rows, columns] for NCHW.
        filter: [rows, columns, channels / groups, outputs].
        strides: One value, (rows, columns), or one per axis of `input`.
        padding: "SAME", "VALID", or [[before, after]] per axis.
        use_cudnn_on_gpu: An attribute of the op; results do not depend on it.
        data_format: "NHWC" or "NCHW".
        dilations: Distance between filter elements, in the forms of `strides`.
        name: Name of the node.
        filters: The newer name of `filter`.

    Raises:
        InvalidArgumentError: a rank, channel count, stride, dilation or padding does not fit, or the image is too
            small.
    """
    kernel = renamed(filters, filter, ("filters", "filter"))
    return make(
        "Conv2D",
        input,
        kernel,
        use_cudnn_on_gpu=use_cudnn_on_gpu,
        name=name,
        **_attrs(strides, padding, data_format, dilations),
    )


def conv2d_backprop_input(
    input_sizes: TensorLike,
    filter: TensorLike | None = None,
    out_backprop: TensorLike | None = None,
    strides: Ints | None = None,
    padding: PaddingLike | None = None,
    use_cudnn_on_gpu: bool = True,
    data_format: ImageFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
    filters: TensorLike | None = None,
) -> Tensor:
    """Return the gradient of `conv2d` with respect to its input, of shape `input_sizes`. Raises as `conv2d`."""
    kernel = renamed(filters, filter, ("filters", "filter"))
    how = _attrs(strides, padding, data_format, dilations)
    return make(
        "Conv2DBackpropInput", input_sizes, kernel, out_backprop, use_cudnn_on_gpu=use_cudnn_on_gpu, name=name, **how
    )


def conv2d_backprop_filter(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Ints,
    padding: PaddingLike,
    use_cudnn_on_gpu: bool = True,
    data_format: ImageFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """Return the gradient of `conv2d` with respect to its filter, of shape `filter_sizes`. Raises as `conv2d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make(
        "Conv2DBackpropFilter", input, filter_sizes, out_backprop, use_cudnn_on_gpu=use_cudnn_on_gpu, name=name, **how
    )


def conv2d_transpose(
    value: TensorLike | None = None,
    filter: TensorLike | None = None,
    output_shape: TensorLike | None = None,
    strides: Ints | None = None,
    padding: PaddingLike = "SAME",
    data_format: ImageFormat = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
    filters: TensorLike | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Return the transpose of `conv2d`: images of shape `output_shape` from the results of a convolution.

    Args:
        value: [batch, rows, columns, in_channels].
        filter: [rows, columns, out_channels, in_channels].
        output_shape: Shape of the result.
        strides: As for `conv2d`.
        padding: As for `conv2d`.
        data_format: As for `conv2d`.
        name: Name of the node.
        input: The newer name of `value`.
        filters: The newer name of `filter`.
        dilations: As for `conv2d`.

    Raises:
        InvalidArgumentError: as for `conv2d`, or a convolution of `output_shape` does not have the shape of `value`.
    """
    source = renamed(input, value, ("input", "value"))
    kernel = renamed(filters, filter, ("filters", "filter"))
    with name_scope(name, "conv2d_transpose", [source, kernel]) as scope:
        how = _attrs(strides, padding, data_format, dilations)
        tensor, bank = convert_to_tensor(source), convert_to_tensor(kernel)
        # The transpose of a convolution is its gradient by the input.
        result = make("Conv2DBackpropInput", output_shape, bank, tensor, name=scope, **how)
        if result.dims is not None and None not in result.dims:
            _check_transposed(Window.of(how), result.dims, bank.dims, tensor.dims)
        return result


def _check_transposed(window: Window, made: Dims, kernel: Dims, given: Dims) -> None:
    expected = conv_dims(window, made, kernel)
    if not is_compatible(expected, given):
        raise InvalidArgumentError(
            f"value does not fit output_shape {format_dims(made)}",
            expected=format_dims(expected),
            actual=format_dims(given),
        )


def atrous_conv2d(
    value: TensorLike, filters: TensorLike, rate: int, padding: PaddingLike, name: str | None = None
) -> Tensor:
    """Return `conv2d` with stride 1 and filter elements `rate` apart."""
    return conv2d(value, filters, 1, padding, dilations=rate, name=name)


def depthwise_conv2d_native(
    input: TensorLike,
    filter: TensorLike,
    strides: Ints,
    padding: PaddingLike,
    data_format: ImageFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """Return the convolution of each channel with its own filters.

    Args:
        input: [batch, rows, columns, channels], or [batch, channels, rows, columns] for NCHW.
        filter: [rows, columns, channels, multiplier]. The result has channels * multiplier channels.
        strides: As for `conv2d`.
        padding: As for `conv2d`.
        data_format: "NHWC" or "NCHW".
        dilations: As for `conv2d`.
        name: Name of the node.

    Raises:
        InvalidArgumentError: as for `conv2d`.
    """
    how = _attrs(strides, padding, data_format, dilations)
    return make("DepthwiseConv2dNative", input, filter, name=name, **how)


def depthwise_conv2d_native_backprop_input(
    input_sizes: TensorLike,
    filter: TensorLike,
    out_backprop: TensorLike,
    strides: Ints,
    padding: PaddingLike,
    data_format: ImageFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """Return the gradient of `depthwise_conv2d_native` with respect to its input. Raises as `conv2d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make("DepthwiseConv2dNativeBackpropInput", input_sizes, filter, out_backprop, name=name, **how)


def depthwise_conv2d_native_backprop_filter(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Ints,
    padding: PaddingLike,
    data_format: ImageFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """Return the gradient of `depthwise_conv2d_native` with respect to its filter. Raises as `conv2d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make("DepthwiseConv2dNativeBackpropFilter", input, filter_sizes, out_backprop, name=name, **how)


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Ints,
    padding: PaddingLike,
    rate: Ints | None = None,
    name: str | None = None,
    data_format: ImageFormat | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Return `depthwise_conv2d_native`, with `rate` as the older name of `dilations`."""
    with name_scope(name, "depthwise", [input, filter]) as scope:
        spread = renamed(dilations, rate, ("dilations", "rate"))
        return depthwise_conv2d_native(input, filter, strides, padding, data_format or "NHWC", spread, name=scope)


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Ints,
    padding: PaddingLike,
    rate: Ints | None = None,
    name: str | None = None,
    data_format: ImageFormat | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Apply a depthwise convolution and then a 1x1 convolution that mixes the channels.

    Args:
        input: As for `conv2d`.
        depthwise_filter: [rows, columns, channels, multiplier].
        pointwise_filter: [1, 1, channels * multiplier, outputs].
        strides: Strides of the depthwise convolution, as for `conv2d`.
        padding: PaddingLike of the depthwise convolution, as for `conv2d`.
        rate: Old name of `dilations`.
        name: Name of the node.
        data_format: "NHWC" (the default) or "NCHW".
        dilations: Dilations of the depthwise convolution, as for `conv2d`.

    Raises:
        InvalidArgumentError: as for `conv2d`, or the pointwise filter is not 1x1.
    """
    with name_scope(name, "separable_conv2d", [input, depthwise_filter, pointwise_filter]) as scope:
        mixing = convert_to_tensor(pointwise_filter)
        if not is_compatible(mixing.dims, (1, 1, None, None)):
            raise InvalidArgumentError(
                "pointwise_filter must be 1x1", expected="(1, 1, ?, ?)", actual=format_dims(mixing.dims)
            )
        spread = renamed(dilations, rate, ("dilations", "rate"))
        depthwise = depthwise_conv2d_native(
            input, depthwise_filter, strides, padding, data_format or "NHWC", spread, name="depthwise"
        )
        return conv2d(depthwise, mixing, 1, "VALID", data_format=data_format or "NHWC", name=scope)
