"""Convolutions and pools over volumes, each with its gradients as ops of their own.

An op's attribute lists hold five values, one per axis, in the order of `data_format`; the builders take one, three or
five.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.argument_kinds import whole_numbers
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, gradient
from aioflow.graph.shapes import Dims, format_dims, merge_dims
from aioflow.graph.traits import opaque, product
from aioflow.graph.volumes import VolumeWindow, conv3d_dims, pool3d_dims
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.nn.activations import renamed, zeros_like
from aioflow.ops.nn.convolution import Ints, convolution
from aioflow.ops.scoping import name_scope

__all__ = ["avg_pool3d", "conv3d", "conv3d_backprop_filter_v2", "conv3d_transpose", "max_pool3d"]

_HOW: Final = ["padding: {'SAME', 'VALID'}", "data_format: {'NDHWC', 'NCDHW'} = 'NDHWC'"]
_CONV: Final = ["T: {floats}", "strides: list(int) >= 5", *_HOW, "dilations: list(int) = [1, 1, 1, 1, 1]"]
_POOL: Final = ["ksize: list(int) >= 5", "strides: list(int) >= 5", *_HOW]
_ONES: Final = (1, 1, 1, 1, 1)


def _conv_shape(ctx: ShapeContext) -> Dims:
    return conv3d_dims(VolumeWindow.of(ctx.attrs), ctx.dims("input"), ctx.dims("filter"))


def _given_shape(name: str) -> Any:
    """Shape function of a gradient: the shape is what the input `name` holds."""

    def shape(ctx: ShapeContext) -> Dims:
        VolumeWindow.of(ctx.attrs)
        ctx.require_rank(name, 1)
        for arg in ctx.op_def.inputs:
            if arg.name != name:
                ctx.require_rank(arg.name, 5)
        dims = ctx.partial_shape(name)
        if dims is None:
            return (None,) * 5
        if len(dims) != 5:
            raise InvalidArgumentError(
                f"{name} must be the shape of a 5-D tensor", expected="5 sizes", actual=format_dims(dims)
            )
        return dims

    return shape


def _pool_shape(ctx: ShapeContext) -> Dims:
    return pool3d_dims(VolumeWindow.of(ctx.attrs), ctx.attrs["ksize"], ctx.dims("input"))


def _max_grad_shape(ctx: ShapeContext) -> Dims:
    pooled = pool3d_dims(VolumeWindow.of(ctx.attrs), ctx.attrs["ksize"], ctx.dims("orig_input"))
    merge_dims(merge_dims(pooled, ctx.dims("orig_output")), ctx.dims("grad"))
    return ctx.require_rank("orig_input", 5) or (None,) * 5


def _max_grad_grad_shape(ctx: ShapeContext) -> Dims:
    image = merge_dims(ctx.dims("orig_input"), ctx.dims("grad"))
    pooled = pool3d_dims(VolumeWindow.of(ctx.attrs), ctx.attrs["ksize"], image)
    return merge_dims(pooled, ctx.dims("orig_output"))


def _windows(attrs: Mapping[str, Any], inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Bytes read: a window for every element of the smaller side."""
    window = math.prod(attrs.get("ksize", (1,)))
    return float(min([o.size for o in [*inputs[:1], *outputs] if o.size] or [0]) * window)


_POOLING: Final = Cost("elementwise", _windows)

