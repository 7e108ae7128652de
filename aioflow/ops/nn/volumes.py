"""Convolutions and pooling of volumes, with their gradients as ops of their own.

The attribute lists of the ops hold five values, one per axis, in the order of `data_format`. The builders accept one,
three or five.
"""

from __future__ import annotations

from typing import Final

from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Half, opaque, product
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.nn.activations import renamed
from aioflow.ops.nn.geometry import PaddingScheme, VolumeFormat
from aioflow.ops.nn.windows import (
    POOLING,
    Ints,
    conv_shape,
    convolution,
    differentiate_average,
    differentiate_convolution,
    differentiate_maximum,
    given_shape,
    max_pool_grad_grad_shape,
    max_pool_grad_shape,
    per_axis,
    pool_shape,
)
from aioflow.ops.scoping import name_scope

_HOW: Final = ["padding: {'SAME', 'VALID'}", "data_format: {'NDHWC', 'NCDHW'} = 'NDHWC'"]
_CONV: Final = ["T: {floats}", "strides: list(int) >= 5", *_HOW, "dilations: list(int) = [1, 1, 1, 1, 1]"]
_POOL: Final = ["ksize: list(int) >= 5", "strides: list(int) >= 5", *_HOW]
_ONES: Final = (1, 1, 1, 1, 1)


define_op(
    "Conv3D",
    "input: T, filter: T",
    "output: T",
    _CONV,
    shape=conv_shape,
    rows=rows.first_axis,
    traits=product(half=Half.GAINS, cost=convolution(2, 1)),
)
define_op(
    "Conv3DBackpropInputV2",
    "input_sizes: Tshape, filter: T, out_backprop: T",
    "output: T",
    [*_CONV, "Tshape: {index} = int32"],
    shape=given_shape("input_sizes", "out_backprop"),
    rows=rows.transposed_convolution,
    traits=product(half=Half.GAINS, cost=convolution(2, 1)),
)
define_op(
    "Conv3DBackpropFilterV2",
    "input: T, filter_sizes: int32, out_backprop: T",
    "output: T",
    _CONV,
    shape=given_shape("filter_sizes", "out_backprop"),
    traits=product(half=Half.GAINS, cost=convolution(2, 3)),
)
define_op(
    "MaxPool3D",
    "input: T",
    "output: T",
    [*_POOL, "T: {floats}"],
    shape=pool_shape("input"),
    rows=rows.first_axis,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)
define_op(
    "MaxPool3DGrad",
    "orig_input: TInput, orig_output: TInput, grad: T",
    "output: T",
    [*_POOL, "T: {floats} = float32", "TInput: {floats} = float32"],
    shape=max_pool_grad_shape,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)
define_op(
    "MaxPool3DGradGrad",
    "orig_input: T, orig_output: T, grad: T",
    "output: T",
    [*_POOL, "T: {reals}"],
    shape=max_pool_grad_grad_shape,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)
define_op(
    "AvgPool3D",
    "input: T",
    "output: T",
    [*_POOL, "T: {floats}"],
    shape=pool_shape("input"),
    rows=rows.first_axis,
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)
define_op(
    "AvgPool3DGrad",
    "orig_input_shape: int32, grad: T",
    "output: T",
    [*_POOL, "T: {floats}"],
    shape=given_shape("orig_input_shape", "grad"),
    traits=opaque(half=Half.FOLLOWS, cost=POOLING),
)


differentiate_convolution("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2")
differentiate_maximum("MaxPool3D", "MaxPool3DGrad", "MaxPool3DGradGrad")
differentiate_average("AvgPool3D", "AvgPool3DGrad")


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def conv3d(
    input: TensorLike,
    filter: TensorLike | None = None,
    strides: Ints | None = None,
    padding: PaddingScheme | None = None,
    data_format: VolumeFormat = "NDHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
    filters: TensorLike | None = None,
) -> Tensor:
    """Return the convolution (cross-correlation) of volumes with a bank of filters.

    Args:
        input: [batch, depth, rows, columns, channels], or [batch, channels, depth, rows, columns] for NCDHW.
        filter: [depth, rows, columns, channels / groups, outputs].
        strides: One value, (depth, rows, columns), or one per axis of `input`.
        padding: "SAME" or "VALID".
        data_format: "NDHWC" or "NCDHW".
        dilations: Distance between filter elements, in the forms of `strides`.
        name: Name of the node.
        filters: The newer name of `filter`.

    Raises:
        InvalidArgumentError: a rank, channel count, stride, dilation or padding does not fit, or the volume is too
            small.
    """
    kernel = renamed(filters, filter, ("filters", "filter"))
    return make("Conv3D", input, kernel, name=name, **_attrs(strides, padding, data_format, dilations))


