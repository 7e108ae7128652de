"""Batch normalization (arXiv:1502.03167) with moving averages for inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aioflow.arguments import whole_number, whole_numbers
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.shapes import dims_of, format_dims
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.control.branches_and_loops import cond
from aioflow.ops.core import cast_like, identity
from aioflow.ops.layers.base import Constraint, InputSpec, Layer, last_size
from aioflow.ops.layers.core import known_bool
from aioflow.ops.nn.normalization import batch_normalization as nn_batch_normalization
from aioflow.ops.nn.normalization import fused_batch_norm, moments
from aioflow.ops.scoping import name_scope
from aioflow.ops.variables.initializers import ones_initializer, zeros_initializer
from aioflow.ops.variables.scope import InitializerLike, Regularizer, ReuseMode

_FUSED: Final = {(4, 1): "NCHW", (4, 3): "NHWC", (5, 1): "NCDHW", (5, 4): "NDHWC"}  # by rank and axis


class BatchNormalization(Layer):
    """gamma * (inputs - mean) / sqrt(variance + epsilon) + beta.

    In training, the moments are those of the batch, and the nodes in the collection `UPDATE_OPS` update the moving
    averages; make the training op depend on them. In inference, the moments are the moving averages.

    Args:
        axis: Axis or axes that keep moments of their own, usually that of channels.
        momentum: Momentum of the moving averages.
        epsilon: Number added to the variance.
        center: Whether to add beta.
        scale: Whether to multiply by gamma.
        beta_initializer: Initializer of beta.
        gamma_initializer: Initializer of gamma.
        moving_mean_initializer: Initializer of the moving mean.
        moving_variance_initializer: Initializer of the moving variance.
        beta_regularizer: A function of beta that returns a loss.
        gamma_regularizer: A function of gamma that returns a loss.
        beta_constraint: A function that optimizers apply to beta after each update.
        gamma_constraint: The same for gamma.
        renorm: Not supported.
        renorm_clipping: Belongs to `renorm`.
        renorm_momentum: Belongs to `renorm`.
        fused: Whether to use `nn.fused_batch_norm`, whose moving variance has Bessel's correction; by default where
            rank and axis allow it.
        trainable: Whether optimizers update beta and gamma by default.
        virtual_batch_size: Not supported.
        adjustment: Not supported.
        name: Name of the layer.

    Raises:
        UnimplementedError: `renorm`, `virtual_batch_size` or `adjustment` is given.
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike | None = zeros_initializer,
        gamma_initializer: InitializerLike | None = ones_initializer,
        moving_mean_initializer: InitializerLike | None = zeros_initializer,
        moving_variance_initializer: InitializerLike | None = ones_initializer,
        beta_regularizer: Regularizer | None = None,
        gamma_regularizer: Regularizer | None = None,
        beta_constraint: Constraint = None,
        gamma_constraint: Constraint = None,
        renorm: bool = False,
        renorm_clipping: object = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: object = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, **kwargs)
        for what, value in (("renorm", renorm), ("virtual_batch_size", virtual_batch_size), ("adjustment", adjustment)):
            if value:
                raise UnimplementedError(
                    f"batch normalization has no {what}", expected=f"no {what}", actual=repr(value)
                )
        self.axis = [whole_number(axis, "axis")] if isinstance(axis, int) else whole_numbers(axis, "axis")
        self.momentum, self.epsilon, self.center, self.scale = momentum, epsilon, center, scale
        self.beta_initializer, self.gamma_initializer = beta_initializer, gamma_initializer
        self.moving_mean_initializer = moving_mean_initializer
        self.moving_variance_initializer = moving_variance_initializer
        self.beta_regularizer, self.gamma_regularizer = beta_regularizer, gamma_regularizer
        self.beta_constraint, self.gamma_constraint = beta_constraint, gamma_constraint
        self.fused = fused
        self.beta: Any = None
        self.gamma: Any = None
        self.moving_mean: Any = None
        self.moving_variance: Any = None
        self._data_format: str | None = None

    def build(self, input_shape: Any) -> None:
        """Make gamma, beta and the moving averages."""
        dims = dims_of(input_shape)
        rank = 0 if dims is None else len(dims)
        axes = [each + rank if each < 0 else each for each in self.axis]
        if dims is None or len(set(axes)) != len(axes) or not all(0 <= each < rank for each in axes):
            raise InvalidArgumentError(
                f"axis of layer {self.name} does not fit its input",
                expected=f"different axes of an input of known rank, {format_dims(dims)}",
                actual=self.axis,
            )
        self.axis = axes
        self._data_format = _FUSED.get((rank, axes[0])) if len(axes) == 1 else None
        if self.fused and self._data_format is None:
            raise InvalidArgumentError(
                f"layer {self.name} cannot be fused",
                expected="rank 4 or 5, and the axis of channels first or last",
                actual=f"rank {rank}, axis {axes}",
            )
        sizes = {axis: last_size(input_shape, axis, self.name) for axis in axes}
        self.input_spec = InputSpec(ndim=rank, axes=dict(sizes))
        # Several axes keep their places, so that the variables broadcast to the inputs.
        shape = [sizes[axes[0]]] if len(axes) == 1 else [sizes.get(axis, 1) for axis in range(rank)]
        kind = "float32" if self._dtype is None or self._dtype.name in ("float16", "bfloat16") else self._dtype.name
        if self.scale:
            self.gamma = self.add_weight(
                "gamma",
                shape,
                kind,
                self.gamma_initializer,
                self.gamma_regularizer,
                constraint=self.gamma_constraint,
            )
        if self.center:
            self.beta = self.add_weight(
                "beta", shape, kind, self.beta_initializer, self.beta_regularizer, constraint=self.beta_constraint
            )
        self.moving_mean = self.add_weight("moving_mean", shape, kind, self.moving_mean_initializer, trainable=False)
        self.moving_variance = self.add_weight(
            "moving_variance", shape, kind, self.moving_variance_initializer, trainable=False
        )
        self.built = True

    def call(self, inputs: Tensor, training: TensorLike = False) -> Tensor:
        """Return the normalized inputs; `training` is a bool or a bool scalar tensor."""
        is_training = known_bool(training)
        if self.fused is not False and self._data_format is not None:
            outputs, mean, variance = self._fused(inputs, training, is_training)
        else:
            outputs, mean, variance = self._composed(inputs, training, is_training)
        if is_training is not False:
            for name, variable, value in (
                ("mean", self.moving_mean, mean),
                ("variance", self.moving_variance, variance),
            ):
                self.add_update(self._moved(f"AssignMovingAvg_{name}", variable, value, training, is_training))
        outputs.set_shape(inputs.dims)
        return outputs

    def _fused(self, inputs: Tensor, training: TensorLike, is_training: bool | None) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.moving_mean.shape
        kind = self.moving_mean.dtype
        gamma = constant(1.0, kind, shape) if self.gamma is None else convert_to_tensor(self.gamma)
        beta = constant(0.0, kind, shape) if self.beta is None else convert_to_tensor(self.beta)
        # Read outside of the branches.
        mean, variance = convert_to_tensor(self.moving_mean), convert_to_tensor(self.moving_variance)
        layout: Any = self._data_format

        def trained() -> tuple[Tensor, Tensor, Tensor]:
            return fused_batch_norm(inputs, gamma, beta, epsilon=self.epsilon, data_format=layout)

        def inferred() -> tuple[Tensor, Tensor, Tensor]:
            return fused_batch_norm(
                inputs, gamma, beta, mean, variance, self.epsilon, data_format=layout, is_training=False
            )

        if is_training is None:
            made: tuple[Tensor, Tensor, Tensor] = cond(training, trained, inferred)
            return made
        return trained() if is_training else inferred()

    def _composed(
        self, inputs: Tensor, training: TensorLike, is_training: bool | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        rank = len(inputs.dims or ())
        around = [axis for axis in range(rank) if axis not in self.axis]
        kept = len(self.axis) > 1
        moving = convert_to_tensor(self.moving_mean), convert_to_tensor(self.moving_variance)

        def of_batch() -> tuple[Tensor, Tensor]:
            # Half precision has too few digits for moments.
            wide = make("Cast", inputs, DstT=self.moving_mean.dtype)
            return moments(wide, around, keepdims=kept)

        if is_training is None:
            mean, variance = cond(training, of_batch, lambda: tuple(map(identity, moving)))
        else:
            mean, variance = of_batch() if is_training else moving
        column = [1] * rank
        if not kept:
            column[self.axis[0]] = -1

        def spread(value: Any) -> Tensor | None:
            if value is None:
                return None
            tensor = convert_to_tensor(value)
            # One value per element of the last axis broadcasts as it is.
            if not kept and self.axis[0] != rank - 1:
                tensor = make("Reshape", tensor, column)
            return cast_like(tensor, inputs)

        parts = [spread(value) for value in (mean, variance, self.beta, self.gamma)]
        outputs = nn_batch_normalization(inputs, parts[0], parts[1], parts[2], parts[3], self.epsilon)  # type: ignore[arg-type]  # the moments are not None
        return outputs, mean, variance

    def _moved(
        self, name: str, variable: Any, value: Tensor, training: TensorLike, is_training: bool | None
    ) -> Operation:
        """Return the update of a moving average; in a step without training it changes nothing."""
        with name_scope(name, name, [value]):
            rate: TensorLike = 1.0 - self.momentum
            if is_training is None:
                rate = make("Mul", make("Cast", convert_to_tensor(training), DstT=variable.dtype), rate)
            change = make("Mul", make("Sub", convert_to_tensor(variable), cast_like(value, variable)), rate)
            updated: Operation = variable.assign_sub(change, read_value=False)
            return updated


def batch_normalization(
    inputs: TensorLike,
    axis: int | Sequence[int] = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: InitializerLike | None = zeros_initializer,
    gamma_initializer: InitializerLike | None = ones_initializer,
    moving_mean_initializer: InitializerLike | None = zeros_initializer,
    moving_variance_initializer: InitializerLike | None = ones_initializer,
    beta_regularizer: Regularizer | None = None,
    gamma_regularizer: Regularizer | None = None,
    beta_constraint: Constraint = None,
    gamma_constraint: Constraint = None,
    training: TensorLike = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
    renorm: bool = False,
    renorm_clipping: object = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: object = None,
) -> Any:
    """Return the inputs, normalized by a new `BatchNormalization`.

        h = af.layers.batch_normalization(h, training=is_training)
        ...
        with af.control_dependencies(af.get_collection(af.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss)

    The arguments are those of `BatchNormalization`, and `training`, a bool or a bool scalar tensor; with `reuse`, the
    variables are those of an earlier layer of that name.

    Raises:
        UnimplementedError: `renorm`, `virtual_batch_size` or `adjustment` is given.
    """
    layer = BatchNormalization(
        axis,
        momentum,
        epsilon,
        center,
        scale,
        beta_initializer,
        gamma_initializer,
        moving_mean_initializer,
        moving_variance_initializer,
        beta_regularizer,
        gamma_regularizer,
        beta_constraint,
        gamma_constraint,
        renorm,
        renorm_clipping,
        renorm_momentum,
        fused,
        trainable,
        virtual_batch_size,
        adjustment,
        name,
        _scope=name,
        _reuse=reuse,
    )
    return layer(inputs, training=training)