define_op(
    "Conv3D",
    "input: T, filter: T",
    "output: T",
    _CONV,
    shape=_conv_shape,
    traits=product(cost=convolution(2, 1)),
)
define_op(
    "Conv3DBackpropInputV2",
    "input_sizes: Tshape, filter: T, out_backprop: T",
    "output: T",
    [*_CONV, "Tshape: {index} = int32"],
    shape=_given_shape("input_sizes"),
    traits=product(cost=convolution(2, 1)),
)
define_op(
    "Conv3DBackpropFilterV2",
    "input: T, filter_sizes: int32, out_backprop: T",
    "output: T",
    _CONV,
    shape=_given_shape("filter_sizes"),
    traits=product(cost=convolution(2, 3)),
)
define_op(
    "MaxPool3D",
    "input: T",
    "output: T",
    [*_POOL, "T: {floats}"],
    shape=_pool_shape,
    traits=opaque(cost=_POOLING),
)
define_op(
    "MaxPool3DGrad",
    "orig_input: TInput, orig_output: TInput, grad: T",
    "output: T",
    [*_POOL, "T: {floats} = float32", "TInput: {floats} = float32"],
    shape=_max_grad_shape,
    traits=opaque(cost=_POOLING),
)
define_op(
    "MaxPool3DGradGrad",
    "orig_input: T, orig_output: T, grad: T",
    "output: T",
    [*_POOL, "T: {reals}"],
    shape=_max_grad_grad_shape,
    traits=opaque(cost=_POOLING),
)
define_op(
    "AvgPool3D",
    "input: T",
    "output: T",
    [*_POOL, "T: {floats}"],
    shape=_pool_shape,
    traits=opaque(cost=_POOLING),
)
define_op(
    "AvgPool3DGrad",
    "orig_input_shape: int32, grad: T",
    "output: T",
    [*_POOL, "T: {floats}"],
    shape=_given_shape("orig_input_shape"),
    traits=opaque(cost=_POOLING),
)


# The convolution is linear in each of image, filter and result, so the three ops are one another's gradients.


def _how(op: Operation) -> dict[str, Any]:
    kept = ("strides", "padding", "data_format", "dilations", "ksize")
    return {name: op.attrs[name] for name in kept if name in op.attrs}


@gradient("Conv3D")
def _conv_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    image, kernel = op.inputs
    return [
        make("Conv3DBackpropInputV2", shape_of(image), kernel, grad, **_how(op)),
        make("Conv3DBackpropFilterV2", image, shape_of(kernel), grad, **_how(op)),
    ]


@gradient("Conv3DBackpropInputV2")
def _backprop_input_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    _, kernel, out = op.inputs
    return [
        None,
        make("Conv3DBackpropFilterV2", grad, shape_of(kernel), out, **_how(op)),
        make("Conv3D", grad, kernel, **_how(op)),
    ]


@gradient("Conv3DBackpropFilterV2")
def _backprop_filter_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    image, _, out = op.inputs
    return [
        make("Conv3DBackpropInputV2", shape_of(image), grad, out, **_how(op)),
        None,
        make("Conv3D", image, grad, **_how(op)),
    ]


@gradient("MaxPool3D")
def _max_pool_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("MaxPool3DGrad", op.inputs[0], op.outputs[0], grad, **_how(op))


@gradient("MaxPool3DGrad")
def _max_pool_grad_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    image, pooled, _ = op.inputs
    return [zeros_like(image), zeros_like(pooled), make("MaxPool3DGradGrad", image, pooled, grad, **_how(op))]


@gradient("MaxPool3DGradGrad")
def _max_pool_third_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    image, pooled, _ = op.inputs
    return [zeros_like(image), zeros_like(pooled), make("MaxPool3DGrad", image, pooled, grad, **_how(op))]


@gradient("AvgPool3D")
def _avg_pool_grad(op: Operation, grad: Tensor) -> Tensor:
    return make("AvgPool3DGrad", shape_of(op.inputs[0]), grad, **_how(op))


@gradient("AvgPool3DGrad")
def _avg_pool_grad_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [None, make("AvgPool3D", grad, **_how(op))]


# -- builders --------------------------------------------------------------------------------------


def _five(values: Ints | None, data_format: str, name: str) -> list[int]:
    """A list of one value per axis from one value, (depth, rows, columns), or five values.

    Raises:
        InvalidArgumentError: the number of values is wrong.
    """
    given = [1] if values is None else [values] if isinstance(values, int) else whole_numbers(values, name)
    if len(given) == 5:
        return given
    if len(given) not in (1, 3):
        raise InvalidArgumentError(f"{name} needs 1, 3 or 5 values", expected="1, 3 or 5 values", actual=given)
    three = given * 3 if len(given) == 1 else given
    return [1, 1, *three] if data_format == "NCDHW" else [1, *three, 1]


