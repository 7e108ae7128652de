"""One signature of a model as an async callable of arrays, with or without batching.

Batching requires that rows do not depend on one another. Steps with random rows, together and alone, test it. Calls
without batching pass an admission: a concurrency limit and a bounded queue (`CallLimit`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from time import perf_counter
from typing import Final

import numpy as np

from aioflow.compiler.rows import row_verdict
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.graph import dtypes
from aioflow.graph.arrays import blank
from aioflow.graph.graph import Tensor
from aioflow.interop.model import Signature
from aioflow.memory.values import Array, Value
from aioflow.serve.options import ModelOptions
from aioflow.session.batching import BatchStatistics
from aioflow.session.session import Session
from aioflow.sync.batch_driver import Tally

# ── an experiment that tests whether rows depend on one another ───────────────────────────────────────────────────────


_LOG: Final = logging.getLogger("aioflow.serve")
_ROWS: Final = 3
_SIZES: Final = (5, 1)  # values for unknown sizes other than the first; 1 if a model rejects the other
_WORDS: Final = (True, False)  # texts with a different number of words per row; numbers only if a model rejects that
_ROUNDING: Final = 1e-3  # relative to the largest value in a column: matrix products round differently for other sizes
_COARSE: Final = 3e-2  # for 16-bit dtypes
_NOISE: Final = 1e-3  # relative to that, for the largest value of all: a column may be a difference of large numbers


async def _mixed_rows(session: Session, signature: Signature) -> str:
    """Return how steps of two and three rows differ from steps of single rows, or fail; "" if they do neither."""
    inputs = list(signature.inputs.values())
    step = session.make_callable(list(signature.outputs.values()), inputs)
    failure: OpError | None = None
    for size, words in product(_SIZES, _WORDS if any(each.dtype is dtypes.string for each in inputs) else (False,)):
        # A fixed seed: the verdict must not change between two starts of the same service.
        rng = np.random.default_rng(0)
        fed = [_random_rows(tensor, size, words, rng) for tensor in inputs]
        try:
            alone = [await step(*(each[row : row + 1] for each in fed)) for row in range(_ROWS)]
            together = [await step(*(each[:rows] for each in fed)) for rows in range(2, _ROWS + 1)]
        except OpError as error:
            failure = error
            continue
        apart = all(_agree(values, alone[:rows]) for rows, values in enumerate(together, 2))
        return "" if apart else "rows that are computed together give something else than alone"
    return f"steps with random rows failed: {failure}"


def _random_rows(tensor: Tensor, size: int, words: bool, rng: np.random.Generator) -> Array:
    """Return three random rows without zeros.

    Floats: one row of positive values, one of negative ones, one of both. Integers: small ones. Texts: rows of one, two
    and three numbers if `words`, else of one number each.
    """
    dims = tensor.dims or (None,)
    shape = (_ROWS, *(size if each is None else each for each in dims[1:]))
    dtype = tensor.dtype
    if dtype is dtypes.string:
        texts = rng.choice(np.array([b"1", b"2", b"3"], object), shape)
        for row in range(words, words * _ROWS):
            texts[row] += b" 12" * row
        return texts
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        return rng.integers(1, 3, shape).astype(dtype.np_dtype)
    # Away from zero, where many functions are flat and a dependence between rows would not show.
    made = rng.uniform(0.1, 1.0, shape)
    made[1] *= -1
    made[2] *= rng.choice([-1, 1], shape[1:])
    return made.astype(dtype.np_dtype)


def _agree(together: Sequence[Value], alone: Sequence[Sequence[Value]]) -> bool:
    """Return True if each output of a step is the concatenation of its rows' outputs along axis 0."""
    parts = zip(*alone, strict=True)
    return all(_is_joined(np.asarray(v), list(map(np.asarray, each))) for v, each in zip(together, parts, strict=True))


def _is_joined(value: Array, parts: Sequence[Array]) -> bool:
    if any(not part.shape or part.shape != (1, *value.shape[1:]) for part in parts) or len(value) != len(parts):
        return False
    wanted = np.concatenate(parts)
    # "V" is the kind of ml_dtypes' bfloat16.
    if value.dtype.kind not in "fcV":
        return bool(np.array_equal(value, wanted))
    rounding = _ROUNDING if value.dtype.itemsize > 2 else _COARSE
    kind = np.complex128 if value.dtype.kind == "c" else np.float64
    value, wanted = value.astype(kind), wanted.astype(kind)
    # NaN and infinities are compared as such, and must not blow up the scale of the others.
    sizes = np.where(np.isfinite(wanted), np.abs(wanted), 0.0)
    # The tolerance is per column of the last axis, because columns may have different units.
    largest = np.max(sizes, axis=tuple(range(max(1, sizes.ndim - 1))), initial=0.0)
    scale = np.maximum(largest, _NOISE * np.max(largest, initial=0.0))
    return bool(np.all(np.isclose(value, wanted, rtol=rounding, atol=rounding * scale, equal_nan=True)))


