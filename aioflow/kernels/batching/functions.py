"""The kernel of BatchFunction, which runs a function once for the rows of several steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.kernels.batching.queues import BatchLine, Turn, check_rows, concatenated, line_finder
from aioflow.kernels.registry import Binding, BodySteps, binder
from aioflow.memory.values import Array, Value
from aioflow.sync.batches import Piece

_SMALL: Final = 64  # bytes up to which captured values are compared by content, not by identity


class _Caller(NamedTuple):
    """The function that one step calls on its rows.

    Attributes:
        body: The function.
        captured: Its inputs besides the rows.
    """

    body: BodySteps
    captured: tuple[Value, ...]


class FunctionLine(BatchLine):
    """The queue of rows that wait for a run of their function.

    All rows of a batch have equal functions, so the first one's function runs.
    """

    async def _results(self, pieces: list[Piece]) -> list[Any]:
        *arrays, caller = pieces[0].request.payload
        rows = sum(piece.end - piece.begin for piece in pieces)
        padded = self._core.policy.padded(rows)
        joined = await concatenated(pieces, len(arrays), padded)
        results: list[Any] = await caller.body.run([*joined, *caller.captured])
        for position, result in enumerate(results):
            shape = np.shape(result)
            if not shape or shape[0] != padded:
                raise FailedPreconditionError(
                    f"output {position} of the function does not have the rows of the batch",
                    expected=f"{padded} along axis 0",
                    actual=f"shape {shape}",
                )
        return results

    async def _is_repeatable(self, pieces: list[Piece]) -> bool:
        caller: _Caller = pieces[0].request.payload[-1]
        return caller.body.is_repeatable

    def _shares(self, results: Sequence[Array], pieces: list[Piece]) -> Iterator[list[Array]]:
        at = 0
        for piece in pieces:
            until = at + piece.end - piece.begin
            yield [result[at:until] for result in results]
            at = until


@binder("BatchFunction", device="CPU", is_async=True, opaque=True)
def batch_function(binding: Binding) -> Callable[[Sequence[Array], Sequence[Value]], Turn]:
    body = binding.body
    if body is None:
        raise InvalidArgumentError("the function of the node is not there", expected="a body", actual="none")
    find = line_finder(FunctionLine, binding)
    most, queue = binding.attrs["max_batch_size"], binding.attrs["batching_queue"]
    # The inputs are the rows, and after them the captured values.
    known = binding.constants[len(binding.attrs["Tin"]) :]
    # Constants are hashed once, when the node is bound.
    constants = [None if value is None else _content(value) for value in known]

    async def alone(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(await body.run(values))

    async def together(
        line: FunctionLine, rows: int, tensors: Sequence[Array], captured: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        pairs = zip(constants, captured, strict=True)
        same = tuple(_same(value) if content is None else content for content, value in pairs)
        # Rows share a batch only if their functions compute the same and the rows can be joined.
        kind = (body.digest, queue, same, tuple(tensor.shape[1:] for tensor in tensors))
        return tuple(await line.answer(rows, (*tensors, _Caller(body, captured)), kind))

    def call(tensors: Sequence[Array], captured: Sequence[Value]) -> Turn:
        rows = check_rows(tensors, most)
        if not rows:
            return Turn(partial(alone, [*tensors, *captured]), lambda: "its function")
        line = find()
        return Turn(partial(together, line, rows, tensors, tuple(captured)), line.describe)

    return call


def _same(value: Value) -> Hashable:
    """Return a key that is equal for captured values with which a function computes the same.

    The key is valid only as long as the value is alive, since large values are compared by identity.
    """
    if isinstance(value, np.ndarray | np.generic) and value.nbytes <= _SMALL:
        return _content(value)
    # The queue holds the captured values, so that an id is not reused while rows wait.
    return id(value)


def _content(value: Any) -> Hashable:
    """Return a key that is equal for equal arrays."""
    if value.dtype.hasobject:
        return value.shape, tuple(value.reshape(-1).tolist())
    return value.dtype.str, value.shape, value.tobytes() if value.nbytes <= _SMALL else blake2b(value).digest()
