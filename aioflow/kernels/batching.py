"""Kernels that form batches from the rows of concurrent steps, and the queue in which these rows gather."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

import numpy as np

from aioflow.concurrency.stopping import INLINE_COPY
from aioflow.concurrency.threads import in_thread
from aioflow.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import Binding, BodySteps, binder
from aioflow.kernels.resources import resource_finder
from aioflow.memory.values import Array, Value
from aioflow.sync.background import Background
from aioflow.sync.batch_driver import BatchDriver, WaitingRequest
from aioflow.sync.batches import BatchPolicy, Piece
from aioflow.sync.unbatch import CollectCore, Collecting, Share, ShareCore
from aioflow.sync.waiting import Waiting, wake_all

# ── the queue of rows: a named resource of a device, with a queue for each event loop ─────────────────────────────────


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The settings on which nodes that share a queue must agree.

    Attributes:
        policy: Sizes of batches, their timeout and the length of the queue.
        most: The most rows of one step.
        concurrency: The most batches that run at the same time.
    """

    policy: BatchPolicy
    most: int
    concurrency: int

    @classmethod
    def of(cls, attrs: Attrs) -> Self:
        """Return the settings of a node. Raise InvalidArgumentError if its attributes are invalid."""
        most, allowed = attrs["max_batch_size"], tuple(attrs["allowed_batch_sizes"])
        splits = attrs.get("enable_large_batch_splitting", False)
        if splits and allowed and allowed[-1] > most:
            raise InvalidArgumentError(
                "allowed_batch_sizes exceed max_batch_size", expected=f"sizes up to {most}", actual=list(allowed)
            )
        # With splitting, the rows of a large request fill several batches of the largest allowed size.
        policy = BatchPolicy(
            allowed[-1] if splits and allowed else most,
            attrs["batch_timeout_micros"] * 1e-6,
            attrs["max_enqueued_batches"],
            allowed,
        )
        return cls(policy, most, max(1, attrs["num_batch_threads"]))


class LoopQueue(BatchDriver):
    """The queue of rows from the steps of one event loop."""

    def __init__(self, name: str, settings: BatchSettings) -> None:
        super().__init__(settings.policy, Background(), settings.concurrency, lingers=False)
        self.name = name

    async def answer(self, rows: int, payload: Sequence[Value], kind: Hashable) -> list[Value]:
        """Queue the rows and return their results. On cancellation, wait for batches that no other step needs.

        Raises:
            ResourceExhaustedError: the queue is full.
            OpError: the batch failed.
        """
        loop = asyncio.get_running_loop()
        call = WaitingRequest(rows, payload, kind, 0, loop.create_future())
        self._add(call, loop.time())
        await self._begin_tasks()
        try:
            found: list[Value] = await call.future
            return found
        except asyncio.CancelledError:
            # A batch without other callers is stopped. Its end is awaited, so that no work outlives the step.
            for run in self._leave(call):
                await run.ended()
            raise

    def describe(self) -> str:
        """Return the state in words, for reports."""
        running = sum(len(run.pieces) for run in self._runs)
        return f"batches {self.name!r} (waiting: {self._core.requests} with {self._core.rows} rows; running: {running})"

    def _joined(self, shares: Sequence[list[Array]]) -> list[Array]:
        return [np.concatenate(each) for each in zip(*shares, strict=True)]


class Turn:
    """The awaitable result of a kernel whose rows are in a queue; `describe` reports what it waits for."""

    __slots__ = ("_ask", "describe")

    def __init__(self, ask: Callable[[], Coroutine[object, None, Value]], describe: Callable[[], str]) -> None:
        self._ask = ask
        self.describe = describe

    def __await__(self) -> Generator[object, None, Value]:
        return self._ask().__await__()


class BatchQueue:
    """The queues of one name: one for each event loop."""

    def __init__(self, name: str, kind: type[LoopQueue], settings: BatchSettings) -> None:
        self.name = name
        self.kind = kind
        self.settings = settings
        self._lock = threading.Lock()
        self._queues: dict[asyncio.AbstractEventLoop, LoopQueue] = {}

    def here(self) -> LoopQueue:
        """Return the queue of the running loop, and create it on the first call."""
        loop = asyncio.get_running_loop()
        with self._lock:
            # Under the lock, because event loops run in different threads.
            found = self._queues.get(loop)
            if found is None:
                # Nothing else drops the queues of closed loops.
                self._queues = {other: queue for other, queue in self._queues.items() if not other.is_closed()}
                found = self._queues[loop] = self.kind(self.name, self.settings)
            return found


def queue_finder(kind: type[LoopQueue], binding: Binding) -> Callable[[], Any]:
    """Return a function that finds the queue of the running loop for a node.

    The function raises InvalidArgumentError if the name has other settings or belongs to a queue of another kind.
    """
    settings = BatchSettings.of(binding.attrs)
    find = resource_finder(BatchQueue, binding, lambda name: BatchQueue(name, kind, settings))

    def here() -> LoopQueue:
        queue = find()
        if queue.settings != settings or queue.kind is not kind:
            raise InvalidArgumentError(
                f"batches {queue.name!r} have other settings", expected=queue.settings, actual=settings
            )
        return queue.here()

    return here


