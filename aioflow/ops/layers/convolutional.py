"""Convolution layers: dense, transposed and separable, along one to three axes."""

from __future__ import annotations

from typing import Any, ClassVar

from aioflow.arguments import check_whole
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.array.padding import pad
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.layers.base import Activation, Constraint, InputSpec, Layer, activation_of, last_size
from aioflow.ops.layers.windows import channels_axis, layout, one_per_axis, padding_of
from aioflow.ops.nn.activations import bias_add
from aioflow.ops.nn.any_rank import conv_transpose, convolution
from aioflow.ops.nn.convolution import separable_conv2d as nn_separable_conv2d
from aioflow.ops.nn.windows import Ints
from aioflow.ops.variables.initializers import zeros_initializer
from aioflow.ops.variables.scope import InitializerLike, Regularizer


class _Filters(Layer):
    """A layer of filters along spatial axes: activation(filtered inputs + bias)."""

    _axes: ClassVar[int]

    def __init__(
        self,
        filters: int,
        kernel_size: Ints,
        strides: Ints,
        padding: str,
        data_format: str,
        activation: Activation,
        use_bias: bool,
        bias_initializer: InitializerLike | None,
        bias_regularizer: Regularizer | None,
        bias_constraint: Constraint,
        causal: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_whole(filters, "filters", 1)
        self.filters = int(filters)
        self.kernel_size = one_per_axis(kernel_size, self._axes, "kernel_size")
        self.strides = one_per_axis(strides, self._axes, "strides")
        self.padding = padding_of(padding, causal)
        self.layout = layout(self._axes, data_format)
        self.activation = activation_of(activation)
        self.use_bias, self.bias_initializer = use_bias, bias_initializer
        self.bias_regularizer, self.bias_constraint = bias_regularizer, bias_constraint
        self.input_spec = InputSpec(ndim=self._axes + 2)
        self.bias: Any = None

    def _channels(self, input_shape: Any) -> int:
        """Return the number of channels, which later inputs must have, too."""
        axis = channels_axis(self.layout)
        size = last_size(input_shape, axis, self.name)
        self.input_spec = InputSpec(ndim=self._axes + 2, axes={axis: size})
        return size

    def _add_bias(self) -> None:
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                [self.filters],
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def _shifted(self, inputs: Tensor, dilations: list[int]) -> tuple[Tensor, str]:
        """Return the inputs and the padding of the op; causal padding comes before the first element only."""
        if self.padding != "causal":
            return inputs, self.padding.upper()
        margin = [[0, 0], [0, 0], [0, 0]]
        margin[1 if self.layout == "NWC" else 2][0] = (self.kernel_size[0] - 1) * dilations[0]
        return pad(inputs, margin), "VALID"

    def _finished(self, outputs: Tensor) -> Any:
        if self.bias is not None:
            if self._axes == 2 or not self.layout.startswith("NC"):
                outputs = bias_add(outputs, self.bias, "NCHW" if self.layout == "NCHW" else None)
            else:
                # The op has no layouts of rows and volumes.
                outputs = outputs + make("Reshape", self.bias, [-1, *[1] * self._axes])
        return outputs if self.activation is None else self.activation(outputs)


class _Convolution(_Filters):
    """activation(convolution of the inputs with the kernel + bias).

    Args:
        filters: Number of output channels.
        kernel_size: Size of the filters: one value, or one per spatial axis.
        strides: Distance between windows, in the same forms.
        padding: "valid" or "same"; for rows also "causal", which pads before the first element only.
        data_format: "channels_last" or "channels_first".
        dilation_rate: Distance between filter elements, in the forms of `kernel_size`.
        activation: A function of the outputs, or its name; None for none.
        use_bias: Whether to add a bias.
        kernel_initializer: Initializer of the kernel [sizes …, channels, filters]; by default the variable scope's.
        bias_initializer: Initializer of the bias [filters].
        kernel_regularizer: A function of the kernel that returns a loss.
        bias_regularizer: A function of the bias that returns a loss.
        activity_regularizer: A function of the outputs that returns a loss.
        kernel_constraint: A function that optimizers apply to the kernel after each update.
        bias_constraint: The same for the bias.
        trainable: Whether optimizers update the variables by default.
        name: Name of the layer.
    """

    def __init__(
        self,
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
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            activation,
            use_bias,
            bias_initializer,
            bias_regularizer,
            bias_constraint,
            self._axes == 1,
            activity_regularizer=activity_regularizer,
            trainable=trainable,
            name=name,
            **kwargs,
        )
        self.dilation_rate = one_per_axis(dilation_rate, self._axes, "dilation_rate")
        self.kernel_initializer, self.kernel_regularizer = kernel_initializer, kernel_regularizer
        self.kernel_constraint = kernel_constraint
        self.kernel: Any = None

    def build(self, input_shape: Any) -> None:
        """Make the kernel and the bias."""
        self.kernel = self.add_weight(
            "kernel",
            [*self.kernel_size, self._channels(input_shape), self.filters],
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self._add_bias()
        self.built = True

    def call(self, inputs: Tensor) -> Any:
        """Return the convolution of the inputs."""
        shifted, padding = self._shifted(inputs, self.dilation_rate)
        how: Any = padding
        made = convolution(shifted, self.kernel, how, self.strides, self.dilation_rate, data_format=self.layout)
        return self._finished(made)


class Conv1D(_Convolution):
    """activation(convolution of rows + bias). Arguments as for `conv1d`."""

    _axes = 1


class Conv2D(_Convolution):
    """activation(convolution of images + bias). Arguments as for `conv2d`."""

    _axes = 2


class Conv3D(_Convolution):
    """activation(convolution of volumes + bias). Arguments as for `conv3d`."""

    _axes = 3


class _TransposedConvolution(_Filters):
    """activation(transposed convolution of the inputs + bias). Arguments as for `_Convolution`, without dilations."""

    def __init__(
        self,
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
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            activation,
            use_bias,
            bias_initializer,
            bias_regularizer,
            bias_constraint,
            False,
            activity_regularizer=activity_regularizer,
            trainable=trainable,
            name=name,
            **kwargs,
        )
        self.kernel_initializer, self.kernel_regularizer = kernel_initializer, kernel_regularizer
        self.kernel_constraint = kernel_constraint
        self.kernel: Any = None

    def build(self, input_shape: Any) -> None:
        """Make the kernel [sizes …, filters, channels] and the bias."""
        self.kernel = self.add_weight(
            "kernel",
            [*self.kernel_size, self.filters, self._channels(input_shape)],
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self._add_bias()
        self.built = True

    def call(self, inputs: Tensor) -> Any:
        """Return the transposed convolution of the inputs."""
        how: Any = self.padding.upper()
        channels = channels_axis(self.layout)
        first = 2 if channels == 1 else 1
        dims: list[int | None] = list(inputs.dims or ())
        dims[channels] = self.filters
        for axis, (size, stride) in enumerate(zip(self.kernel_size, self.strides, strict=True), first):
            dims[axis] = self._grown(dims[axis], size, stride)
        static: Dims = tuple(dims)
        wanted: TensorLike = [size for size in dims if size is not None]
        if None in dims:
            sizes = make_list("Unpack", shape_of(inputs), num=len(dims))
            for axis, (size, stride) in enumerate(zip(self.kernel_size, self.strides, strict=True), first):
                sizes[axis] = self._grown(sizes[axis], size, stride)
            wanted = make(
                "Pack", [convert_to_tensor(s if d is None else d) for d, s in zip(dims, sizes, strict=True)], axis=0
            )
        made = conv_transpose(inputs, self.kernel, wanted, self.strides, how, self.layout)
        made.set_shape(static)
        return self._finished(made)

    def _grown(self, size: Any, kernel: int, stride: int) -> Any:
        """Return the size of an output axis for an input's, a number or a tensor."""
        if size is None:
            return None
        return size * stride + (max(kernel - stride, 0) if self.padding == "valid" else 0)


class Conv2DTranspose(_TransposedConvolution):
    """activation(transposed convolution of images + bias). Arguments as for `conv2d_transpose`."""

    _axes = 2


class Conv3DTranspose(_TransposedConvolution):
    """activation(transposed convolution of volumes + bias). Arguments as for `conv3d_transpose`."""

    _axes = 3


class _SeparableConvolution(_Filters):
    """A convolution of each channel by itself, then one of size 1 that mixes the channels.

    Arguments as for `_Convolution`, with initializers, regularizers and constraints for both kernels, and:

    Args:
        depth_multiplier: Number of outputs of each channel in the first convolution.
    """

    def __init__(
        self,
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
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            activation,
            use_bias,
            bias_initializer,
            bias_regularizer,
            bias_constraint,
            self._axes == 1,
            activity_regularizer=activity_regularizer,
            trainable=trainable,
            name=name,
            **kwargs,
        )
        check_whole(depth_multiplier, "depth_multiplier", 1)
        self.dilation_rate = one_per_axis(dilation_rate, self._axes, "dilation_rate")
        self.depth_multiplier = int(depth_multiplier)
        self.depthwise_initializer, self.pointwise_initializer = depthwise_initializer, pointwise_initializer
        self.depthwise_regularizer, self.pointwise_regularizer = depthwise_regularizer, pointwise_regularizer
        self.depthwise_constraint, self.pointwise_constraint = depthwise_constraint, pointwise_constraint
        self.depthwise_kernel: Any = None
        self.pointwise_kernel: Any = None

    def build(self, input_shape: Any) -> None:
        """Make both kernels and the bias."""
        channels = self._channels(input_shape)
        self.depthwise_kernel = self.add_weight(
            "depthwise_kernel",
            [*self.kernel_size, channels, self.depth_multiplier],
            initializer=self.depthwise_initializer,
            regularizer=self.depthwise_regularizer,
            constraint=self.depthwise_constraint,
        )
        self.pointwise_kernel = self.add_weight(
            "pointwise_kernel",
            [*[1] * self._axes, channels * self.depth_multiplier, self.filters],
            initializer=self.pointwise_initializer,
            regularizer=self.pointwise_regularizer,
            constraint=self.pointwise_constraint,
        )
        self._add_bias()
        self.built = True

    def call(self, inputs: Tensor) -> Any:
        """Return the convolutions of the inputs."""
        shifted, padding = self._shifted(inputs, self.dilation_rate)
        kernels = [self.depthwise_kernel, self.pointwise_kernel]
        strides, dilations, squeezed = self.strides, self.dilation_rate, 2 if self.layout == "NCW" else 1
        how: Any = padding
        form: Any = "NCHW" if self.layout.startswith("NC") else "NHWC"
        if self._axes == 1:
            # A row is an image of height 1. Strides of images are equal along both axes.
            shifted = make("ExpandDims", shifted, squeezed)
            kernels = [make("ExpandDims", kernel, 0) for kernel in kernels]
            strides, dilations = strides * 2, [1, *dilations]
        made = nn_separable_conv2d(shifted, kernels[0], kernels[1], strides, how, dilations, data_format=form)
        return self._finished(make("Squeeze", made, squeeze_dims=[squeezed]) if self._axes == 1 else made)


class SeparableConv1D(_SeparableConvolution):
    """activation(separable convolution of rows + bias). Arguments as for `separable_conv1d`."""

    _axes = 1


class SeparableConv2D(_SeparableConvolution):
    """activation(separable convolution of images + bias). Arguments as for `separable_conv2d`."""

    _axes = 2
