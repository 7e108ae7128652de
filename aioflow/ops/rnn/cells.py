"""Cells of recurrent nets: functions of an input and a state that return an output and the next state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aioflow.arguments import check_whole
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.graph.static_value import constant_value
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.array.static_shapes import shape_of
from aioflow.ops.layers.base import Activation, InputSpec, Layer, activation_of, last_size
from aioflow.ops.math.sums import clip_by_value
from aioflow.ops.math.unary import tanh
from aioflow.ops.nn.activations import bias_add
from aioflow.ops.scoping import name_scope
from aioflow.ops.variables.initializers import constant_initializer, zeros_initializer
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.partitioners import fixed_size_partitioner
from aioflow.ops.variables.scope import (
    InitializerLike,
    ReuseMode,
    VariableScope,
    get_variable_scope,
    variable_scope,
)

# ── states ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def sizes_of(size: Any) -> tuple[int | None, ...]:
    """Return the static sizes that a leaf of `state_size` or `output_size` stands for, without the batch."""
    return (None,) if isinstance(size, Tensor) else known_sizes(size)


def known_sizes(size: Any) -> tuple[int, ...]:
    """Return the sizes of a leaf of `state_size` or `output_size` that is no tensor.

    Raises:
        InvalidArgumentError: a size is unknown.
    """
    if not isinstance(size, TensorShape):
        return (int(size),)
    dims = size.raw
    if dims is None or None in dims:
        raise InvalidArgumentError("a cell has an unknown size", expected="known sizes", actual=size)
    return tuple(each for each in dims if each is not None)


def zeros_of(batch_size: Any, size: Any, dtype: DTypeLike) -> Tensor:
    """Return zeros [batch_size] + size, for a leaf of `state_size` or `output_size`."""
    kind = as_dtype(dtype)
    static = sizes_of(size)
    sizes = [size] if isinstance(size, Tensor) else [convert_to_tensor(each, "int32") for each in known_sizes(size)]
    batch = convert_to_tensor(batch_size, "int32")
    known = constant_value(batch)
    zeros = make("Fill", make("Pack", [make("Reshape", batch, []), *sizes], axis=0), constant(0, kind))
    zeros.set_shape((None if known is None else int(known), *static))
    return zeros


def check_cell(cell: Any, what: str = "cell") -> None:
    """Raise DTypeError unless the argument called `what` is like an RNNCell: it may be of any class."""
    lacking = [name for name in ("output_size", "state_size") if not hasattr(cell, name)]
    if not hasattr(cell, "zero_state") and not hasattr(cell, "get_initial_state"):
        lacking.append("zero_state")
    if lacking or not callable(cell):
        raise DTypeError(
            f"{what} is not an RNNCell",
            expected="an object with output_size, state_size and zero_state that can be called",
            actual=f"{cell!r}, without {', '.join(lacking) or 'a call'}",
        )


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM cell: the memory `c` and the output `h`."""

    c: Any
    h: Any

    @property
    def dtype(self) -> DType:
        """Dtype of both parts. Raises DTypeError if they differ."""
        if self.c.dtype is not self.h.dtype:
            raise DTypeError("the parts of a state differ", expected=self.c.dtype.name, actual=self.h.dtype.name)
        kind: DType = self.c.dtype
        return kind