def conv3d(
    input: TensorLike,
    filter: TensorLike | None = None,
    strides: Ints | None = None,
    padding: str | None = None,
    data_format: str = "NDHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
    filters: TensorLike | None = None,
) -> Tensor:
    """The convolution (cross-correlation) of volumes with a bank of filters.

    Args:
        input: [batch, depth, rows, columns, channels], or [batch, channels, depth, rows, columns] for NCDHW.
        filter: [depth, rows, columns, channels / groups, outputs]; `filters` is its newer name.
        strides, dilations: One value, (depth, rows, columns), or one per axis of `input`.
        padding: "SAME" or "VALID".

    Raises:
        InvalidArgumentError: a rank, channel count, stride, dilation or padding does not fit, or the volume is small.
    """
    kernel = renamed(filters, filter, ("filters", "filter"))
    return make("Conv3D", input, kernel, name=name, **_attrs(strides, padding, data_format, dilations))


def conv3d_backprop_filter_v2(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Ints,
    padding: str,
    data_format: str = "NDHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The gradient of `conv3d` with respect to its filter, of shape `filter_sizes`. Raises as `conv3d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make("Conv3DBackpropFilterV2", input, filter_sizes, out_backprop, name=name, **how)


def conv3d_transpose(
    value: TensorLike | None = None,
    filter: TensorLike | None = None,
    output_shape: TensorLike | None = None,
    strides: Ints | None = None,
    padding: str = "SAME",
    data_format: str = "NDHWC",
    name: str | None = None,
    input: TensorLike | None = None,
    filters: TensorLike | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """The transpose of `conv3d`: from its results back to volumes of `output_shape`.

    Args:
        value: [batch, depth, rows, columns, in_channels]; `input` is its newer name.
        filter: [depth, rows, columns, out_channels, in_channels]; `filters` is its newer name.

    Raises:
        InvalidArgumentError: as `conv3d`, or `value` is not what `output_shape` convolves to.
    """
    source = renamed(input, value, ("input", "value"))
    kernel = renamed(filters, filter, ("filters", "filter"))
    with name_scope(name, "conv3d_transpose", [source, kernel]) as scope:
        how = _attrs(strides, padding, data_format, dilations)
        tensor, bank = convert_to_tensor(source), convert_to_tensor(kernel)
        return make("Conv3DBackpropInputV2", output_shape, bank, tensor, name=scope, **how)


def _attrs(strides: Ints | None, padding: str | None, data_format: str, dilations: Ints | None) -> dict[str, Any]:
    layout = data_format or "NDHWC"
    return {
        "strides": _five(strides, layout, "strides"),
        "dilations": _five(dilations, layout, "dilations"),
        "data_format": layout,
        "padding": padding,
    }


def max_pool3d(
    input: TensorLike, ksize: Ints, strides: Ints, padding: str, data_format: str = "NDHWC", name: str | None = None
) -> Tensor:
    """The maximum of each window.

    Args:
        input: [batch, depth, rows, columns, channels], or [batch, channels, depth, rows, columns] for NCDHW.
        ksize, strides: Size of a window, and how far apart windows are: one value, (depth, rows, columns), or five.
        padding: "SAME" or "VALID"; padding takes no part in the maximum.

    Raises:
        InvalidArgumentError: a rank, size, stride or padding does not fit, or the volume is too small.
    """
    return make("MaxPool3D", input, name=name, **_pool_attrs(ksize, strides, padding, data_format))


def avg_pool3d(
    input: TensorLike, ksize: Ints, strides: Ints, padding: str, data_format: str = "NDHWC", name: str | None = None
) -> Tensor:
    """The mean of each window, padding not counted. Arguments and errors as `max_pool3d`."""
    return make("AvgPool3D", input, name=name, **_pool_attrs(ksize, strides, padding, data_format))


def _pool_attrs(ksize: Ints, strides: Ints, padding: str, data_format: str) -> dict[str, Any]:
    layout = data_format or "NDHWC"
    return {
        "ksize": _five(ksize, layout, "ksize"),
        "strides": _five(strides, layout, "strides"),
        "data_format": layout,
        "padding": padding,
    }
