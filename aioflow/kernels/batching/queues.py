"""The queue in which rows of concurrent steps gather: a named resource of a device, with a line for each event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.registry import Binding
from aioflow.kernels.resources import resource_finder
from aioflow.memory.values import Array, Value
from aioflow.sync.background import Background
from aioflow.sync.batch_driver import BatchDriver, WaitingRequest
from aioflow.sync.batches import BatchPolicy, Piece

_LARGE: Final = 1 << 18  # bytes; to copy them takes about as long as a call in a thread


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


class BatchLine(BatchDriver):
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
    """The queue of one name, with a line for each event loop."""

    def __init__(self, name: str, kind: type[BatchLine], settings: BatchSettings) -> None:
        self.name = name
        self.kind = kind
        self.settings = settings
        self._lock = threading.Lock()
        self._lines: dict[asyncio.AbstractEventLoop, BatchLine] = {}

    def here(self) -> BatchLine:
        """Return the line of the running loop, and create it on the first call."""
        loop = asyncio.get_running_loop()
        with self._lock:
            # Under the lock, because event loops run in different threads.
            found = self._lines.get(loop)
            if found is None:
                # Nothing else drops the lines of closed loops.
                self._lines = {other: line for other, line in self._lines.items() if not other.is_closed()}
                found = self._lines[loop] = self.kind(self.name, self.settings)
            return found


def line_finder(kind: type[BatchLine], binding: Binding) -> Callable[[], Any]:
    """Return a function that finds the line of the running loop for a node.

    The function raises InvalidArgumentError if the name has other settings or belongs to a queue of another kind.
    """
    settings = BatchSettings.of(binding.attrs)
    find = resource_finder(BatchQueue, binding, lambda name: BatchQueue(name, kind, settings))

    def here() -> BatchLine:
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
    if size > _LARGE:
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
