"""The base of all layers, and the checks of their inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from aioflow.arguments import check_kind, did_you_mean, near_names
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError, UnknownNameError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, dims_of, format_dims, is_compatible
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.math.unary import sigmoid, tanh
from aioflow.ops.nn.activations import (
    elu,
    leaky_relu,
    log_softmax,
    relu,
    relu6,
    selu,
    softmax,
    softplus,
    softsign,
    swish,
)
from aioflow.ops.variables.getting import get_variable
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.partitioners import Partitioner
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.scope import InitializerLike, Regularizer, ReuseMode, VariableScope, variable_scope
from aioflow.ops.variables.variable import Variable

Activation: TypeAlias = Callable[[Any], Any] | str | None
Constraint: TypeAlias = Callable[[Tensor], Tensor] | None

_ACTIVATIONS: Final[Mapping[str, Callable[[Any], Any] | None]] = {
    "elu": elu,
    "leaky_relu": leaky_relu,
    "linear": None,
    "log_softmax": log_softmax,
    "relu": relu,
    "relu6": relu6,
    "selu": selu,
    "sigmoid": sigmoid,
    "silu": swish,
    "softmax": softmax,
    "softplus": softplus,
    "softsign": softsign,
    "swish": swish,
    "tanh": tanh,
}
_NAMES: Final = "__layer_names"


def activation_of(given: Activation) -> Callable[[Any], Any] | None:
    """Return the function that an argument `activation` stands for; None for the identity.

    Raises:
        UnknownNameError: no activation has that name.
        DTypeError: it is neither a function nor a name.
    """
    if given is None or callable(given):
        return given
    check_kind(given, str, "activation", "a function of a tensor, or the name of one")
    try:
        return _ACTIVATIONS[given]
    except KeyError:
        near = did_you_mean(near_names(given, _ACTIVATIONS))
        raise UnknownNameError(
            f"activation {given!r} is unknown{near}", expected=f"one of {', '.join(_ACTIVATIONS)}", actual=given
        ) from None


class InputSpec:
    """Requirements for an input of a layer. Fields that are None are not checked.

    Args:
        dtype: Dtype.
        shape: Static shape; None for a size that is not checked.
        ndim: Rank.
        max_ndim: Highest rank.
        min_ndim: Lowest rank.
        axes: Sizes of some axes, by axis.
    """

    def __init__(
        self,
        dtype: DTypeLike | None = None,
        shape: ShapeLike | None = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: Mapping[int, int | None] | None = None,
    ) -> None:
        self.dtype = None if dtype is None else as_dtype(dtype)
        self.shape: Dims = dims_of(shape)
        self.ndim = ndim if self.shape is None else len(self.shape)
        self.max_ndim = max_ndim
        self.min_ndim = min_ndim
        self.axes = dict(axes or {})

    def check(self, tensor: Tensor, layer: str) -> None:
        """Raise InvalidArgumentError or DTypeError unless the input of a layer meets the requirements."""
        if self.dtype is not None and tensor.dtype is not self.dtype:
            raise DTypeError(f"input of layer {layer} has a wrong dtype", expected=self.dtype.name, actual=repr(tensor))
        bounded = (self.ndim, self.max_ndim, self.min_ndim) != (None, None, None) or self.axes
        dims = tensor.dims
        if dims is None:
            if bounded:
                raise self._unfit(layer, dims, "a known rank")
            return
        if self.ndim is not None and len(dims) != self.ndim:
            raise self._unfit(layer, dims, f"rank {self.ndim}")
        if self.max_ndim is not None and len(dims) > self.max_ndim:
            raise self._unfit(layer, dims, f"at most rank {self.max_ndim}")
        if self.min_ndim is not None and len(dims) < self.min_ndim:
            raise self._unfit(layer, dims, f"at least rank {self.min_ndim}")
        for axis, size in self.axes.items():
            if size is not None and dims[axis] not in (size, None):
                raise self._unfit(layer, dims, f"size {size} of axis {axis}")
        if not is_compatible(self.shape, dims):
            raise self._unfit(layer, dims, format_dims(self.shape))

    def _unfit(self, layer: str, dims: Dims, expected: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"input of layer {layer} has a wrong shape", expected=expected, actual=format_dims(dims)
        )


def _snake_case(name: str) -> str:
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower().removeprefix("_")


def _unique_name(graph: Graph, base: str) -> str:
    """Return `base_1`, `base_2`, …: a name for each layer of a graph that has none."""
    with graph.lock:
        held = graph.get_collection_ref(_NAMES)
        if not held:
            held.append({})
        counts: dict[str, int] = held[0]
        counts[base] = counts.get(base, 0) + 1
        return f"{base}_{counts[base]}"


class Layer:
    """A function of tensors that makes its variables on the first call and uses the same ones in later calls.

    A subclass makes variables in `build` with `add_weight`, and computes in `call`.

    Args:
        trainable: Whether optimizers update the layer's variables by default.
        name: Name of the layer, and of the variable scope of its first call; by default made of the class's name.
        dtype: Dtype of the variables; that of the first input if not given.
        activity_regularizer: A function of the outputs that returns a loss.
    """

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        activity_regularizer: Regularizer | None = None,
        _scope: str | VariableScope | None = None,
        _reuse: bool | ReuseMode | None = None,
    ) -> None:
        base = _snake_case(type(self).__name__)
        self._base_name = name or base
        self._name = name or _unique_name(default_graph(), base)
        self._dtype = None if dtype is None else as_dtype(dtype)
        self._reuse = _reuse
        self._scope: VariableScope | None = None
        self._weights: list[tuple[Variable, bool]] = []
        self._losses: list[Tensor] = []
        self._updates: list[Tensor | Operation] = []
        self.trainable = trainable
        self.built = False
        self.activity_regularizer = activity_regularizer
        self.input_spec: InputSpec | Sequence[InputSpec] | None = None
        if _scope:
            with variable_scope(_scope) as scope:
                self._scope = scope

    # ── properties ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        """Name of the layer."""
        return self._name

    @property
    def dtype(self) -> DType | None:
        """Dtype of the variables; None before the first call if it was not given."""
        return self._dtype

    @property
    def scope_name(self) -> str:
        """Name of the variable scope.

        Raises:
            InvalidArgumentError: the layer was not called yet.
        """
        if self._scope is None:
            raise InvalidArgumentError(
                f"layer {self.name} has no scope before its first call", expected="a call of the layer", actual=None
            )
        return self._scope.name

    @property
    def weights(self) -> list[Variable]:
        """All variables, those that are trained first."""
        return self.trainable_weights + self.non_trainable_weights

    @property
    def trainable_weights(self) -> list[Variable]:
        """Variables that are trained; none if `trainable` is False."""
        return [v for v, is_trained in self._tracked() if is_trained and self.trainable]

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """The other variables."""
        return [v for v, is_trained in self._tracked() if not (is_trained and self.trainable)]

    @property
    def variables(self) -> list[Variable]:
        """Same as `weights`."""
        return self.weights

    @property
    def trainable_variables(self) -> list[Variable]:
        """Same as `trainable_weights`."""
        return self.trainable_weights

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """Same as `non_trainable_weights`."""
        return self.non_trainable_weights

    @property
    def losses(self) -> list[Tensor]:
        """Losses of regularizers, and those that `add_loss` added."""
        return list(self._losses)

    @property
    def updates(self) -> list[Tensor | Operation]:
        """Nodes to run in each training step, such as those that update the moving averages of a batch norm."""
        return list(self._updates)

    def count_params(self) -> int:
        """Return the number of elements of all variables.

        Raises:
            InvalidArgumentError: the layer has no variables yet.
        """
        if not self.built:
            raise InvalidArgumentError(
                f"layer {self.name} has no variables before its first call", expected="a call or build()", actual=None
            )
        return sum(v.shape.num_elements() or 0 for v in self.weights)

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_weight(
        self,
        name: str,
        shape: ShapeLike,
        dtype: DTypeLike | None = None,
        initializer: InitializerLike | None = None,
        regularizer: Regularizer | None = None,
        trainable: bool | None = None,
        constraint: Constraint = None,
        use_resource: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        partitioner: Partitioner | None = None,
    ) -> Any:
        """Return a variable of the layer: a new one, or a shared one in a scope with reuse.

        Args:
            name: Name in the layer's scope.
            shape: Shape.
            dtype: Dtype; by default the layer's, or float32.
            initializer: As for `get_variable`.
            regularizer: A function of a new variable that returns a loss.
            trainable: Whether optimizers update it by default; True unless it is synchronized on reading.
            constraint: As for `get_variable`.
            use_resource: Ignored: every variable is a resource.
            synchronization: As for `get_variable`.
            aggregation: As for `get_variable`.
            partitioner: As for `get_variable`.

        Raises:
            InvalidArgumentError: a variable that is synchronized on reading is to be trained, or as for `get_variable`.
        """
        on_read = synchronization is VariableSynchronization.ON_READ
        if on_read and trainable:
            raise InvalidArgumentError(
                f"variable {name} is synchronized on reading and cannot be trained",
                expected="trainable=False",
                actual=trainable,
            )
        wanted = (not on_read if trainable is None else trainable) and self.trainable
        graph = default_graph()
        known = {id(v) for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)}
        scope = self._opened(None)
        reuse = self.built or self._reuse
        with variable_scope(scope, reuse=reuse, auxiliary_name_scope=False) as inner:
            made: Any = get_variable(
                name,
                shape,
                dtype=as_dtype(dtype or self._dtype or dtypes.float32),
                initializer=inner.initializer if initializer is None else initializer,
                trainable=wanted,
                constraint=constraint,
                partitioner=partitioner,
                use_resource=use_resource,
                synchronization=synchronization,
                aggregation=aggregation,
            )
            parts = list(made) if isinstance(made, PartitionedVariable) else [made]
            # A custom getter may have decided otherwise.
            trained = {id(v) for v in graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)}
            for part in parts:
                self._track(part, id(part) in trained and wanted)
            if regularizer is not None and not any(id(part) in known for part in parts):
                with graph.name_scope(f"{inner.original_name_scope}{name}/Regularizer/"):
                    self._lose(regularizer(made))
        return made

    def _track(self, variable: Variable, is_trained: bool) -> None:
        """List a variable among those of the layer."""
        if not any(variable is known for known, _ in self._weights):
            self._weights.append((variable, is_trained))

    def _tracked(self) -> list[tuple[Variable, bool]]:
        """Return the variables, each with whether it is trained if the layer is."""
        return self._weights

    def add_variable(self, *args: Any, **kwargs: Any) -> Any:
        """Return a variable of the layer. The older name of `add_weight`."""
        return self.add_weight(*args, **kwargs)

    def add_loss(self, losses: Tensor | Iterable[Tensor], inputs: object = None) -> None:
        """Add losses to the layer and to the collection of regularization losses. `inputs` is ignored."""
        for loss in [losses] if isinstance(losses, Tensor) else losses:
            self._lose(loss)

    def _lose(self, loss: Tensor | None) -> None:
        if loss is not None:
            self._losses.append(loss)
            loss.op.graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)

    def add_update(self, updates: Tensor | Operation | Iterable[Tensor | Operation], inputs: object = None) -> None:
        """Add nodes to run in each training step to the layer and to the collection of updates. `inputs` is ignored."""
        graph = default_graph()
        for update in [updates] if isinstance(updates, Tensor | Operation) else updates:
            self._updates.append(update)
            graph.add_to_collection(GraphKeys.UPDATE_OPS, update)

    def build(self, input_shape: Any) -> None:
        """Make the variables. Called with the shape of the first call's inputs, a structure like theirs."""
        self.built = True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for the inputs."""
        return inputs

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """Return the static shape of the output for an input of that static shape.

        Raises:
            UnimplementedError: the layer does not define it.
        """
        raise UnimplementedError(
            f"layer {self.name} does not tell its output's shape", expected="compute_output_shape()", actual=None
        )

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _opened(self, scope: str | VariableScope | None) -> VariableScope:
        """Return the layer's variable scope, which its first use opens."""
        if self._scope is None:
            if self._reuse:
                opening = variable_scope(self._base_name if scope is None else scope)
            else:
                opening = variable_scope(scope, default_name=self._base_name)
            with opening as opened:
                self._scope = opened
        return self._scope

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for the inputs. The first call makes the variables.

        Args:
            inputs: A tensor, or a structure of tensors.
            *args: Further arguments of `call`.
            **kwargs: Further arguments of `call`; and `scope`, the variable scope of the layer if this is the first
                call.

        Raises:
            InvalidArgumentError: an input does not meet `input_spec`.
        """
        scope: str | VariableScope | None = kwargs.pop("scope", None)
        graph = graph_of([leaf for leaf in nest.flatten(inputs) if isinstance(leaf, Tensor)])
        with graph.as_default():
            reuse = True if self.built else self._reuse
            with (
                variable_scope(self._opened(scope), reuse=reuse, auxiliary_name_scope=False) as opened,
                # A later call returns to the name scope of the first.
                graph.name_scope(opened.original_name_scope or None),
            ):
                tensors = self._prepared(inputs)
                outputs = self.call(tensors, *args, **kwargs)
                if self.activity_regularizer is not None:
                    self._regularize_activity(outputs)
                return outputs

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        return self(inputs, *args, **kwargs)

    def _prepared(self, inputs: Any) -> Any:
        """Return the inputs as tensors, after making the variables if this is the first call."""
        tensors = nest.map_structure(self._converted, inputs)
        leaves = nest.flatten(tensors)
        specs = [self.input_spec] * len(leaves) if isinstance(self.input_spec, InputSpec) else self.input_spec
        for spec, leaf in zip(specs or (), leaves, strict=False):
            spec.check(leaf, self.name)
        if not self.built:
            if self._dtype is None and leaves:
                self._dtype = leaves[0].dtype
            self.build(nest.map_structure(lambda leaf: leaf.get_shape(), tensors))
            self.built = True
        return tensors

    def _converted(self, value: TensorLike) -> Tensor:
        return value if isinstance(value, Tensor) else convert_to_tensor(value, dtype_hint=self._dtype, name="inputs")

    def _regularize_activity(self, outputs: Any) -> None:
        """Add the loss of the activity regularizer, divided by the batch size."""
        if self.activity_regularizer is None:
            return
        with default_graph().name_scope("ActivityRegularizer"):
            for output in nest.flatten(outputs):
                loss = self.activity_regularizer(output)
                if loss is not None:
                    batch = make("Cast", shape_of(output)[0], DstT=loss.dtype)
                    self._lose(loss / batch)


def last_size(input_shape: Any, axis: int, layer: str) -> int:
    """Return the static size of an axis, from which the shapes of variables follow.

    Raises:
        InvalidArgumentError: it is not known.
    """
    dims = dims_of(input_shape)
    if dims is None or (size := dims[axis]) is None:
        raise InvalidArgumentError(
            f"the variables of layer {layer} depend on the size of axis {axis} of its input",
            expected="a known size",
            actual=format_dims(dims),
        )
    return size
