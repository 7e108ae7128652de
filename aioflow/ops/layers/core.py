"""Dense layers, dropout and flattening."""

from __future__ import annotations

from typing import Any

from aioflow.arguments import check_whole
from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import ShapeLike, TensorShape, dims_of, format_dims
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, make
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.control.branches_and_loops import cond
from aioflow.ops.core import identity
from aioflow.ops.layers.base import Activation, Constraint, InputSpec, Layer, activation_of, last_size
from aioflow.ops.layers.windows import checked_format
from aioflow.ops.linalg.tensordot import tensordot
from aioflow.ops.nn.activations import bias_add
from aioflow.ops.nn.layers import dropout as nn_dropout
from aioflow.ops.variables.initializers import zeros_initializer
from aioflow.ops.variables.scope import InitializerLike, Regularizer, ReuseMode


def known_bool(value: TensorLike) -> bool | None:
    """Return the value of a flag, or None if it is known only in a step."""
    if isinstance(value, Tensor):
        found = constant_value(value)
        return None if found is None else bool(found)
    return bool(value)


class Dense(Layer):
    """activation(inputs @ kernel + bias), along the last axis.

    Args:
        units: Size of the last axis of the outputs.
        activation: A function of the outputs, or its name; None for none.
        use_bias: Whether to add a bias.
        kernel_initializer: Initializer of the kernel [inputs, units]; by default that of the variable scope.
        bias_initializer: Initializer of the bias [units].
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
        units: int,
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
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        check_whole(units, "units", 1)
        self.units = int(units)
        self.activation = activation_of(activation)
        self.use_bias = use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer
        self.kernel_constraint, self.bias_constraint = kernel_constraint, bias_constraint
        self.input_spec = InputSpec(min_ndim=2)
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any) -> None:
        """Make the kernel and the bias."""
        size = last_size(input_shape, -1, self.name)
        self.input_spec = InputSpec(min_ndim=2, axes={-1: size})
        self.kernel = self.add_weight(
            "kernel",
            [size, self.units],
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                [self.units],
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.built = True

    def call(self, inputs: Tensor) -> Any:
        """Return the outputs for inputs of rank 2 or more."""
        dims = inputs.dims or ()
        if len(dims) == 2:
            outputs = make("MatMul", inputs, self.kernel)
        else:
            outputs = tensordot(inputs, self.kernel, [[len(dims) - 1], [0]])
            outputs.set_shape((*dims[:-1], self.units))
        if self.bias is not None:
            outputs = bias_add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """Return the static shape of the outputs for inputs of that static shape."""
        dims = dims_of(input_shape)
        if dims is None or len(dims) < 2 or dims[-1] is None:
            raise InvalidArgumentError(
                "the shape does not fit", expected="rank 2 or more with a known last size", actual=format_dims(dims)
            )
        return TensorShape((*dims[:-1], self.units))


def dense(
    inputs: TensorLike,
    units: int,
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
    """Return activation(inputs @ kernel + bias), along the last axis, with variables of a new layer.

        hidden = af.layers.dense(x, 128, af.nn.relu)
        logits = af.layers.dense(hidden, 10)

    Args:
        inputs: A tensor of rank 2 or more, whose last size is known.
        units: As for `Dense`, like the other arguments.
        activation: See `Dense`.
        use_bias: See `Dense`.
        kernel_initializer: See `Dense`.
        bias_initializer: See `Dense`.
        kernel_regularizer: See `Dense`.
        bias_regularizer: See `Dense`.
        activity_regularizer: See `Dense`.
        kernel_constraint: See `Dense`.
        bias_constraint: See `Dense`.
        trainable: See `Dense`.
        name: Name of the layer; the variables are `<name>/kernel` and `<name>/bias`.
        reuse: Whether to use the variables of an earlier layer of that name.
    """
    layer = Dense(
        units,
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


class Dropout(Layer):
    """Dropout: in training, a random fraction of the elements becomes 0, and the others are scaled up.

    Args:
        rate: The fraction, a number or a scalar tensor.
        noise_shape: Shape of the random mask, as for `nn.dropout`.
        seed: Seed of the op.
        name: Name of the layer.
    """

    def __init__(
        self,
        rate: TensorLike = 0.5,
        noise_shape: ShapeLike | Tensor | None = None,
        seed: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: Tensor, training: TensorLike = False) -> Tensor:
        """Return the inputs, with dropout if `training`, a bool or a bool scalar tensor."""
        known = known_bool(training)

        def dropped() -> Tensor:
            return nn_dropout(inputs, noise_shape=self.noise_shape, seed=self.seed, rate=self.rate)

        if known is None:
            made: Tensor = cond(training, dropped, lambda: identity(inputs))
            return made
        return dropped() if known else identity(inputs)


def dropout(
    inputs: TensorLike,
    rate: TensorLike = 0.5,
    noise_shape: ShapeLike | Tensor | None = None,
    seed: int | None = None,
    training: TensorLike = False,
    name: str | None = None,
) -> Any:
    """Return the inputs, with `nn.dropout` of `rate` if `training`, a bool or a bool scalar tensor."""
    return Dropout(rate, noise_shape, seed, name)(inputs, training=training)


class Flatten(Layer):
    """All axes but the first in one.

    Args:
        data_format: "channels_first" moves the channels last before.
        name: Name of the layer.
    """

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = checked_format(data_format or "channels_last")
        self.input_spec = InputSpec(min_ndim=1)

    def call(self, inputs: Tensor) -> Tensor:
        """Return a tensor [batch, elements]."""
        rank = len(inputs.dims or ())
        if self.data_format == "channels_first" and rank > 2:
            inputs = make("Transpose", inputs, [0, *range(2, rank), 1])
        dims = inputs.dims or ()
        rest = TensorShape(dims[1:]).num_elements()
        if rest and dims[0] is None:
            return make("Reshape", inputs, [-1, rest])
        if rest is not None and dims[0] is not None:
            return make("Reshape", inputs, [dims[0], rest])
        return make("Reshape", inputs, make("ConcatV2", [shape_of(inputs)[:1], [-1 if rest is None else rest]], 0))


def flatten(inputs: TensorLike, name: str | None = None, data_format: str = "channels_last") -> Any:
    """Return a tensor [batch, elements] with all axes but the first in one."""
    return Flatten(data_format, name=name)(inputs)