def check_rows(tensors: Sequence[Array], most: int) -> int:
    """Return the number of rows of a step. Raise InvalidArgumentError if the tensors disagree or have too many."""
    shapes = [np.shape(tensor) for tensor in tensors]
    if not all(shapes):
        raise InvalidArgumentError("a batch is made of rows", expected="rank >= 1", actual="a scalar")
    rows: int = shapes[0][0]
    if any(shape[0] != rows for shape in shapes):
        raise InvalidArgumentError(
            "the tensors of one step have different numbers of rows", expected=rows, actual=[s[0] for s in shapes]
        )
    if rows > most:
        raise InvalidArgumentError("more rows than a batch may have", expected=f"at most {most}", actual=rows)
    return rows


async def concatenated(pieces: Sequence[Piece], count: int, rows: int) -> list[Array]:
    """Return the first `count` arrays of the payloads, each joined and padded to `rows` rows with its last row."""
    first = pieces[0].request
    # A request that is the whole batch needs no copy.
    if len(pieces) == 1 and first.rows == rows:
        return list(first.payload[:count])
    # The bytes of the result, estimated from the rows of the first payload.
    size = sum(array.nbytes for array in first.payload[:count]) * rows // first.rows
    if size > INLINE_COPY:
        return await in_thread(_concatenated, pieces, count, rows, effects=False)
    return _concatenated(pieces, count, rows)


def _concatenated(pieces: Sequence[Piece], count: int, rows: int) -> list[Array]:
    filled = rows - sum(piece.end - piece.begin for piece in pieces)
    made = []
    for index in range(count):
        parts = [request.payload[index][begin:end] for request, begin, end in pieces]
        if filled:
            last = parts[-1][-1:]
            parts.append(np.broadcast_to(last, (filled, *last.shape[1:])))
        made.append(np.concatenate(parts))
    return made


# ── Batch and Unbatch, where one of the steps carries the batch ───────────────────────────────────────────────────────


_COLUMNS: Final = 3  # columns of an index: the number of a step, and the begin and end of its rows


def _number() -> int:
    """Return a number that is unique among the steps of all processes."""
    return secrets.randbits(63)


class CarriedQueue(LoopQueue):
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
    find = queue_finder(CarriedQueue, binding)
    most, queue_name = binding.attrs["max_batch_size"], binding.attrs["batching_queue"]

    async def together(queue: CarriedQueue, rows: int, tensors: Sequence[Array]) -> tuple[Value, ...]:
        kind = (queue_name, tuple(tensor.shape[1:] for tensor in tensors))
        return tuple(await queue.answer(rows, (*tensors, _number()), kind))

    def call(tensors: Sequence[Array]) -> tuple[Value, ...] | Turn:
        rows = check_rows(tensors, most)
        if not rows:
            # A step without rows does not wait, and carries an index of itself alone.
            number = _number()
            return tuple(_carried(tensors, [(number, 0, 0)], number))
        queue = find()
        return Turn(partial(together, queue, rows, tensors), queue.describe)

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


# ── BatchFunction, which runs a function once for the rows of several steps ───────────────────────────────────────────


_SMALL: Final = 64  # bytes up to which captured values are compared by content, not by identity


class _Caller(NamedTuple):
    """The function that one step calls on its rows.

    Attributes:
        body: The function.
        captured: Its inputs besides the rows.
    """

    body: BodySteps
    captured: tuple[Value, ...]


class FunctionQueue(LoopQueue):
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
    find = queue_finder(FunctionQueue, binding)
    most, queue_name = binding.attrs["max_batch_size"], binding.attrs["batching_queue"]
    # The inputs are the rows, and after them the captured values.
    known = binding.constants[len(binding.attrs["Tin"]) :]
    # Constants are hashed once, when the node is bound.
    constants = [None if value is None else _content(value) for value in known]

    async def alone(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(await body.run(values))

    async def together(
        queue: FunctionQueue, rows: int, tensors: Sequence[Array], captured: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        pairs = zip(constants, captured, strict=True)
        same = tuple(_same(value) if content is None else content for content, value in pairs)
        # Rows share a batch only if their functions compute the same and the rows can be joined.
        kind = (body.digest, queue_name, same, tuple(tensor.shape[1:] for tensor in tensors))
        return tuple(await queue.answer(rows, (*tensors, _Caller(body, captured)), kind))

    def call(tensors: Sequence[Array], captured: Sequence[Value]) -> Turn:
        rows = check_rows(tensors, most)
        if not rows:
            return Turn(partial(alone, [*tensors, *captured]), lambda: "its function")
        queue = find()
        return Turn(partial(together, queue, rows, tensors, tuple(captured)), queue.describe)

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