# ── bases ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class RNNCell(Layer):
    """The base of cells. `output, new_state = cell(inputs, state)` computes one step of a batch.

    A subclass has the properties `state_size` and `output_size`, and the method `call(inputs, state)`. It may make
    variables in `build`, or in `call` by `get_variable`.
    """

    def __call__(self, inputs: Any, state: Any, scope: str | VariableScope | None = None) -> Any:
        """Return the output and the next state.

        Args:
            inputs: [batch, features].
            state: Tensors [batch, size], in a structure like `state_size`.
            scope: Variable scope of the cell, if this is the first call.
        """
        if scope is not None:
            with variable_scope(scope, custom_getter=self._tracking) as opened:
                return super().__call__(inputs, state, scope=opened)
        with variable_scope(get_variable_scope(), custom_getter=self._tracking):
            return super().__call__(inputs, state)

    def _tracking(self, getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return a variable that `call` makes, and list it among those of the cell."""
        made = getter(*args, **kwargs)
        for part in list(made) if isinstance(made, PartitionedVariable) else [made]:
            trained = part.graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
            self._track(part, any(part is each for each in trained))
        return made

    @property
    def state_size(self) -> Any:
        """Sizes of the state without the batch: an int, a TensorShape, or a structure of them."""
        raise UnimplementedError(f"cell {self.name} has no state_size", expected="a property of the class", actual=None)

    @property
    def output_size(self) -> Any:
        """Sizes of the output without the batch: an int, a TensorShape, or a structure of them."""
        raise UnimplementedError(
            f"cell {self.name} has no output_size", expected="a property of the class", actual=None
        )

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """Return a state of zeros, in a structure like `state_size`.

        Args:
            batch_size: An int, or an int32 scalar tensor.
            dtype: Dtype of the state.
        """
        with name_scope(f"{type(self).__name__}ZeroState", None):
            return nest.map_structure(lambda size: zeros_of(batch_size, size, dtype), self.state_size)

    def get_initial_state(
        self, inputs: TensorLike | None = None, batch_size: TensorLike | None = None, dtype: DTypeLike | None = None
    ) -> Any:
        """Return `zero_state` for the batch size and dtype of `inputs`, or the given ones.

        Raises:
            InvalidArgumentError: the batch size or the dtype is missing.
        """
        if inputs is not None:
            tensor = convert_to_tensor(inputs, name="inputs")
            batch_size, dtype = batch_size_of([tensor], 0), tensor.dtype
        if batch_size is None or dtype is None:
            raise InvalidArgumentError(
                "an initial state needs a batch size and a dtype", expected="both", actual=f"{batch_size} and {dtype}"
            )
        return self.zero_state(batch_size, dtype)


def batch_size_of(tensors: Sequence[Tensor], axis: int) -> int | Tensor:
    """Return the size of the axis of the batch: the static one if a tensor has it, or a tensor."""
    for tensor in tensors:
        if tensor.dims is not None and len(tensor.dims) > axis and (size := tensor.dims[axis]) is not None:
            return size
    return shape_of(tensors[0])[axis]


class _LayerCell(RNNCell):
    """A cell with a matrix of inputs, whose variables are made by `build`."""

    def __init__(
        self,
        num_units: int,
        activation: Activation,
        reuse: bool | ReuseMode | None,
        name: str | None,
        dtype: DTypeLike | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(_reuse=reuse, name=name, dtype=dtype, **kwargs)
        if self._dtype is not None:
            _check_floating(self._dtype, self.name)
        check_whole(num_units, "num_units", 1)
        self._num_units = int(num_units)
        self._activation: Callable[[Any], Any] = activation_of(activation) or tanh
        self.input_spec = InputSpec(ndim=2)

    def __call__(self, inputs: Any, state: Any, scope: str | VariableScope | None = None) -> Any:
        """Return the output and the next state. Arguments as for `RNNCell`."""
        return Layer.__call__(self, inputs, state, scope=scope)

    @property
    def state_size(self) -> Any:
        """Number of units."""
        return self._num_units

    @property
    def output_size(self) -> Any:
        """Number of units."""
        return self._num_units

    def _depth(self, input_shape: Any) -> int:
        if self._dtype is not None:
            _check_floating(self._dtype, self.name)
        return last_size(input_shape, -1, self.name)

    def _affine(self, parts: Sequence[Any], kernel: Any, bias: Any) -> Tensor:
        """Return the product of the joined parts with the kernel, plus the bias."""
        for part in parts:
            _check_floating(convert_to_tensor(part).dtype, self.name)
        return bias_add(make("MatMul", make("ConcatV2", list(parts), 1), kernel), bias)


def _check_floating(dtype: DType, name: str) -> None:
    if not (dtype.is_floating or dtype.is_complex):
        raise DTypeError(f"cell {name} computes with floats", expected="a floating dtype", actual=dtype.name)


# ── cells ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class BasicRNNCell(_LayerCell):
    """The plain cell: output = state = activation([inputs, state] @ kernel + bias).

    Args:
        num_units: Size of the state and the output.
        activation: A function of a tensor, or its name; tanh by default.
        reuse: Whether to use the variables of an earlier cell in the same scope.
        name: Name of the cell.
        dtype: Dtype of the variables; that of the first input if not given.
    """

    def __init__(
        self,
        num_units: int,
        activation: Activation = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Make the kernel and the bias."""
        units = self._num_units
        self.kernel = self.add_weight("kernel", [self._depth(input_shape) + units, units])
        self.bias = self.add_weight("bias", [units], initializer=zeros_initializer())
        self.built = True

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """Return the output and the next state, which are the same."""
        output = self._activation(self._affine([inputs, state], self.kernel, self.bias))
        return output, output


class GRUCell(_LayerCell):
    """Gated recurrent unit (arXiv:1406.1078), with one kernel of both gates and one of the candidate.

    Args:
        num_units: Size of the state and the output.
        activation: A function of a tensor, or its name; tanh by default.
        reuse: Whether to use the variables of an earlier cell in the same scope.
        kernel_initializer: Initializer of the kernels.
        bias_initializer: Initializer of the biases; by default 1 for the gates and 0 for the candidate.
        name: Name of the cell.
        dtype: Dtype of the variables; that of the first input if not given.
    """

    def __init__(
        self,
        num_units: int,
        activation: Activation = None,
        reuse: bool | ReuseMode | None = None,
        kernel_initializer: InitializerLike | None = None,
        bias_initializer: InitializerLike | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._kernel_initializer, self._bias_initializer = kernel_initializer, bias_initializer

    def build(self, input_shape: Any) -> None:
        """Make the kernels and the biases."""
        units, rows = self._num_units, self._depth(input_shape) + self._num_units
        kernel, bias = self._kernel_initializer, self._bias_initializer
        self.gate_kernel = self.add_weight("gates/kernel", [rows, 2 * units], initializer=kernel)
        self.gate_bias = self.add_weight(
            "gates/bias", [2 * units], initializer=constant_initializer(1.0) if bias is None else bias
        )
        self.candidate_kernel = self.add_weight("candidate/kernel", [rows, units], initializer=kernel)
        self.candidate_bias = self.add_weight(
            "candidate/bias", [units], initializer=zeros_initializer() if bias is None else bias
        )
        self.built = True

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """Return the output and the next state, which are the same."""
        gates = make("Sigmoid", self._affine([inputs, state], self.gate_kernel, self.gate_bias))
        reset, update = make_list("Split", 1, gates, num_split=2)
        candidate = self._activation(self._affine([inputs, reset * state], self.candidate_kernel, self.candidate_bias))
        output = update * state + (1 - update) * candidate
        return output, output


class BasicLSTMCell(_LayerCell):
    """The LSTM cell (Hochreiter and Schmidhuber, 1997) without peepholes, clipping and projection.

    Args:
        num_units: Size of the memory and of the output.
        forget_bias: Number added to the forget gate's inputs.
        state_is_tuple: Whether states are LSTMStateTuples, rather than both parts side by side.
        activation: A function of a tensor, or its name; tanh by default.
        reuse: Whether to use the variables of an earlier cell in the same scope.
        name: Name of the cell.
        dtype: Dtype of the variables; that of the first input if not given.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Activation = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._forget_bias, self._state_is_tuple = forget_bias, state_is_tuple

    @property
    def state_size(self) -> Any:
        """Sizes of the memory and of the output, or their sum."""
        units = self._num_units
        return LSTMStateTuple(units, units) if self._state_is_tuple else 2 * units

    def build(self, input_shape: Any) -> None:
        """Make the kernel and the bias of all four gates."""
        units = self._num_units
        self.kernel = self.add_weight("kernel", [self._depth(input_shape) + units, 4 * units])
        self.bias = self.add_weight("bias", [4 * units], initializer=zeros_initializer())
        self.built = True

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """Return the output and the next state."""
        memory, last = state if self._state_is_tuple else make_list("Split", 1, state, num_split=2)
        gates = self._affine([inputs, last], self.kernel, self.bias)
        entry, new, forget, out = make_list("Split", 1, gates, num_split=4)
        kept = memory * make("Sigmoid", forget + self._forget_bias)
        c = kept + make("Sigmoid", entry) * self._activation(new)
        h = self._activation(c) * make("Sigmoid", out)
        return h, LSTMStateTuple(c, h) if self._state_is_tuple else make("ConcatV2", [c, h], 1)


class LSTMCell(_LayerCell):
    """The LSTM cell with optional peepholes, clipping and projection (Sak et al., 2014).

    Args:
        num_units: Size of the memory.
        use_peepholes: Whether the gates see the memory.
        cell_clip: Bound of the memory's absolute values.
        initializer: Initializer of the kernels and the peepholes.
        num_proj: Size of the output, which is projected if it is given.
        proj_clip: Bound of the projected outputs' absolute values.
        num_unit_shards: Number of parts of the kernel; give the variable scope a partitioner instead.
        num_proj_shards: Number of parts of the projection's kernel.
        forget_bias: Number added to the forget gate's inputs.
        state_is_tuple: Whether states are LSTMStateTuples, rather than both parts side by side.
        activation: A function of a tensor, or its name; tanh by default.
        reuse: Whether to use the variables of an earlier cell in the same scope.
        name: Name of the cell.
        dtype: Dtype of the variables; that of the first input if not given.
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: InitializerLike | None = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: int | None = None,
        num_proj_shards: int | None = None,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Activation = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._use_peepholes, self._cell_clip, self._initializer = use_peepholes, cell_clip, initializer
        self._num_proj, self._proj_clip = num_proj, proj_clip
        self._shards = num_unit_shards, num_proj_shards
        self._forget_bias, self._state_is_tuple = forget_bias, state_is_tuple

    @property
    def state_size(self) -> Any:
        """Sizes of the memory and of the output, or their sum."""
        sizes = LSTMStateTuple(self._num_units, self.output_size)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        """Size of the output."""
        return self._num_proj or self._num_units

    def build(self, input_shape: Any) -> None:
        """Make the kernels, the bias and the peepholes."""
        units, rows = self._num_units, self._depth(input_shape) + self.output_size
        parts = [None if count is None else fixed_size_partitioner(count) for count in self._shards]
        start = self._initializer
        self.kernel = self.add_weight("kernel", [rows, 4 * units], initializer=start, partitioner=parts[0])
        self.bias = self.add_weight("bias", [4 * units], initializer=zeros_initializer())
        if self._use_peepholes:
            self.peepholes = [self.add_weight(f"w_{gate}_diag", [units], initializer=start) for gate in ("f", "i", "o")]
        if self._num_proj:
            self.projection = self.add_weight(
                "projection/kernel", [units, self._num_proj], initializer=start, partitioner=parts[1]
            )
        self.built = True

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """Return the output and the next state."""
        sizes = [self._num_units, self.output_size]
        memory, last = state if self._state_is_tuple else make_list("SplitV", state, sizes, 1, num_split=2)
        gates = self._affine([inputs, last], self.kernel, self.bias)
        entry, new, forget, out = make_list("Split", 1, gates, num_split=4)
        forget = forget + self._forget_bias
        if self._use_peepholes:
            forget, entry = forget + self.peepholes[0] * memory, entry + self.peepholes[1] * memory
        c = make("Sigmoid", forget) * memory + make("Sigmoid", entry) * self._activation(new)
        if self._cell_clip is not None:
            c = clip_by_value(c, -self._cell_clip, self._cell_clip)
        if self._use_peepholes:
            out = out + self.peepholes[2] * c
        h = make("Sigmoid", out) * self._activation(c)
        if self._num_proj:
            h = make("MatMul", h, self.projection)
            if self._proj_clip is not None:
                h = clip_by_value(h, -self._proj_clip, self._proj_clip)
        return h, LSTMStateTuple(c, h) if self._state_is_tuple else make("ConcatV2", [c, h], 1)


class MultiRNNCell(RNNCell):
    """Cells one after the other: the output of each is the input of the next.

    Args:
        cells: The cells.
        state_is_tuple: Whether the state is a tuple of the cells' states, rather than all of them side by side.

    Raises:
        InvalidArgumentError: there are no cells, or their states are tuples and `state_is_tuple` is False.
        DTypeError: `cells` is not a list of cells.
    """

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not isinstance(cells, list | tuple):
            raise DTypeError("cells must be a list", expected="a list of cells", actual=repr(cells))
        if not cells:
            raise InvalidArgumentError("there are no cells", expected="at least one", actual=cells)
        for number, cell in enumerate(cells):
            check_cell(cell, f"cells[{number}]")
        self._cells = list(cells)
        self._state_is_tuple = state_is_tuple
        if not state_is_tuple and any(nest.is_nested(cell.state_size) for cell in cells):
            raise InvalidArgumentError(
                "states that are tuples cannot lie side by side",
                expected="state_is_tuple=True",
                actual=[cell.state_size for cell in cells],
            )

    @property
    def cells(self) -> list[Any]:
        """The cells."""
        return list(self._cells)

    @property
    def state_size(self) -> Any:
        """Sizes of the cells' states, or their sum."""
        sizes = tuple(cell.state_size for cell in self._cells)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        """Size of the last cell's output."""
        return self._cells[-1].output_size

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """Return the cells' states of zeros."""
        if not self._state_is_tuple:
            return super().zero_state(batch_size, dtype)
        with name_scope(f"{type(self).__name__}ZeroState", None):
            return tuple(cell.zero_state(batch_size, dtype) for cell in self._cells)

    def _tracked(self) -> list[tuple[Any, bool]]:
        return weights_of(self._cells)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Return the output of the last cell and the next states of all."""
        if not self._state_is_tuple:
            sizes = [cell.state_size for cell in self._cells]
            state = make_list("SplitV", state, sizes, 1, num_split=len(sizes))
        elif not nest.is_nested(state) or len(state) != len(self._cells):
            raise InvalidArgumentError(
                "the state does not fit the cells", expected=f"a tuple of {len(self._cells)}", actual=repr(state)
            )
        states = []
        for number, (cell, own) in enumerate(zip(self._cells, state, strict=True)):
            with variable_scope(f"cell_{number}"):
                inputs, after = cell(inputs, own)
                states.append(after)
        return inputs, tuple(states) if self._state_is_tuple else make("ConcatV2", states, 1)


def weights_of(cells: Sequence[Any]) -> list[tuple[Any, bool]]:
    """Return the variables of cells, each with whether it is trained."""
    return [
        (variable, trained)
        for cell in cells
        if isinstance(cell, Layer)
        for trained, variables in ((True, cell.trainable_weights), (False, cell.non_trainable_weights))
        for variable in variables
    ]
