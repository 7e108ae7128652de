"""Recurrent nets over a list of inputs, with nodes of their own for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from aioflow.arguments import check_list
from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list
from aioflow.ops.array.order import reverse_sequence
from aioflow.ops.core import identity
from aioflow.ops.rnn.cells import batch_size_of, check_cell
from aioflow.ops.rnn.steps import dtype_of, initial_state_of, lengths_of, step, zero_outputs
from aioflow.ops.scoping import control_dependencies
from aioflow.ops.variables.scope import VariableScope, variable_scope


class StateSaver(Protocol):
    """Storage of states between steps of a session."""

    def state(self, name: str) -> Tensor:
        """Return the stored state."""

    def save_state(self, name: str, value: Tensor) -> Operation | Tensor:
        """Return a node that stores the state."""


def static_rnn(
    cell: Any,
    inputs: Sequence[Any],
    initial_state: Any = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike | None = None,
    scope: str | VariableScope | None = None,
) -> tuple[list[Any], Any]:
    """Apply a cell to each input in turn.

    Args:
        cell: A cell of `nn.rnn_cell`, or an object like one.
        inputs: A list of tensors [batch, features], or of structures of them.
        initial_state: The state to begin with; zeros of `dtype` if not given.
        dtype: Dtype of the state; needed without `initial_state`.
        sequence_length: [batch] number of inputs of each sequence. Later outputs are zeros, and the state stays.
        scope: Variable scope; "rnn" if not given.

    Returns:
        A list of outputs, and the final state.

    Raises:
        DTypeError: `cell` is not a cell, or `inputs` is not a list.
        InvalidArgumentError: there are no inputs, or state and dtype are missing.
    """
    check_cell(cell)
    check_list(inputs, "inputs")
    if not inputs:
        raise InvalidArgumentError("there are no inputs", expected="at least one", actual=inputs)
    with variable_scope(scope or "rnn") as opened:
        steps = [nest.map_structure(convert_to_tensor, each) for each in inputs]
        batch = batch_size_of(nest.flatten(steps), 0)
        state = initial_state_of(cell, initial_state, batch, dtype)
        lengths = zeros = None
        if sequence_length is not None:
            lengths = lengths_of(sequence_length)
            zeros = zero_outputs(cell, batch, dtype_of(dtype, state))
        outputs = []
        for time, each in enumerate(steps):
            if time:
                opened.reuse_variables()
            output, state = step(lambda each=each, state=state: cell(each, state), time, lengths, zeros, state)  # type: ignore[misc]  # mypy infers no lambda with defaults
            outputs.append(output)
        return outputs, state


def static_state_saving_rnn(
    cell: Any,
    inputs: Sequence[Any],
    state_saver: StateSaver,
    state_name: Any,
    sequence_length: TensorLike | None = None,
    scope: str | VariableScope | None = None,
) -> tuple[list[Any], Any]:
    """Apply a cell to each input in turn, beginning with the stored state, and store the last.

    Args:
        cell: As for `static_rnn`.
        inputs: As for `static_rnn`.
        state_saver: An object with the methods `state(name)` and `save_state(name, value)`.
        state_name: The state's name, or names in a structure like `cell.state_size`.
        sequence_length: As for `static_rnn`.
        scope: As for `static_rnn`.

    Returns:
        A list of outputs, and the final state. The last output and the state wait for the storage.

    Raises:
        InvalidArgumentError: the names do not fit the state.
    """
    sizes, names = nest.flatten(cell.state_size), nest.flatten(state_name)
    if nest.is_nested(cell.state_size) != nest.is_nested(state_name) or len(sizes) != len(names):
        raise InvalidArgumentError(
            "state_name does not fit the state", expected=nest.describe(cell.state_size), actual=repr(state_name)
        )
    stored = nest.pack(cell.state_size, [state_saver.state(name) for name in names])
    outputs, state = static_rnn(cell, inputs, stored, sequence_length=sequence_length, scope=scope)
    saved = [state_saver.save_state(name, part) for name, part in zip(names, nest.flatten(state), strict=True)]
    with control_dependencies(saved):
        outputs[-1] = nest.map_structure(identity, outputs[-1])
        return outputs, nest.map_structure(identity, state)


def static_bidirectional_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Sequence[Any],
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike | None = None,
    scope: str | VariableScope | None = None,
) -> tuple[list[Any], Any, Any]:
    """Apply a cell to the inputs in order, and another one in reverse order.

    Args:
        cell_fw: The cell for the inputs in order.
        cell_bw: The cell for the inputs in reverse order.
        inputs: As for `static_rnn`.
        initial_state_fw: As for `static_rnn`.
        initial_state_bw: As for `static_rnn`.
        dtype: As for `static_rnn`.
        sequence_length: As for `static_rnn`; each sequence is reversed by itself.
        scope: Variable scope; "bidirectional_rnn" if not given.

    Returns:
        A list of the outputs of both, joined along the last axis, and both final states.
    """
    check_cell(cell_fw, "cell_fw")
    check_cell(cell_bw, "cell_bw")
    check_list(inputs, "inputs")
    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as forward:
            ahead, state_fw = static_rnn(cell_fw, inputs, initial_state_fw, dtype, sequence_length, forward)
        with variable_scope("bw") as backward:
            turned = _reversed(inputs, sequence_length)
            back, state_bw = static_rnn(cell_bw, turned, initial_state_bw, dtype, sequence_length, backward)
    both = zip(ahead, _reversed(back, sequence_length), strict=True)
    outputs = [nest.map_structure(lambda x, y: make("ConcatV2", [x, y], 1), *pair) for pair in both]
    return outputs, state_fw, state_bw


def _reversed(steps: Sequence[Any], sequence_length: TensorLike | None) -> list[Any]:
    """Return the steps in reverse order, where each sequence of the batch is reversed up to its length."""
    if sequence_length is None:
        return list(reversed(steps))
    columns = zip(*map(nest.flatten, steps), strict=True)
    turned = [
        make_list("Unpack", reverse_sequence(make("Pack", list(column), axis=0), sequence_length, 0, 1), num=len(steps))
        for column in columns
    ]
    return [nest.pack(steps[0], row) for row in zip(*turned, strict=True)]
