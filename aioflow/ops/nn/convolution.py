"""Two-dimensional convolutions, dense and depthwise, with both of their gradients as ops of their own.

An op's attribute lists hold four values, one per axis, in the order of `data_format`; the builders take one, two or
four.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.argument_kinds import whole_numbers
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, gradient
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims
from aioflow.graph.traits import product
from aioflow.graph.windows import Window, conv2d_dims, depthwise_dims
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.nn.activations import renamed
from aioflow.ops.scoping import name_scope

__all__ = [
    "atrous_conv2d",
    "conv2d",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv2d_transpose",
    "depthwise_conv2d",
    "depthwise_conv2d_native",
    "depthwise_conv2d_native_backprop_filter",
    "depthwise_conv2d_native_backprop_input",
    "separable_conv2d",
]

_PADDING = ["padding: {'SAME', 'VALID', 'EXPLICIT'}", "explicit_paddings: list(int) = []"]
_REST = [*_PADDING, "data_format: {'NHWC', 'NCHW'} = 'NHWC'", "dilations: list(int) = [1, 1, 1, 1]"]
_DENSE = ["strides: list(int)", "use_cudnn_on_gpu: bool = True", *_REST]
_DEPTHWISE = ["strides: list(int)", *_REST]
_ONES = (1, 1, 1, 1)

Ints: TypeAlias = int | Sequence[int]  # see `four`
Padding: TypeAlias = str | Sequence[Sequence[int]]  # see `padding_attrs`


def _conv_shape(ctx: ShapeContext) -> Dims:
    return conv2d_dims(Window.of(ctx.attrs), ctx.dims("input"), ctx.dims("filter"))


def _depthwise_shape(ctx: ShapeContext) -> Dims:
    return depthwise_dims(Window.of(ctx.attrs), ctx.dims("input"), ctx.dims("filter"))


def _given_shape(name: str) -> Any:
    """Shape function of a gradient: the shape is what the input `name` holds."""

    def shape(ctx: ShapeContext) -> Dims:
        Window.of(ctx.attrs)
        ctx.require_rank(name, 1)
        for arg in ctx.op_def.inputs:
            if arg.name != name:
                ctx.require_rank(arg.name, 4)
        dims = ctx.partial_shape(name)
        if dims is None:
            dims = (None,) * 4
        if len(dims) != 4:
            raise InvalidArgumentError(
                f"{name} must be the shape of a 4-D tensor", expected="4 sizes", actual=format_dims(dims)
            )
        if name == "filter_sizes":
            return dims
        out = ctx.require_rank("out_backprop", 4)  # which has as many images
        return dims if out is None else merge_dims(dims, (out[0], None, None, None))

    return shape


def convolution(image: int, kernel: int) -> Cost:
    """Multiply-adds of a convolution: each position and output channel costs the filter's elements per channel.

    Args:
        image: Which operand has a value for each output position, counted through the inputs and then the outputs.
        kernel: Which one is the filter.
    """

    def work(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
        operands = [*inputs, *outputs]
        return float(operands[image].elements * math.prod(operands[kernel].dims[:-1]))

    return Cost("convolution", work)


def depthwise(image: int, kernel: int) -> Cost:
    """As `convolution`, where each output channel reads one input channel."""

    def work(_: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
        operands = [*inputs, *outputs]
        return float(operands[image].elements * math.prod(operands[kernel].dims[:2]))

    return Cost("convolution", work, 4.0)


define_op(
    "Conv2D",
    "input: T, filter: T",
    "output: T",
    ["T: {floats, int32}", *_DENSE],
    shape=_conv_shape,
    traits=product(cost=convolution(2, 1), row_major=True),
)
define_op(
    "Conv2DBackpropInput",
    "input_sizes: int32, filter: T, out_backprop: T",
    "output: T",
    ["T: {floats, int32}", *_DENSE],
    shape=_given_shape("input_sizes"),
    traits=product(cost=convolution(2, 1)),
)
define_op(
    "Conv2DBackpropFilter",
    "input: T, filter_sizes: int32, out_backprop: T",
    "output: T",
    ["T: {floats}", *_DENSE],
    shape=_given_shape("filter_sizes"),
    traits=product(cost=convolution(2, 3)),
)
define_op(
    "DepthwiseConv2dNative",
    "input: T, filter: T",
    "output: T",
    ["T: {floats}", *_DEPTHWISE],
    shape=_depthwise_shape,
    traits=product(cost=depthwise(2, 1), row_major=True),
)
define_op(
    "DepthwiseConv2dNativeBackpropInput",
    "input_sizes: int32, filter: T, out_backprop: T",
    "output: T",
    ["T: {floats}", *_DEPTHWISE],
    shape=_given_shape("input_sizes"),
    traits=product(cost=depthwise(2, 1)),
)
define_op(
    "DepthwiseConv2dNativeBackpropFilter",
    "input: T, filter_sizes: int32, out_backprop: T",
    "output: T",
    ["T: {floats}", *_DEPTHWISE],
    shape=_given_shape("filter_sizes"),
    traits=product(cost=depthwise(2, 3)),
)


# The convolution is linear in each of image, filter and result, so the three ops are one another's gradients.


def _how(op: Operation) -> dict[str, Any]:
    return {k: v for k, v in op.attrs.items() if k != "T" and not k.startswith("_")}


def _family(op: Operation) -> str:
    return "DepthwiseConv2dNative" if op.type.startswith("Depthwise") else "Conv2D"


@gradient("Conv2D", "DepthwiseConv2dNative")
def _conv_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    image, kernel = op.inputs
    family, how = _family(op), _how(op)
    return [
        make(f"{family}BackpropInput", shape_of(image), kernel, grad, **how),
        make(f"{family}BackpropFilter", image, shape_of(kernel), grad, **how),
    ]


@gradient("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput")
def _backprop_input_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    _, kernel, out = op.inputs
    family, how = _family(op), _how(op)
    return [
        None,
        make(f"{family}BackpropFilter", grad, shape_of(kernel), out, **how),
        make(family, grad, kernel, **how),
    ]


@gradient("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter")
def _backprop_filter_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    image, _, out = op.inputs
    family, how = _family(op), _how(op)
    return [
        make(f"{family}BackpropInput", shape_of(image), grad, out, **how),
        None,
        make(family, image, grad, **how),
    ]


# -- builders --------------------------------------------------------------------------------------


def four(values: Ints | None, data_format: str, name: str) -> list[int]:
    """A list of one value per axis from one value, (rows, columns), or four values.

    Raises:
        InvalidArgumentError: the number of values is wrong.
    """
    given = [1] if values is None else [values] if isinstance(values, int) else whole_numbers(values, name)
    if len(given) == 4:
        return given
    if len(given) not in (1, 2):
        raise InvalidArgumentError(f"{name} needs 1, 2 or 4 values", expected="1, 2 or 4 values", actual=given)
    rows, columns = given[0], given[-1]
    return [1, 1, rows, columns] if data_format == "NCHW" else [1, rows, columns, 1]


def padding_attrs(padding: Padding | None) -> dict[str, Any]:
    """The attributes for "SAME", "VALID", or [[before, after]] per axis."""
    if isinstance(padding, str):
        return {"padding": padding.upper()}
    if not isinstance(padding, list | tuple):
        raise DTypeError(
            "not a padding", expected="'SAME', 'VALID', or [[before, after]] for each axis", actual=repr(padding)
        )
    edges = [edge for pair in padding for edge in whole_numbers(pair, "a pair of paddings")]
    return {"padding": "EXPLICIT", "explicit_paddings": edges}


def _attrs(
    strides: Ints | None, padding: Padding | None, data_format: str | None, dilations: Ints | None
) -> dict[str, Any]:
    layout = data_format or "NHWC"
    return {
        "strides": four(strides, layout, "strides"),
        "dilations": four(dilations, layout, "dilations"),
        "data_format": layout,
        **padding_attrs(padding),
    }


def conv2d(
    input: TensorLike,
    filter: TensorLike | None = None,
    strides: Ints | None = None,
    padding: Padding | None = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
    filters: TensorLike | None = None,
) -> Tensor:
    """The convolution (cross-correlation) of images with a bank of filters.

    Args:
        input: [batch, rows, columns, channels], or [batch, channels, rows, columns] for NCHW.
        filter: [rows, columns, channels / groups, outputs]; `filters` is its newer name.
        strides, dilations: One value, (rows, columns), or one per axis of `input`.
        padding: "SAME", "VALID", or [[before, after]] per axis.

    Raises:
        InvalidArgumentError: a rank, channel count, stride, dilation or padding does not fit, or the image is small.
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
    padding: Padding | None = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
    filters: TensorLike | None = None,
) -> Tensor:
    """The gradient of `conv2d` with respect to its input, of shape `input_sizes`. Raises as `conv2d`."""
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
    padding: Padding,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The gradient of `conv2d` with respect to its filter, of shape `filter_sizes`. Raises as `conv2d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make(
        "Conv2DBackpropFilter", input, filter_sizes, out_backprop, use_cudnn_on_gpu=use_cudnn_on_gpu, name=name, **how
    )


def conv2d_transpose(
    value: TensorLike | None = None,
    filter: TensorLike | None = None,
    output_shape: TensorLike | None = None,
    strides: Ints | None = None,
    padding: Padding = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    input: TensorLike | None = None,
    filters: TensorLike | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """The transpose of `conv2d`: from its results back to images of `output_shape`.

    Args:
        value: [batch, rows, columns, in_channels]; `input` is its newer name.
        filter: [rows, columns, out_channels, in_channels]; `filters` is its newer name.

    Raises:
        InvalidArgumentError: as `conv2d`, or `value` is not what `output_shape` convolves to.
    """
    source = renamed(input, value, ("input", "value"))
    kernel = renamed(filters, filter, ("filters", "filter"))
    with name_scope(name, "conv2d_transpose", [source, kernel]) as scope:
        how = _attrs(strides, padding, data_format, dilations)
        tensor, bank = convert_to_tensor(source), convert_to_tensor(kernel)
        result = make("Conv2DBackpropInput", output_shape, bank, tensor, name=scope, **how)
        if result.dims is not None and None not in result.dims:
            _check_transposed(Window.of(how), result.dims, bank.dims, tensor.dims)
        return result


def _check_transposed(window: Window, made: Dims, kernel: Dims, given: Dims) -> None:
    expected = conv2d_dims(window, made, kernel)
    if not is_compatible(expected, given):
        raise InvalidArgumentError(
            f"value does not fit output_shape {format_dims(made)}",
            expected=format_dims(expected),
            actual=format_dims(given),
        )


def atrous_conv2d(
    value: TensorLike, filters: TensorLike, rate: int, padding: Padding, name: str | None = None
) -> Tensor:
    """`conv2d` with stride 1 whose filter taps lie `rate` apart."""
    return conv2d(value, filters, 1, padding, dilations=rate, name=name)


def depthwise_conv2d_native(
    input: TensorLike,
    filter: TensorLike,
    strides: Ints,
    padding: Padding,
    data_format: str = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The convolution of each channel with its own filters.

    Args:
        input: [batch, rows, columns, channels], or [batch, channels, rows, columns] for NCHW.
        filter: [rows, columns, channels, multiplier]; the result has channels * multiplier channels.

    Raises:
        InvalidArgumentError: as `conv2d`.
    """
    how = _attrs(strides, padding, data_format, dilations)
    return make("DepthwiseConv2dNative", input, filter, name=name, **how)


def depthwise_conv2d_native_backprop_input(
    input_sizes: TensorLike,
    filter: TensorLike,
    out_backprop: TensorLike,
    strides: Ints,
    padding: Padding,
    data_format: str = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The gradient of `depthwise_conv2d_native` with respect to its input. Raises as `conv2d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make("DepthwiseConv2dNativeBackpropInput", input_sizes, filter, out_backprop, name=name, **how)


def depthwise_conv2d_native_backprop_filter(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Ints,
    padding: Padding,
    data_format: str = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The gradient of `depthwise_conv2d_native` with respect to its filter. Raises as `conv2d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make("DepthwiseConv2dNativeBackpropFilter", input, filter_sizes, out_backprop, name=name, **how)


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Ints,
    padding: Padding,
    rate: Ints | None = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """`depthwise_conv2d_native`, with `rate` as the older name of `dilations`."""
    with name_scope(name, "depthwise", [input, filter]) as scope:
        spread = renamed(dilations, rate, ("dilations", "rate"))
        return depthwise_conv2d_native(input, filter, strides, padding, data_format or "NHWC", spread, name=scope)


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Ints,
    padding: Padding,
    rate: Ints | None = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """A depthwise convolution and then a 1x1 convolution that mixes the channels.

    Args:
        depthwise_filter: [rows, columns, channels, multiplier].
        pointwise_filter: [1, 1, channels * multiplier, outputs].

    Raises:
        InvalidArgumentError: as `conv2d`, or the pointwise filter is not 1x1.
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
