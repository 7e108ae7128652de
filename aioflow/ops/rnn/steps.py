"""Parts of static and dynamic recurrent nets: states to begin with, and steps of sequences that have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import format_dims
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.selection import where
from aioflow.ops.array.tensor_array import TensorArray
from aioflow.ops.rnn.cells import zeros_of


def initial_state_of(cell: Any, state: Any, batch_size: int | Tensor, dtype: DTypeLike | None) -> Any:
    """Return the state to begin with: the given one, or zeros.

    Raises:
        InvalidArgumentError: neither a state nor a dtype is given.
    """
    if state is not None:
        return nest.map_structure(
            lambda part: part if isinstance(part, TensorArray) else convert_to_tensor(part), state
        )
    if dtype is None:
        raise InvalidArgumentError(
            "without initial_state the dtype of the state must be given", expected="dtype=", actual=None
        )
    if hasattr(cell, "zero_state"):
        return cell.zero_state(batch_size, dtype)
    return cell.get_initial_state(inputs=None, batch_size=batch_size, dtype=dtype)


def dtype_of(dtype: DTypeLike | None, state: Any) -> DType:
    """Return the dtype of outputs: the given one, or that of the state.

    Raises:
        InvalidArgumentError: the parts of the state have several dtypes, or it has no parts.
    """
    if dtype is not None:
        return as_dtype(dtype)
    found = {part.dtype for part in nest.flatten(state)}
    if len(found) != 1:
        raise InvalidArgumentError(
            "the dtype of the outputs does not follow from the state",
            expected="dtype=, or a state of one dtype",
            actual=sorted(each.name for each in found),
        )
    kind: DType = found.pop()
    return kind


def zero_outputs(cell: Any, batch_size: int | Tensor, dtype: DType) -> Any:
    """Return zeros in a structure like the cell's outputs."""
    return nest.map_structure(lambda size: zeros_of(batch_size, size, dtype), cell.output_size)


def lengths_of(sequence_length: TensorLike) -> Tensor:
    """Return the lengths of sequences, an int32 vector.

    Raises:
        InvalidArgumentError: it is not a vector.
    """
    given = convert_to_tensor(sequence_length, name="sequence_length")
    if given.dims is not None and len(given.dims) != 1:
        raise InvalidArgumentError(
            "sequence_length must have one element per sequence", expected="a vector", actual=format_dims(given.dims)
        )
    return given if given.dtype.name == "int32" else make("Cast", given, DstT="int32")


def step(
    call: Callable[[], tuple[Any, Any]], time: TensorLike, lengths: Tensor | None, zeros: Any, state: Any
) -> tuple[Any, Any]:
    """Return the output and the next state of a step; a sequence that has ended gives zeros and keeps its state."""
    output, after = call()
    if lengths is None:
        return output, after
    ended = make("GreaterEqual", time, lengths)
    return copied(ended, zeros, output), copied(ended, state, after)


def copied(ended: Tensor, old: Any, new: Any) -> Any:
    """Return the rows of `old` where a sequence has ended, and the others of `new`; arrays and scalars of `new`."""

    def chosen(before: Any, after: Any) -> Any:
        if isinstance(before, TensorArray):
            return after
        kept, made = convert_to_tensor(before), convert_to_tensor(after)
        if kept.dims == ():
            return made
        result = where(ended, kept, made)
        result.set_shape(kept.dims)
        return result

    return nest.map_structure(chosen, old, new)