# ── admission of calls that cannot share a step: a concurrency limit and a bounded priority queue ─────────────────────
#
# Waiters are futures in a heap. A cancelled waiter stays in the heap and is skipped when it is popped.

_WEIGHT: Final = 0.2  # weight of the newest call in the moving average of durations


class CallLimit:
    """A concurrency limit for calls on one event loop.

    Args:
        concurrency: Maximum number of calls that compute at once.
        limit: Maximum number of calls that wait.

    Attributes:
        running, waiting: Current number of calls that compute, and that wait.
    """

    def __init__(self, concurrency: int, limit: int) -> None:
        self._concurrency = concurrency
        self._limit = limit
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._seconds = 0.0  # moving average of a call's duration
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, priority: int = 0) -> AsyncIterator[float]:
        """Wait for a slot and hold it inside the block; yield the seconds waited.

        Args:
            priority: Lower numbers go first; calls of equal priority go in order of arrival.

        Raises:
            ResourceExhaustedError: the queue is full; the error's `retry_after` estimates when there will be room.
        """
        arrived = perf_counter()
        # A free slot implies an empty queue, because `_hand_on` frees a slot only when no live waiter is left.
        if self.running < self._concurrency:
            self.running += 1
        else:
            await self._wait(priority)
        begun = perf_counter()
        try:
            yield begun - arrived
        finally:
            taken = perf_counter() - begun
            # The first call sets the average outright: starting from zero would underestimate it for many calls.
            self._seconds += (taken - self._seconds) * (_WEIGHT if self._seconds else 1.0)
            self._hand_on()

    async def _wait(self, priority: int) -> None:
        if self.waiting >= self._limit:
            error = ResourceExhaustedError(
                "too many requests are waiting", expected=f"at most {self._limit}", actual=self.waiting
            )
            # The queue drains at `concurrency` calls per average duration.
            error.retry_after = self._seconds * self.waiting / self._concurrency
            raise error
        turn = asyncio.get_running_loop().create_future()
        # The number breaks ties in order of arrival; futures themselves cannot be compared.
        heapq.heappush(self._heap, (priority, next(self._numbers), turn))
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            # The slot was handed over just before the cancellation: pass it on, or it is lost.
            if turn.done() and not turn.cancelled():
                self._hand_on()
            raise
        finally:
            self.waiting -= 1

    def _hand_on(self) -> None:
        """Pass the slot of a call that has ended to the first live waiter, or free it."""
        while self._heap:
            turn = heapq.heappop(self._heap)[2]
            if not turn.done():
                turn.set_result(None)
                # `running` stays as it is: the slot has changed hands.
                return
        self.running -= 1


# ── the callable ──────────────────────────────────────────────────────────────────────────────────────────────────────


class SignatureCalls(ABC):
    """The calls of one signature."""

    @property
    @abstractmethod
    def is_batched(self) -> bool:
        """True if several requests may share a step."""

    @abstractmethod
    async def __call__(self, arrays: list[Array], timeout: float | None, priority: int) -> dict[str, Array]:
        """Return the outputs by name, given one array per input in the order of the signature.

        Raises:
            DeadlineExceededError: the timeout, in seconds, expired.
            ResourceExhaustedError: the queue is full.
            OpError: as for `Session.run`.
        """

    @abstractmethod
    def statistics(self) -> BatchStatistics:
        """Return the statistics so far. Without batching, each request counts as a batch of one row."""

    @abstractmethod
    async def warmup(self) -> None:
        """Run the steps that requests will use most, with zeros as inputs."""


async def open_call(session: Session, signature: Signature, options: ModelOptions, model: str) -> SignatureCalls:
    """Return a call of a signature, batched if possible. If it is not, log the reason with the name of the model."""
    why = await _why_not_batched(session, signature, options)
    if not why:
        return BatchedCalls(session, signature, options)
    _LOG.info("model %s: requests share no steps: %s", model, why)
    return SingleCalls(session, signature, options)


async def _why_not_batched(session: Session, signature: Signature, options: ModelOptions) -> str:
    """Return the reason why requests must not share a step; "" if they may."""
    inputs, outputs = list(signature.inputs.values()), list(signature.outputs.values())
    if options.batch == "never":
        return "batch is never"
    if not inputs or not outputs:
        return f"the signature has no {'outputs' if inputs else 'inputs'}"
    for what, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for name, tensor in tensors.items():
            if tensor.dims is not None and not tensor.dims:
                return f"{what} {name!r} is a scalar"
            if tensor.dims is not None and tensor.dims[0] is not None:
                return f"the first size of {what} {name!r} is {tensor.dims[0]}"
    if options.batch == "always":
        return ""
    # The analysis visits every op of the graph, which would block the event loop for a large model.
    found = await in_thread(row_verdict, inputs, outputs, effects=False)
    if found.is_proven:
        return ""
    # The experiment runs steps, so it is tried only if steps change nothing and may run before the model is ready.
    if not (found.is_refuted or found.changes) and options.batch == "auto" and options.warmup:
        return await _mixed_rows(session, signature)
    return str(found)