def conv3d_backprop_filter_v2(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Ints,
    padding: PaddingScheme,
    data_format: VolumeFormat = "NDHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """Return the gradient of `conv3d` with respect to its filter, of shape `filter_sizes`. Raises as `conv3d`."""
    how = _attrs(strides, padding, data_format, dilations)
    return make("Conv3DBackpropFilterV2", input, filter_sizes, out_backprop, name=name, **how)


def conv3d_transpose(
    value: TensorLike | None = None,
    filter: TensorLike | None = None,
    output_shape: TensorLike | None = None,
    strides: Ints | None = None,
    padding: PaddingScheme = "SAME",
    data_format: VolumeFormat = "NDHWC",
    name: str | None = None,
    input: TensorLike | None = None,
    filters: TensorLike | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Return the transpose of `conv3d`: volumes of shape `output_shape` from the results of a convolution.

    Args:
        value: [batch, depth, rows, columns, in_channels].
        filter: [depth, rows, columns, out_channels, in_channels].
        output_shape: Shape of the result.
        strides: As for `conv3d`.
        padding: As for `conv3d`.
        data_format: As for `conv3d`.
        name: Name of the node.
        input: The newer name of `value`.
        filters: The newer name of `filter`.
        dilations: As for `conv3d`.

    Raises:
        InvalidArgumentError: as for `conv3d`, or a convolution of `output_shape` does not have the shape of `value`.
    """
    source = renamed(input, value, ("input", "value"))
    kernel = renamed(filters, filter, ("filters", "filter"))
    with name_scope(name, "conv3d_transpose", [source, kernel]) as scope:
        how = _attrs(strides, padding, data_format, dilations)
        tensor, bank = convert_to_tensor(source), convert_to_tensor(kernel)
        # The transpose of a convolution is its gradient by the input.
        return make("Conv3DBackpropInputV2", output_shape, bank, tensor, name=scope, **how)


def _attrs(
    strides: Ints | None, padding: PaddingScheme | None, data_format: VolumeFormat | None, dilations: Ints | None
) -> Attrs:
    layout = data_format or "NDHWC"
    return {
        "strides": per_axis(strides, 3, layout, "strides"),
        "dilations": per_axis(dilations, 3, layout, "dilations"),
        "data_format": layout,
        "padding": padding,
    }


def max_pool3d(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: VolumeFormat = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """Return the maximum of each window.

    Args:
        input: [batch, depth, rows, columns, channels], or [batch, channels, depth, rows, columns] for NCDHW.
        ksize: Size of a window: one value, (depth, rows, columns), or five.
        strides: Distance between windows, in the forms of `ksize`.
        padding: "SAME" or "VALID". Padding is ignored by the maximum.
        data_format: "NDHWC" or "NCDHW".
        name: Name of the node.

    Raises:
        InvalidArgumentError: a rank, size, stride or padding does not fit, or the volume is too small.
    """
    return make("MaxPool3D", input, name=name, **_pool_attrs(ksize, strides, padding, data_format))


def avg_pool3d(
    input: TensorLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingScheme,
    data_format: VolumeFormat = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """Return the mean of each window, not counting padding. Arguments and errors as for `max_pool3d`."""
    return make("AvgPool3D", input, name=name, **_pool_attrs(ksize, strides, padding, data_format))


def _pool_attrs(ksize: Ints, strides: Ints, padding: PaddingScheme, data_format: VolumeFormat | None) -> Attrs:
    layout = data_format or "NDHWC"
    return {
        "ksize": per_axis(ksize, 3, layout, "ksize"),
        "strides": per_axis(strides, 3, layout, "strides"),
        "data_format": layout,
        "padding": padding,
    }
