"""Drives a `BatchCore` on one event loop: callers wait, while a few tasks compute batch after batch."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any, Final, cast

from aioflow.errors import (
    ClosedSessionError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnknownError,
)
from aioflow.memory.values import Array, Value
from aioflow.sync.background import Background
from aioflow.sync.batches import BatchCore, BatchPolicy, BatchRequest, Piece

# ── statistics ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The past and pending work of a batched callable.

    Attributes:
        waiting_requests, waiting_rows: Number of requests and rows waiting for a batch.
        running_batches: Number of batches being computed.
        answered: Number of calls that returned a result.
        failed: Number of calls that ended with an error of their step, or because the session was closed.
        rejected: Number of calls that found the queue full.
        expired: Number of calls whose time limit passed.
        cancelled: Number of calls abandoned by their callers.
        batches: Number of completed steps, including those on halves of a batch to find a bad row.
        rows: Number of rows in these steps, without padding.
        sizes: Number of batches by their number of rows.
        queue_seconds: Total time that the rows of all batches have waited, summed over requests.
        compute_seconds: Total time of computing the batches.
    """

    waiting_requests: int
    waiting_rows: int
    running_batches: int
    answered: int
    failed: int
    rejected: int
    expired: int
    cancelled: int
    batches: int
    rows: int
    sizes: Mapping[int, int]
    queue_seconds: float
    compute_seconds: float

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        """Return the sum of both statistics."""
        own = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in _NUMBERS}
        # `Counter.update` adds counts, where `dict.update` would replace them.
        sizes = Counter(self.sizes)
        sizes.update(other.sizes)
        return BatchStatistics(**own, sizes=dict(sorted(sizes.items())))


_NUMBERS: Final = [each for each in fields(BatchStatistics) if each.name != "sizes"]


@dataclass(slots=True)
class Tally:
    """The counters behind `BatchStatistics`."""

    running: int = 0
    answered: int = 0
    failed: int = 0
    rejected: int = 0
    expired: int = 0
    cancelled: int = 0
    batches: int = 0
    rows: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0

    def computed(self, rows: int, seconds: float) -> None:
        """Count a completed step with this number of rows."""
        self.batches += 1
        self.rows += rows
        self.sizes[rows] = self.sizes.get(rows, 0) + 1
        self.compute_seconds += seconds

    def statistics(self, waiting_requests: int, waiting_rows: int) -> BatchStatistics:
        """Return the current statistics."""
        return BatchStatistics(
            waiting_requests=waiting_requests,
            waiting_rows=waiting_rows,
            running_batches=self.running,
            answered=self.answered,
            failed=self.failed,
            rejected=self.rejected,
            expired=self.expired,
            cancelled=self.cancelled,
            batches=self.batches,
            rows=self.rows,
            sizes=dict(sorted(self.sizes.items())),
            queue_seconds=self.queue_seconds,
            compute_seconds=self.compute_seconds,
        )


# ── the driver ────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A caller adds its rows and awaits its own future. Callers are isolated from each other: one that goes away is
# discarded, rows that make a batch fail are found by halving the batch, and a batch without remaining callers is
# stopped.


# Errors that may be caused by the rows of a single caller.
_OF_ROWS: Final = (
    DataLossError, InvalidArgumentError, NotFoundError, OutOfRangeError, ResourceExhaustedError, UnknownError
)  # fmt: skip


class WaitingRequest(BatchRequest):
    """A request with a waiting caller.

    Attributes:
        future: The result.
        begun: Arrival time, by the clock that measures durations.
        timer: Timer of the call's time limit.
        parts: Results of the pieces of a split call so far: the first row of each piece, and its share.
    """

    __slots__ = ("begun", "future", "parts", "timer")

    def __init__(self, rows: int, payload: Any, kind: Hashable, priority: int, future: asyncio.Future[Any]) -> None:
        super().__init__(rows, payload, kind, priority)
        self.future = future
        self.begun = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.parts: list[tuple[int, list[Array]]] | None = None


class RunningBatch:
    """A batch that is being computed."""

    __slots__ = ("_ended", "_is_over", "pieces", "scope")

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.scope = asyncio.timeout(None)
        self._is_over = False
        self._ended: asyncio.Event | None = None

    def stop_if_unwanted(self) -> bool:
        """Stop the batch if it has no remaining callers. Return True if it has none."""
        unwanted = all(piece.request.is_gone for piece in self.pieces)
        if unwanted and not self.scope.expired():
            # Stops the block as a timeout, which `_answer` tells apart from the cancellation of its task.
            self.scope.reschedule(asyncio.get_running_loop().time())
        return unwanted

    def over(self) -> None:
        """Declare that the batch has ended."""
        self._is_over = True
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        """Wait for `over`, unless it has been called."""
        if not self._is_over:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()