def zeros(inputs: Mapping[str, Tensor], rows: int) -> list[Array]:
    """Return an array of zeros for each input, with `rows` for an unknown first size and 1 for other unknown sizes."""
    made = []
    for tensor in inputs.values():
        dims = tensor.dims or ()
        shape = tuple((1 if axis else rows) if size is None else size for axis, size in enumerate(dims))
        made.append(blank(shape, tensor.dtype.np_dtype))
    return made


class SingleCalls(SignatureCalls):
    """Calls without batching: each request is a step of its own."""

    def __init__(self, session: Session, signature: Signature, options: ModelOptions) -> None:
        self._signature = signature
        self._step = session.make_callable(dict(signature.outputs), list(signature.inputs.values()))
        self._turns = CallLimit(options.max_concurrent_batches, options.max_batch_size * options.max_enqueued_batches)
        self._tally = Tally()

    @property
    def is_batched(self) -> bool:
        return False

    async def __call__(self, arrays: list[Array], timeout: float | None, priority: int) -> dict[str, Array]:
        tally = self._tally
        try:
            # Includes the wait for a turn: the client's clock runs from the request, not from the step.
            async with asyncio.timeout(timeout) as scope:
                found = await self._computed(arrays, priority)
        except TimeoutError as error:
            if isinstance(error, OpError) or not scope.expired():
                tally.failed += 1  # the step's own error
                raise
            tally.expired += 1
            raise DeadlineExceededError(
                "the request was not answered in time", expected=f"at most {timeout} s", actual="still waiting"
            ) from error
        except asyncio.CancelledError:
            tally.cancelled += 1
            raise
        except ResourceExhaustedError as error:
            # A full queue sets `retry_after`; a step that has no memory does not.
            tally.rejected += error.retry_after is not None
            tally.failed += error.retry_after is None
            raise
        except Exception:
            tally.failed += 1
            raise
        tally.answered += 1
        return found

    async def _computed(self, arrays: list[Array], priority: int) -> dict[str, Array]:
        async with self._turns.turn(priority) as waited:
            begun = perf_counter()
            values: dict[str, Array] = await self._step(*arrays)
            self._tally.queue_seconds += waited
            self._tally.computed(1, perf_counter() - begun)
        # A step may return NumPy scalars, while the encoders expect arrays.
        return {name: np.asarray(value) for name, value in values.items()}

    def statistics(self) -> BatchStatistics:
        self._tally.running = self._turns.running
        return self._tally.statistics(self._turns.waiting, self._turns.waiting)

    async def warmup(self) -> None:
        await self._step(*zeros(self._signature.inputs, 1))


class BatchedCalls(SignatureCalls):
    """Batched calls. Once a step returns another number of rows than it was fed, each request becomes its own step."""

    def __init__(self, session: Session, signature: Signature, options: ModelOptions) -> None:
        self._batched = session.batched(
            dict(signature.outputs),
            list(signature.inputs.values()),
            max_batch_size=options.max_batch_size,
            batch_timeout=options.batch_timeout,
            max_enqueued_batches=options.max_enqueued_batches,
            max_concurrent_batches=options.max_concurrent_batches,
            allowed_batch_sizes=options.allowed_batch_sizes,
            pad={signature.inputs[name]: value for name, value in options.pad.items() if name in signature.inputs},
            unchecked=True,
        )
        self._single = SingleCalls(session, signature, options)
        self._retried = 0  # requests that have failed in a batch and run again, alone

    @property
    def is_batched(self) -> bool:
        return self._batched.uneven is None

    async def __call__(self, arrays: list[Array], timeout: float | None, priority: int) -> dict[str, Array]:
        begun = perf_counter()
        # A request without rows cannot be cut out of a batch, so it becomes a step of its own.
        if self.is_batched and all(np.shape(array)[:1] != (0,) for array in arrays):
            try:
                found: dict[str, Array] = await self._batched(*arrays, timeout=timeout, priority=priority)
            except InvalidArgumentError:
                # The request itself is valid if the step returned another number of rows: run it again, alone.
                if self._batched.uneven is None or not await self._batched.is_repeatable():
                    raise
                self._retried += 1
            else:
                return found
        # Time that the failed batch has used counts against the client's limit.
        left = None if timeout is None else timeout - (perf_counter() - begun)
        return await self._single(arrays, left, priority)

    def statistics(self) -> BatchStatistics:
        batched = self._batched.statistics()
        # The second run of a request counts its outcome.
        return replace(batched, failed=batched.failed - self._retried) + self._single.statistics()

    async def warmup(self) -> None:
        await self._batched.warmup()
