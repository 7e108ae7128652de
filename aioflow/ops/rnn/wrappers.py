"""Cells around cells: dropout, residual connections, devices."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.graph import DeviceLike, Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.graph.static_value import constant_value
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.tensor_array import TensorArray
from aioflow.ops.core import stop_gradient
from aioflow.ops.math.random import random_uniform
from aioflow.ops.nn.layers import dropout as nn_dropout
from aioflow.ops.rnn.cells import LSTMStateTuple, RNNCell, check_cell, known_sizes, weights_of
from aioflow.ops.scoping import device, name_scope
from aioflow.ops.variables.scope import VariableScope


class _Wrapper(RNNCell):
    """A cell that computes with another cell, in that cell's variable scope."""

    def __init__(self, cell: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_cell(cell)
        self.cell = cell

    @property
    def wrapped_cell(self) -> Any:
        """The other cell."""
        return self.cell

    @property
    def state_size(self) -> Any:
        """Sizes of the other cell's state."""
        return self.cell.state_size

    @property
    def output_size(self) -> Any:
        """Size of the other cell's output."""
        return self.cell.output_size

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """Return the other cell's state of zeros."""
        with name_scope(f"{type(self).__name__}ZeroState", None):
            return self.cell.zero_state(batch_size, dtype)

    def _tracked(self) -> list[tuple[Any, bool]]:
        return weights_of([self.cell])


class DropoutWrapper(_Wrapper):
    """A cell with dropout of inputs, outputs and states.

    Args:
        cell: The cell.
        input_keep_prob: Probability to keep an element of the inputs, a number or a scalar tensor.
        output_keep_prob: The same for the outputs.
        state_keep_prob: The same for the states that leave the cell.
        variational_recurrent: Whether all steps of a run drop the same elements (arXiv:1512.05287).
        input_size: Sizes of the inputs without the batch; needed for variational dropout of the inputs.
        dtype: Dtype of inputs, states and outputs; needed for variational dropout.
        seed: Seed of the random numbers.
        dropout_state_filter_visitor: A function that tells for a part of the state whether it is dropped: a bool, or a
            structure of bools. By default all but tensor arrays and the memory of an LSTM.

    Raises:
        InvalidArgumentError: a probability is not in [0, 1], or an argument that variational dropout needs is missing.
        DTypeError: `cell` is not a cell, or the visitor is not a function.
    """

    def __init__(
        self,
        cell: Any,
        input_keep_prob: TensorLike = 1.0,
        output_keep_prob: TensorLike = 1.0,
        state_keep_prob: TensorLike = 1.0,
        variational_recurrent: bool = False,
        input_size: Any = None,
        dtype: DTypeLike | None = None,
        seed: int | None = None,
        dropout_state_filter_visitor: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cell, dtype=dtype, **kwargs)
        if dropout_state_filter_visitor is not None and not callable(dropout_state_filter_visitor):
            raise DTypeError(
                "dropout_state_filter_visitor is not a function",
                expected="a function of a part of the state",
                actual=repr(dropout_state_filter_visitor),
            )
        self._filter = dropout_state_filter_visitor or _default_filter
        self._seed = seed
        self._keep: dict[str, float | Tensor] = {
            "input": _probability(input_keep_prob, "input_keep_prob"),
            "state": _probability(state_keep_prob, "state_keep_prob"),
            "output": _probability(output_keep_prob, "output_keep_prob"),
        }
        self._noise: dict[str, Any] = {}
        if not variational_recurrent:
            return
        if dtype is None:
            raise InvalidArgumentError("variational_recurrent needs a dtype", expected="dtype=", actual=None)
        if input_size is None and self._keep["input"] != 1.0:
            raise InvalidArgumentError(
                "variational_recurrent with dropout of inputs needs their size", expected="input_size=", actual=None
            )
        sizes = {"input": input_size, "state": cell.state_size, "output": cell.output_size}
        with name_scope("DropoutWrapperInit", None):
            for salt, size in sizes.items():
                if size is not None:
                    self._noise[salt] = self._noise_of(salt, size, dtype)

    def _noise_of(self, salt: str, sizes: Any, dtype: DTypeLike) -> Any:
        """Return random numbers, the same for each element of the batch and each step of a run."""
        index = count()
        return nest.map_structure(
            lambda size: random_uniform(
                [1, *known_sizes(size)],
                dtype=as_dtype(dtype),
                seed=self._seed_of(salt, next(index)),
            ),
            sizes if isinstance(sizes, int | TensorShape) or nest.is_nested(sizes) else TensorShape(sizes),
        )

    def _seed_of(self, salt: str, index: int) -> int | None:
        if self._seed is None:
            return None
        text = f"{self._seed}{salt}_{index}".encode()
        return int(hashlib.md5(text, usedforsecurity=False).hexdigest()[:8], 16) & 0x7FFFFFFF

    def __call__(self, inputs: Any, state: Any, scope: str | VariableScope | None = None) -> Any:
        """Return the output and the next state, with dropout."""
        inputs = self._dropped("input", inputs, True)
        output, after = self.cell(inputs, state, scope=scope)
        after = self._dropped("state", after, _flags(self._filter, after))
        return self._dropped("output", output, True), after

    def _dropped(self, salt: str, values: Any, flags: Any) -> Any:
        if self._keep[salt] == 1.0:
            return values
        return self._walk(salt, values, flags, self._noise.get(salt), count())

    def _walk(self, salt: str, values: Any, flags: Any, noise: Any, index: Iterator[int]) -> Any:
        """Drop elements of the parts whose flags hold. The number of a part makes its seed."""
        if flags is False:
            next(index)
            return values
        if nest.is_nested(values):
            items = list(nest.items(values))
            inner = [True] * len(items) if flags is True else list(nest.items(flags))
            noises = [None] * len(items) if noise is None else list(nest.items(noise))
            made = [self._walk(salt, *each, index) for each in zip(items, inner, noises, strict=True)]
            return nest.pack(values, [leaf for each in made for leaf in nest.flatten(each)])
        keep, number = self._keep[salt], next(index)
        if noise is None:
            return nn_dropout(values, keep, seed=self._seed_of(salt, number))
        tensor = convert_to_tensor(values)
        share = convert_to_tensor(keep, tensor.dtype)
        # The noise is uniform in [0, 1), so the sum is at least 1 with the probability to keep.
        factor = stop_gradient(make("Floor", share + noise)) / share
        dropped = tensor * factor
        dropped.set_shape(tensor.dims)
        return dropped


def _probability(given: TensorLike, what: str) -> float | Tensor:
    tensor = convert_to_tensor(given)
    known = constant_value(tensor)
    if known is None:
        return tensor
    if not 0 <= known.item() <= 1:
        raise InvalidArgumentError(f"{what} is out of range", expected="0 to 1", actual=known.item())
    return float(known)


def _default_filter(part: Any) -> Any:
    """Choose everything but tensor arrays and the memory of an LSTM."""
    if isinstance(part, LSTMStateTuple):
        return LSTMStateTuple(c=False, h=True)
    return not isinstance(part, TensorArray)


def _flags(choose: Callable[[Any], Any], part: Any) -> Any:
    """Return a bool for each part of a state that is dropped or kept as a whole."""
    chosen = choose(part)
    if not nest.is_nested(part) or chosen is False:
        return bool(chosen)
    items = list(nest.items(part))
    inner = [True] * len(items) if chosen is True else list(nest.items(chosen))
    return tuple(_flags(choose, item) if flag else False for flag, item in zip(inner, items, strict=True))


class ResidualWrapper(_Wrapper):
    """A cell whose outputs are its inputs plus those of another cell.

    Args:
        cell: The cell.
        residual_fn: A function of the inputs and the cell's outputs that returns the outputs; their sum by default.
    """

    def __init__(self, cell: Any, residual_fn: Callable[[Any, Any], Any] | None = None, **kwargs: Any) -> None:
        super().__init__(cell, **kwargs)
        self._residual_fn = residual_fn

    def __call__(self, inputs: Any, state: Any, scope: str | VariableScope | None = None) -> Any:
        """Return the output and the next state."""
        outputs, after = self.cell(inputs, state, scope=scope)
        join = self._residual_fn or (lambda x, y: nest.map_structure(_sum, x, y))
        return join(inputs, outputs), after


def _sum(x: TensorLike, y: Tensor) -> Tensor:
    tensor = convert_to_tensor(x)
    TensorShape(tensor.dims).assert_is_compatible_with(TensorShape(y.dims))
    return tensor + y


class DeviceWrapper(_Wrapper):
    """A cell whose nodes are placed on a device.

    Args:
        cell: The cell.
        device: A name, or a function of the node, as for `aioflow.device`.
    """

    def __init__(self, cell: Any, device: DeviceLike, **kwargs: Any) -> None:
        super().__init__(cell, **kwargs)
        self._device = device

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """Return the other cell's state of zeros, on the device."""
        with device(self._device):
            return super().zero_state(batch_size, dtype)

    def __call__(self, inputs: Any, state: Any, scope: str | VariableScope | None = None) -> Any:
        """Return the output and the next state."""
        with device(self._device):
            return self.cell(inputs, state, scope=scope)