class BatchDriver(ABC):
    """The base of objects that gather calls into batches and answer them.

    Args:
        policy: When a batch begins, and its size.
        background: Owns the tasks that compute.
        concurrency: Maximum number of batches computed at once.
        lingers: Whether these tasks, once started, wait for further calls. Otherwise calls start them as needed.
        clock: Measures durations. The clock of uvloop has a resolution of 1 ms, enough only for time limits.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        background: Background,
        concurrency: int,
        lingers: bool,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._core = BatchCore(policy)
        self._background = background
        self._concurrency = concurrency
        self._lingers = lingers
        self._clock = clock
        self._tally = Tally()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._runs: list[RunningBatch] = []
        self._serving = 0  # number of tasks

    @abstractmethod
    async def _results(self, pieces: list[Piece]) -> Any:
        """Compute a batch. Errors are passed to the callers."""

    @abstractmethod
    async def _is_repeatable(self, pieces: list[Piece]) -> bool:
        """Return True if parts of a failed batch may be computed again."""

    @abstractmethod
    def _shares(self, results: Any, pieces: list[Piece]) -> Iterable[list[Array]]:
        """Return the share of each piece in the results."""

    @abstractmethod
    def _joined(self, shares: Sequence[list[Array]]) -> list[Array]:
        """Return the share of a split call, joined from the shares of its pieces."""

    def _give(self, share: list[Array]) -> Value:
        """Convert a share to the caller's result."""
        return share

    # -- calls --------------------------------------------------------------------------------------------------------

    def _seconds_ahead(self) -> float:
        """Estimate how long the waiting rows will take."""
        tally, policy = self._tally, self._core.policy
        # Mean seconds per batch × ⌈rows ÷ rows per batch⌉ ÷ batches computed at once.
        each = tally.compute_seconds / tally.batches if tally.batches else policy.batch_timeout
        return each * (-(-self._core.rows // policy.max_batch_size)) / self._concurrency

    def _add(self, call: WaitingRequest, now: float) -> None:
        call.begun = self._clock()
        try:
            self._core.add(call, now)
        except ResourceExhaustedError as error:
            self._tally.rejected += 1
            error.retry_after = self._seconds_ahead()
            if call.timer is not None:
                call.timer.cancel()
            raise
        if self._idle:
            self._wake(now)

    async def _begin_tasks(self) -> None:
        """Start the tasks that compute: all that are allowed if they linger, else one if there is work."""
        while self._serving < self._concurrency and (self._lingers or self._core.rows):
            await self._background.start(self._serve())  # does not suspend
            self._serving += 1
            if not self._lingers:
                return  # if it takes a batch and more rows wait, it starts the next task

    def _leave(self, call: WaitingRequest) -> list[RunningBatch]:
        """Discard a call that has lost its caller. Return the runs that have been stopped because of it."""
        # First, so that `stop_if_unwanted` below sees the call as gone.
        self._core.discard(call)
        if not self._lingers and not self._core.rows:
            self._dismiss()
        return [run for run in self._runs if run.stop_if_unwanted()] if call.pieces else []

    def _dismiss(self) -> None:
        """Wake all idle tasks, so that they see that there is no work left."""
        while self._idle:
            self._rouse()

    def _rouse(self) -> None:
        """Wake one idle task, if there is one."""
        while self._idle:
            turn = self._idle.popleft()
            # A task that was cancelled in this turn of the loop is still listed.
            if not turn.done():
                turn.set_result(None)
                return

    # -- batches ------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Compute batch after batch: the body of each task."""
        # Kept in a local: the driver replaces its core when it moves to another loop.
        loop, core = asyncio.get_running_loop(), self._core
        try:
            while not self._background.is_closed:
                pieces = core.take(loop.time())
                if pieces:
                    # Before computing, which may take long: the rest may already fill another batch.
                    if core.rows:
                        await self._others(loop)
                    await self._compute(pieces, loop)
                elif core.rows or self._lingers:
                    await self._wait(loop)
                else:
                    self._dismiss()
                    return
            raise asyncio.CancelledError  # the cancellation was replaced by the last step's own error
        except BaseException:
            if core is self._core:  # else the driver has moved to another loop, and this task is obsolete
                self._refuse_all()
            raise
        finally:
            if core is self._core:
                self._serving -= 1

    async def _others(self, loop: asyncio.AbstractEventLoop) -> None:
        """After one batch has been taken, involve another task, since there may be enough rows for another batch."""
        if self._idle:
            self._wake(loop.time())
        elif not self._lingers:
            await self._begin_tasks()

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until a batch is due."""
        turn = loop.create_future()
        self._idle.append(turn)
        self._set_timer()
        try:
            await turn
        finally:
            # `_rouse` has removed it, unless this task was cancelled.
            if turn in self._idle:
                self._idle.remove(turn)

    def _wake(self, now: float) -> None:
        """After rows have arrived, wake a task, or set the timer for when a batch is due."""
        if self._core.due_at() <= now:
            self._rouse()
        # An earlier timer is for older rows, which are due first; it is set again for the next ones when it fires.
        elif self._timer is None:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._core.due_at()
        if due < float("inf"):
            self._timer = asyncio.get_running_loop().call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._rouse()

    async def _compute(self, pieces: list[Piece], loop: asyncio.AbstractEventLoop) -> None:
        """Run a batch, and answer all of its callers."""
        now, calls = self._clock(), [cast("WaitingRequest", piece.request) for piece in pieces]
        self._tally.queue_seconds += sum(now - call.begun for call in calls)
        self._tally.running += 1
        try:
            await self._answer(pieces, loop)
        except asyncio.CancelledError:
            self._fail(pieces, ClosedSessionError.refusing())
            raise
        except Exception as error:  # a bug here; without this, the callers would wait for ever
            self._fail(pieces, error)
        finally:
            self._tally.running -= 1

    async def _answer(self, pieces: list[Piece], loop: asyncio.AbstractEventLoop) -> None:
        failure: Exception | None = None
        # Callers may have left since the batch was taken, or while an earlier half was computed.
        pieces = [piece for piece in pieces if not piece.request.is_gone]
        if not pieces:
            return
        run, runs = RunningBatch(pieces), self._runs
        runs.append(run)
        try:
            async with run.scope:
                started = self._clock()
                results = await self._results(pieces)
                self._tally.computed(sum(piece.end - piece.begin for piece in pieces), self._clock() - started)
        except Exception as error:
            if run.scope.expired():
                return  # no callers remain
            failure = error
        finally:
            runs.remove(run)
            run.over()
        if failure is not None:
            await self._failed(pieces, failure, loop)
            return
        for piece, share in zip(pieces, self._shares(results, pieces), strict=True):
            call: Any = piece.request
            call.pieces -= 1
            if piece.end - piece.begin < call.rows:
                try:
                    share = self._put_together(call, piece.begin, share)
                except InvalidArgumentError as error:  # concerns this call only
                    self._fail([piece], error)
                    continue
            # The caller may have been cancelled since the results were computed.
            if share and not call.future.done():
                self._tally.answered += 1
                call.future.set_result(self._give(share))

    def _put_together(self, call: WaitingRequest, begin: int, share: list[Array]) -> list[Array]:
        """Return the joined shares of a split call after its last piece; an empty list before that."""
        call.parts = call.parts or []
        call.parts.append((begin, share))
        if call.is_gone or not call.is_complete:
            return []
        return self._joined([each for _, each in sorted(call.parts, key=lambda part: part[0])])

    async def _failed(self, pieces: list[Piece], error: Exception, loop: asyncio.AbstractEventLoop) -> None:
        """Find the rows that made a batch fail by computing halves of it; otherwise fail all of its calls."""
        if len(pieces) == 1 or not isinstance(error, _OF_ROWS) or not await self._is_repeatable(pieces):
            self._fail(pieces, error)
            return
        # One bad row among n pieces costs about 2·log₂ n further steps, and the others are answered.
        middle = len(pieces) // 2
        await self._answer(pieces[:middle], loop)
        await self._answer(pieces[middle:], loop)

    def _fail(self, pieces: list[Piece], error: Exception) -> None:
        for number, piece in enumerate(pieces):
            call: Any = piece.request
            self._core.discard(call)
            if not call.future.done():
                self._tally.failed += 1
                # A copy for each caller, since raising an exception adds to its traceback.
                call.future.set_exception(error if not number else copy.copy(error))

    def _refuse_all(self) -> None:
        """Fail all waiting calls."""
        while pieces := self._core.take(float("inf")):
            self._fail(pieces, ClosedSessionError.refusing())
