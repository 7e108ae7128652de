"""Kernels of Batch and Unbatch, where one of the steps carries the batch."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from aioflow.errors import DeadlineExceededError, InvalidArgumentError
from aioflow.kernels.batching.queues import BatchLine, Turn, check_rows, concatenated, line_finder
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, binder
from aioflow.kernels.resources import resource_finder
from aioflow.memory.values import Array, Value
from aioflow.sync.batches import Piece
from aioflow.sync.unbatch import CollectCore, Collecting, Share, ShareCore
from aioflow.sync.waiting import Waiting, wake_all

_COLUMNS: Final = 3  # columns of an index: the number of a step, and the begin and end of its rows


def _number() -> int:
    """Return a number that is unique among the steps of all processes."""
    return secrets.randbits(63)


class CarriedLine(BatchLine):
    """The queue of rows that wait to form a batch.

    A payload holds the arrays and the step's number. The last step of a batch carries it; the others get no rows.
    """

    async def _results(self, pieces: list[Piece]) -> list[Array]:
        rows = sum(piece.end - piece.begin for piece in pieces)
        count = len(pieces[0].request.payload) - 1
        return await concatenated(pieces, count, self._core.policy.padded(rows))

    async def _is_repeatable(self, pieces: list[Piece]) -> bool:
        return True

    def _shares(self, results: list[Array], pieces: list[Piece]) -> Iterator[list[Any]]:
        for piece in pieces[:-1]:
            # Empty slices keep the dtype and the inner shape of the results.
            yield _carried([each[:0] for each in results], [], piece.request.payload[-1])
        index, at = [], 0
        for request, begin, end in pieces:
            index.append((request.payload[-1], at, at + end - begin))
            at += end - begin
        yield _carried(results, index, pieces[-1].request.payload[-1])


def _carried(arrays: Sequence[Array], index: Sequence[tuple[int, int, int]], number: int) -> list[Any]:
    """Return the outputs of `Batch`: the arrays, the index and the step's number."""
    return [*arrays, np.array(index, np.int64).reshape(-1, _COLUMNS), np.int64(number)]


@binder("Batch", device="CPU", is_async=True)
def batch(binding: Binding) -> Callable[[Sequence[Array]], tuple[Value, ...] | Turn]:
    find = line_finder(CarriedLine, binding)
    most, queue = binding.attrs["max_batch_size"], binding.attrs["batching_queue"]

    async def together(line: CarriedLine, rows: int, tensors: Sequence[Array]) -> tuple[Value, ...]:
        kind = (queue, tuple(tensor.shape[1:] for tensor in tensors))
        return tuple(await line.answer(rows, (*tensors, _number()), kind))

    def call(tensors: Sequence[Array]) -> tuple[Value, ...] | Turn:
        rows = check_rows(tensors, most)
        if not rows:
            # A step without rows does not wait, and carries an index of itself alone.
            number = _number()
            return tuple(_carried(tensors, [(number, 0, 0)], number))
        line = find()
        return Turn(partial(together, line, rows, tensors), line.describe)

    return call


def _rows_of(index: Array) -> list[tuple[int, int, int]]:
    """Return the number, begin and end of each step in a batch. Raise InvalidArgumentError for a malformed index."""
    if index.ndim != 2 or index.shape[1] != _COLUMNS:
        raise InvalidArgumentError("batch_index has the wrong shape", expected=f"[n, {_COLUMNS}]", actual=index.shape)
    return [(int(number), int(begin), int(end)) for number, begin, end in index.tolist()]


@binder("Unbatch", device="CPU", is_async=True, retains=True, host={"id": as_int})
def unbatch(binding: Binding) -> Callable[[Array, Array, int], Array | Turn]:
    seconds = binding.attrs["timeout_micros"] * 1e-6
    find = resource_finder(ShareCore, binding, lambda name: ShareCore(name, seconds))

    async def wait(core: ShareCore, number: int) -> Array:
        try:
            async with asyncio.timeout(seconds):
                found: Array = await Waiting(core.submit, core.withdraw, partial(Share, number), core.describe)
                return found
        except TimeoutError:
            raise DeadlineExceededError(
                "the batch did not arrive in time", expected=f"within {seconds} s", actual="no result for this step"
            ) from None

    def call(batched: Array, index: Array, number: int) -> Array | Turn:
        core = find()
        rows = _rows_of(index)
        if rows and (np.ndim(batched) == 0 or len(batched) < rows[-1][2]):
            raise InvalidArgumentError(
                "the batch has fewer rows than its index", expected=f">= {rows[-1][2]}", actual=np.shape(batched)
            )
        shares = {each: batched[begin:end] for each, begin, end in rows}
        # The carrier's own share is returned at once; only those of other steps pass through the core.
        own = shares.pop(number, None)
        wake_all(core.bring(shares, asyncio.get_running_loop().time()))
        return own if own is not None else Turn(partial(wait, core, number), core.describe)

    return call


@binder("UnbatchGrad", device="CPU", is_async=True, retains=True, host={"id": as_int})
def unbatch_grad(binding: Binding) -> Callable[[Array, Array, Array, int], Array | Waiting]:
    find = resource_finder(CollectCore, binding, CollectCore)

    def call(original: Array, index: Array, grad: Array, number: int) -> Array | Waiting:
        core = find()
        rows = _rows_of(index)
        wake_all(core.bring(number, grad, asyncio.get_running_loop().time()))
        if not rows:
            # This step carried no batch, so its `original` has no rows.
            return grad[:0]
        finish = partial(_whole, len(original))
        # Unlike `Unbatch`, the op has no timeout in TensorFlow: the wait is limited by the step's own.
        return Waiting(
            core.submit, core.withdraw, partial(Collecting, tuple(r[0] for r in rows)), core.describe, finish
        )

    return call


def _whole(rows: int, grads: Sequence[Array]) -> Array:
    """Return the gradient of a batch of `rows` rows, with zeros for the padding."""
    filled = rows - sum(len(grad) for grad in grads)
    if filled <= 0:
        return np.concatenate(grads)
    return np.concatenate([*grads, np.zeros((filled, *grads[0].shape[1:]), grads[0].dtype)])
