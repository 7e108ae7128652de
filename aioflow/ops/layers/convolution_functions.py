"""Functional forms of convolution layers: each call makes a layer and applies it."""

from __future__ import annotations

from typing import Any

from aioflow.ops.apply import TensorLike
from aioflow.ops.layers.base import Activation, Constraint
from aioflow.ops.layers.convolutional import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    SeparableConv1D,
    SeparableConv2D,
)
from aioflow.ops.nn.windows import Ints
from aioflow.ops.variables.initializers import zeros_initializer
from aioflow.ops.variables.scope import InitializerLike, Regularizer, ReuseMode


def conv1d(
    inputs: TensorLike,
    filters: int,
    kernel_size: Ints,
    strides: Ints = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Ints = 1,
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: InitializerLike | None = None,
    bias_initializer: InitializerLike | None = zeros_initializer,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    activity_regularizer: Regularizer | None = None,
    kernel_constraint: Constraint = None,
    bias_constraint: Constraint = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> Any:
    """Return activation(convolution of rows + bias), with variables of a new layer.

    The kernel is [width, channels, filters], in the variable `<name>/kernel`; the bias `<name>/bias`.

    Args:
        inputs: [batch, width, channels], or [batch, channels, width] for "channels_first".
        filters: Number of output channels.
        kernel_size: Size of the filters.
        strides: Distance between windows.
        padding: "valid", "same" or "causal".
        data_format: "channels_last" or "channels_first".
        dilation_rate: Distance between filter elements.
        activation: A function of the outputs, or its name.
        use_bias: See `Dense`, like the following arguments.
        kernel_initializer: See `Dense`.
        bias_initializer: See `Dense`.
        kernel_regularizer: See `Dense`.
        bias_regularizer: See `Dense`.
        activity_regularizer: See `Dense`.
        kernel_constraint: See `Dense`.
        bias_constraint: See `Dense`.
        trainable: See `Dense`.
        name: See `dense`.
        reuse: See `dense`.
    """
    layer = Conv1D(
        filters,
        kernel_size,
        strides,
        padding,
        data_format,
        dilation_rate,
        activation,
        use_bias,
        kernel_initializer,
        bias_initializer,
        kernel_regularizer,
        bias_regularizer,
        activity_regularizer,
        kernel_constraint,
        bias_constraint,
        trainable,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs)


def conv2d(
    inputs: TensorLike,
    filters: int,
    kernel_size: Ints,
    strides: Ints = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Ints = 1,
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: InitializerLike | None = None,
    bias_initializer: InitializerLike | None = zeros_initializer,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    activity_regularizer: Regularizer | None = None,
    kernel_constraint: Constraint = None,
    bias_constraint: Constraint = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> Any:
    """Return activation(convolution of images + bias), with variables of a new layer.

        h = af.layers.conv2d(images, 32, 3, padding="same", activation=af.nn.relu)

    Sizes, strides and dilations are one value or two, the padding "valid" or "same". Arguments as for `conv1d`.
    """
    layer = Conv2D(
        filters,
        kernel_size,
        strides,
        padding,
        data_format,
        dilation_rate,
        activation,
        use_bias,
        kernel_initializer,
        bias_initializer,
        kernel_regularizer,
        bias_regularizer,
        activity_regularizer,
        kernel_constraint,
        bias_constraint,
        trainable,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs)


def conv3d(
    inputs: TensorLike,
    filters: int,
    kernel_size: Ints,
    strides: Ints = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Ints = 1,
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: InitializerLike | None = None,
    bias_initializer: InitializerLike | None = zeros_initializer,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    activity_regularizer: Regularizer | None = None,
    kernel_constraint: Constraint = None,
    bias_constraint: Constraint = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> Any:
    """Return activation(convolution of volumes + bias), with variables of a new layer.

    Sizes, strides and dilations are one value or three, the padding "valid" or "same". Arguments as for `conv1d`.
    """
    layer = Conv3D(
        filters,
        kernel_size,
        strides,
        padding,
        data_format,
        dilation_rate,
        activation,
        use_bias,
        kernel_initializer,
        bias_initializer,
        kernel_regularizer,
        bias_regularizer,
        activity_regularizer,
        kernel_constraint,
        bias_constraint,
        trainable,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs)


def conv2d_transpose(
    inputs: TensorLike,
    filters: int,
    kernel_size: Ints,
    strides: Ints = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: InitializerLike | None = None,
    bias_initializer: InitializerLike | None = zeros_initializer,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    activity_regularizer: Regularizer | None = None,
    kernel_constraint: Constraint = None,
    bias_constraint: Constraint = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> Any:
    """Return activation(transposed convolution of images + bias), with variables of a new layer.

    The kernel is [rows, columns, filters, channels]. With "same", an output is `strides` times as large as the input.
    Arguments as for `conv2d`.
    """
    layer = Conv2DTranspose(
        filters,
        kernel_size,
        strides,
        padding,
        data_format,
        activation,
        use_bias,
        kernel_initializer,
        bias_initializer,
        kernel_regularizer,
        bias_regularizer,
        activity_regularizer,
        kernel_constraint,
        bias_constraint,
        trainable,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs)


def conv3d_transpose(
    inputs: TensorLike,
    filters: int,
    kernel_size: Ints,
    strides: Ints = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: InitializerLike | None = None,
    bias_initializer: InitializerLike | None = zeros_initializer,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    activity_regularizer: Regularizer | None = None,
    kernel_constraint: Constraint = None,
    bias_constraint: Constraint = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> Any:
    """Return activation(transposed convolution of volumes + bias), with variables of a new layer.

    The kernel is [depth, rows, columns, filters, channels]. Arguments as for `conv2d_transpose`.
    """
    layer = Conv3DTranspose(
        filters,
        kernel_size,
        strides,
        padding,
        data_format,
        activation,
        use_bias,
        kernel_initializer,
        bias_initializer,
        kernel_regularizer,
        bias_regularizer,
        activity_regularizer,
        kernel_constraint,
        bias_constraint,
        trainable,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs)


def separable_conv1d(
    inputs: TensorLike,
    filters: int,
    kernel_size: Ints,
    strides: Ints = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Ints = 1,
    depth_multiplier: int = 1,
    activation: Activation = None,
    use_bias: bool = True,
    depthwise_initializer: InitializerLike | None = None,
    pointwise_initializer: InitializerLike | None = None,
    bias_initializer: InitializerLike | None = zeros_initializer,
    depthwise_regularizer: Regularizer | None = None,
    pointwise_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    activity_regularizer: Regularizer | None = None,
    depthwise_constraint: Constraint = None,
    pointwise_constraint: Constraint = None,
    bias_constraint: Constraint = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> Any:
    """Return activation(separable convolution of rows + bias), with variables of a new layer.

    Each channel is convolved by itself with `depth_multiplier` filters, in `<name>/depthwise_kernel`; a convolution of
    size 1 mixes the results, with `<name>/pointwise_kernel`. Arguments as for `conv1d`.
    """
    layer = SeparableConv1D(
        filters,
        kernel_size,
        strides,
        padding,
        data_format,
        dilation_rate,
        depth_multiplier,
        activation,
        use_bias,
        depthwise_initializer,
        pointwise_initializer,
        bias_initializer,
        depthwise_regularizer,
        pointwise_regularizer,
        bias_regularizer,
        activity_regularizer,
        depthwise_constraint,
        pointwise_constraint,
        bias_constraint,
        trainable,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs)


def separable_conv2d(
    inputs: TensorLike,
    filters: int,
    kernel_size: Ints,
    strides: Ints = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Ints = 1,
    depth_multiplier: int = 1,
    activation: Activation = None,
    use_bias: bool = True,
    depthwise_initializer: InitializerLike | None = None,
    pointwise_initializer: InitializerLike | None = None,
    bias_initializer: InitializerLike | None = zeros_initializer,
    depthwise_regularizer: Regularizer | None = None,
    pointwise_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    activity_regularizer: Regularizer | None = None,
    depthwise_constraint: Constraint = None,
    pointwise_constraint: Constraint = None,
    bias_constraint: Constraint = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
) -> Any:
    """Return activation(separable convolution of images + bias), with variables of a new layer.

    Sizes, strides and dilations are one value or two. Arguments as for `separable_conv1d`.
    """
    layer = SeparableConv2D(
        filters,
        kernel_size,
        strides,
        padding,
        data_format,
        dilation_rate,
        depth_multiplier,
        activation,
        use_bias,
        depthwise_initializer,
        pointwise_initializer,
        bias_initializer,
        depthwise_regularizer,
        pointwise_regularizer,
        bias_regularizer,
        activity_regularizer,
        depthwise_constraint,
        pointwise_constraint,
        bias_constraint,
        trainable,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs)
