"""Steps of a model that declares its loop over tokens. States of all streams are arrays with a row for each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from aioflow.errors import DataLossError, ResourceExhaustedError
from aioflow.graph.graph import Tensor
from aioflow.interop.model import Model, Signature, TokenLoop, TokenState
from aioflow.interop.token_loop import vocabulary_of
from aioflow.memory.values import Array
from aioflow.session.session import Session

PIECE: Final = 32  # tokens of a prompt that are read at once


class TokenSteps:
    """The computation of an engine: a model whose `token_loop` is set.

    Args:
        session: Session of the model's graph, with initialized variables.
        model: The model.
        slots: Maximum number of streams.

    Attributes:
        piece: Number of tokens of a prompt that are read at once.
    """

    def __init__(self, session: Session, model: Model, loop: TokenLoop, slots: int) -> None:
        self.positions = loop.max_length
        self.vocabulary = vocabulary_of(loop, model.signatures)
        self.end_token = loop.end_token
        step, prompt = model.signatures[loop.step], model.signatures[loop.prompt or loop.step]
        self.piece = 1 if (prompt.inputs[loop.tokens].dims or ())[-1:] == (1,) else PIECE
        self._loop = loop
        self._lengths = np.zeros(slots, np.int64)
        self._step, self._prompt = (_Call(session, each, loop, self.vocabulary) for each in (step, prompt))
        self._states = [_State(each, step.inputs[each.input], slots, loop.max_length) for each in loop.states]

    def clear(self, slot: int) -> None:
        """Clear a slot for a new stream."""
        for state in self._states:
            state.clear(slot, int(self._lengths[slot]))
        self._lengths[slot] = 0

    async def read(self, slot: int, tokens: Sequence[int]) -> Array:
        """Read the next tokens of a prompt in a slot; return the logits [V] of the following token."""
        past, rows = int(self._lengths[slot]), slice(slot, slot + 1)
        states = [state.past(rows, past) for state in self._states]
        logits, new = await self._prompt([tokens], self._lengths[rows], states)
        self._keep(new, slot, 0, len(tokens))
        row: Array = logits[0]
        return row

    async def write(self, tokens: Mapping[int, int]) -> Mapping[int, Array]:
        """Read one token in each of some slots, in one step; return the logits [V] of the following token for each.

        The step includes all slots up to the last one used, since contiguous rows are fed without a copy. It treats the
        other slots as empty, and their results are ignored.
        """
        count, slots = max(tokens) + 1, list(tokens)
        lengths = np.zeros(count, np.int64)
        lengths[slots] = self._lengths[slots]
        states = [state.past(slice(count), int(lengths.max())) for state in self._states]
        logits, new = await self._step([[tokens.get(slot, 0)] for slot in range(count)], lengths, states)
        for slot in slots:
            self._keep(new, slot, slot, 1)
        return {slot: logits[slot] for slot in slots}

    def _keep(self, new: Sequence[Array], slot: int, row: int, count: int) -> None:
        """Store the states that a step has returned in `row`, for the stream in `slot`, after `count` new tokens."""
        for state, values in zip(self._states, new, strict=True):
            state.add(values, slot, row, int(self._lengths[slot]), count)
        self._lengths[slot] += count


class _Call:
    """A signature as a callable of tokens, lengths and states."""

    def __init__(self, session: Session, signature: Signature, loop: TokenLoop, vocabulary: int) -> None:
        names = [loop.tokens, *([loop.lengths] if loop.lengths else []), *(state.input for state in loop.states)]
        inputs = [signature.inputs[name] for name in names]
        outputs = [signature.outputs[name] for name in (loop.logits, *(state.output for state in loop.states))]
        self._step = session.make_callable(outputs, inputs)
        self._dtypes = [each.dtype.np_dtype for each in inputs]
        self._vocabulary = vocabulary
        self._has_lengths = loop.lengths is not None

    async def __call__(
        self, tokens: Sequence[Sequence[int]], lengths: Array, states: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        """Return the logits [rows, V], and the outputs of the states."""
        fed = [np.array(tokens, self._dtypes[0])]
        if self._has_lengths:
            fed.append(lengths.astype(self._dtypes[1]))
        logits, *new = await self._step(*fed, *states)
        if np.shape(logits) != (len(tokens), self._vocabulary):
            raise DataLossError(
                "a step has returned logits of another shape",
                expected=[len(tokens), self._vocabulary],
                actual=list(np.shape(logits)),
            )
        return logits, new


class _State:
    """One state of all streams."""

    def __init__(self, state: TokenState, tensor: Tensor, slots: int, max_length: int) -> None:
        sizes = {state.row_axis: slots, state.length_axis: max_length}
        shape = [sizes.get(axis, size) for axis, size in enumerate(tensor.dims or ())]
        try:
            # Pages that have not been written use no memory.
            self._values = np.zeros([size or 0 for size in shape], tensor.dtype.np_dtype)
        except (MemoryError, ValueError) as error:  # NumPy raises a ValueError for more than the address space
            raise ResourceExhaustedError(
                f"there is no memory for state {state.input!r} of a token loop",
                expected="fewer streams at once (max_batch_size), or a smaller max_length",
                actual=f"{tensor.dtype.name} {shape}",
            ) from error
        self._rows, self._length = state.row_axis, state.length_axis

    def _part(self, array: Array, rows: slice | int, lengths: slice = slice(None)) -> Array:
        """Return a view of some rows and lengths of an array; an int keeps its axis."""
        index = [slice(None)] * array.ndim
        index[self._rows] = slice(rows, rows + 1) if isinstance(rows, int) else rows
        if self._length is not None:
            index[self._length] = lengths
        part: Array = array[tuple(index)]
        return part

    def past(self, rows: slice, length: int) -> Array:
        """Return the values to feed for some slots, up to a length."""
        return self._part(self._values, rows, slice(length))

    def add(self, new: Array, slot: int, row: int, length: int, count: int) -> None:
        """Store a row of an output: `count` entries behind the `length` entries of a slot, or instead of them."""
        part = self._part(new, row)
        kept = self._part(self._values, slot, slice(length, length + count))
        if part.shape != kept.shape:
            raise DataLossError(
                "a step has returned a state of another shape", expected=list(kept.shape), actual=list(part.shape)
            )
        kept[:] = part

    def clear(self, slot: int, length: int) -> None:
        """Clear a slot."""
        # Models hide the rest by factors of 0, which do not remove infinities, so they are overwritten.
        self._part(self._values, slot, slice(length))[:] = 0
