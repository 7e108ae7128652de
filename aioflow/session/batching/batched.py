"""The callable that `Session.batched` returns: one step of the session per batch of concurrent calls."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Final, Generic, Self, TypeAlias, TypeVar

from aioflow.arguments import check_seconds, check_whole
from aioflow.concurrency.stopping import INLINE_COPY, OffloadToThread
from aioflow.concurrency.threads import in_thread
from aioflow.errors import (
    ClosedSessionError,
    DeadlineExceededError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from aioflow.memory.values import Array, Value
from aioflow.runtime.delegates import PREPARATIONS
from aioflow.session.batching.rows import RowsIn, RowsOut, RowValues
from aioflow.session.fetches import small_copies
from aioflow.sync.background import Background
from aioflow.sync.batch_driver import BatchDriver, BatchStatistics, WaitingRequest
from aioflow.sync.batches import BatchCore, BatchPolicy, Piece

_LOG: Final = logging.getLogger("aioflow.batching")
_RESERVED: Final = ("timeout", "priority")  # keyword arguments of a call, which no feed may be named after

StepFunction: TypeAlias = Callable[..., Awaitable[list[Array]]]
T_co = TypeVar("T_co", covariant=True)


class Batched(BatchDriver, Generic[T_co]):
    """A callable that merges concurrent calls into one step. Created by `Session.batched`.

        predict = session.batched(probabilities, [image], max_batch_size=64)
        mine = await predict(rows)  # [rows, 784] → [rows, 10]

    Calls from several tasks of one event loop share batches. Another event loop may be used only after that of the
    first call is closed.

    Args:
        step: Coroutine function that runs the step: it accepts the fed arrays and returns the fetched ones.
        repeatable: Whether the step has no side effects, so that it may run again with some of its rows.
        background: Owner of the tasks that compute batches.
        into: Joins the rows of the callers into feeds.
        out: Splits the fetches into the rows of the callers.
        policy: Batch sizes and timeout.
        names: Names of the feeds, in order, for calls by keyword; empty for calls by position.
        max_concurrent_batches: Number of batches that may run at once.
        clock: Measures durations for the statistics.

    Attributes:
        uneven: The error of the first step that returned another number of rows than it was fed; None until then. Once
            it is set, no two calls share a step, because output rows can no longer be attributed to callers.
    """

    def __init__(
        self,
        step: StepFunction,
        repeatable: Callable[[], Awaitable[bool]],
        background: Background,
        into: RowsIn,
        out: RowsOut,
        policy: BatchPolicy,
        names: Sequence[str] = (),
        max_concurrent_batches: int = 1,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        check_whole(max_concurrent_batches, "max_concurrent_batches", 1)
        taken = [name for name in names if name in _RESERVED]
        if taken:
            raise InvalidArgumentError(
                "a feed has the name of an argument of the call", expected=f"other names than {_RESERVED}", actual=taken
            )
        super().__init__(policy, background, max_concurrent_batches, lingers=True, clock=clock)
        self._step = step
        self._repeatable = repeatable
        self._into = into
        self._out = out
        self._names = tuple(names)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Future[None] | None = None
        self._open = 0  # unanswered calls
        self.uneven: InvalidArgumentError | None = None

    def __repr__(self) -> str:
        names = ", ".join(tensor.name for tensor in self._into.tensors)
        return f"<aioflow.Batched of {names}, {self._core.requests} waiting>"

    @property
    def policy(self) -> BatchPolicy:
        """The batch sizes and the batch timeout."""
        return self._core.policy

    def statistics(self) -> BatchStatistics:
        """Return counts and durations so far, and the current queue."""
        return self._tally.statistics(self._core.requests, self._core.rows)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def __call__(self, *values: object, timeout: float | None = None, priority: int = 0, **named: object) -> T_co:
        """Run the step with these rows and return its results, in the structure of the fetches.

        Args:
            *values: One array [rows, ...] per feed, if the feeds were declared by position. The caller may change
                arrays up to 64 KiB as soon as the call waits; larger ones must stay unchanged until it returns.
            timeout: Time limit in seconds. Rows that have not been computed by then never are.
            priority: Lower numbers go first.
            **named: One array [rows, ...] per feed, if the feeds were declared by name.

        Raises:
            InvalidArgumentError, …: the values do not fit, or a kernel rejected these rows.
            DeadlineExceededError: `timeout` expired.
            ResourceExhaustedError: the queue is full; `retry_after` is the number of seconds after which to try again.
            ClosedSessionError: the session or the callable is closed.
            FailedPreconditionError: the event loop of earlier calls is another one, and not closed.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._draining is not None:
            await self._begin(loop)
        if named or self._names:
            values = self._by_name(values, named)
        # Keep the core: `_begin` replaces it when the loop is closed, and `_over` then must not count this call.
        begun, core = loop.time(), self._core
        call: WaitingRequest | None = None
        self._open += 1
        try:
            try:
                arrays, rows, kind = self._into.admit(values)
            except OffloadToThread:
                arrays, rows, kind = await self._admitted_elsewhere(values, timeout, loop)
            # The common case skips the call of `check_whole`.
            if priority.__class__ is not int or priority < 0:
                check_whole(priority, "the priority of a call", 0)
            future: asyncio.Future[T_co] = loop.create_future()
            # The caller may change small arrays while the call waits.
            call = WaitingRequest(rows, tuple(small_copies(arrays)), kind, priority, future)
            if timeout is not None:
                self._limit(call, timeout, begun)
            self._add(call, loop.time())
            return await future
        except asyncio.CancelledError:
            if call is not None:
                if call.future.cancelled():  # otherwise the answer was set before the cancellation arrived
                    self._tally.cancelled += 1
                self._leave(call)
            raise
        finally:
            if call is not None and call.timer is not None:
                call.timer.cancel()
            self._over(core)

    def _over(self, core: BatchCore) -> None:
        """Count a call as answered, unless its loop was closed: `_begin` has reset the counts of such calls."""
        if core is self._core:
            self._open -= 1
            self._drain()

    def _drain(self) -> None:
        """Complete `aclose` and end the serving tasks, once the callable is closing and no call is open."""
        if self._draining is not None and not self._open and not self._draining.done():
            self._draining.set_result(None)
            self._lingers = False
            if self._loop is self._draining.get_loop():
                self._dismiss()

    async def _admitted_elsewhere(
        self, values: Sequence[object], timeout: float | None, loop: asyncio.AbstractEventLoop
    ) -> tuple[RowValues, int, Hashable]:
        """Run `RowsIn.admit` in a thread, within the timeout of the call."""
        check_seconds(timeout, "the time limit of a call")
        try:
            async with asyncio.timeout(timeout) as scope:
                admitted = await in_thread(self._into.admit, values, effects=False)
        except TimeoutError as error:
            if timeout is None or not scope.expired():
                raise
            self._tally.expired += 1
            raise _late(timeout) from error
        if self._loop is not loop:
            raise ClosedSessionError.refusing()  # closed while the thread ran
        return admitted

    def _by_name(self, values: Sequence[object], named: Mapping[str, object]) -> tuple[object, ...]:
        if values or named.keys() != set(self._names):
            raise DTypeError(
                "wrong feeds",
                expected=f"keyword arguments {list(self._names)}" if self._names else f"{len(self._into)} values",
                actual=sorted(named) or f"{len(values)} values by position",
            )
        return tuple(named[name] for name in self._names)

    def _limit(self, call: WaitingRequest, timeout: float, begun: float) -> None:
        check_seconds(timeout, "the time limit of a call")
        loop = asyncio.get_running_loop()
        if begun + timeout <= loop.time():
            self._tally.expired += 1
            raise _late(timeout)
        call.timer = loop.call_at(begun + timeout, self._expire, call, timeout)

    def _expire(self, call: WaitingRequest, timeout: float) -> None:
        if not call.future.done():
            self._tally.expired += 1
            call.future.set_exception(_late(timeout))
            self._leave(call)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    async def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to the loop of the first call, or raise if the callable is closed or bound to another loop."""
        if self._draining is not None:
            raise ClosedSessionError("the batched callable is closed", expected="calls before", actual="closed")
        if self._loop is not None and not self._loop.is_closed():
            raise FailedPreconditionError(
                "a batched callable works on one event loop", expected="the loop of its first call", actual="another"
            )
        # The previous loop is closed: its waiting calls can never be answered, so start from empty state.
        if self._loop is not None:
            self._open = self._serving = 0
            self._core = BatchCore(self._core.policy)
            self._idle.clear()
            self._runs = []
            self._loop = self._timer = None
        await self._begin_tasks()
        self._loop = loop

    async def warmup(self) -> None:
        """Run one step of zeros for each allowed batch size, or else for 1 row and for the maximum.

        Compilation and one-time preparation, such as parts for another engine, are then complete before the first call.
        Unknown dimensions of a row are taken as 1.
        """
        policy = self._core.policy
        for rows in policy.allowed_batch_sizes or sorted({1, policy.max_batch_size}):
            await self._step(*self._into.zeros(rows))
        await PREPARATIONS.ended()

    async def aclose(self) -> None:
        """Reject new calls, and wait until all waiting calls are answered."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_future()
            self._drain()
        # Several tasks may wait here: cancelling one must not cancel the shared future.
        await asyncio.shield(self._draining)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    # -- batches ------------------------------------------------------------------------------------------------------

    async def _answer(self, pieces: list[Piece], loop: asyncio.AbstractEventLoop) -> None:
        if self.uneven is None:
            await super()._answer(pieces, loop)
            return
        for piece in pieces:  # none of them has been computed yet
            await super()._answer([piece], loop)

    def _check_even(self, pieces: list[Piece], rows: int) -> None:
        """Raise InvalidArgumentError if `uneven` is set and the batch is shared, or is only a part of a call."""
        if self.uneven is not None and (len(pieces) > 1 or rows < pieces[0].request.rows):
            # Each caller gets its own exception, because raising one adds a traceback to it.
            raise copy.copy(self.uneven)

    async def _results(self, pieces: list[Piece]) -> list[Array]:
        rows = sum(piece.end - piece.begin for piece in pieces)
        self._check_even(pieces, rows)
        padded = self._core.policy.padded(rows)
        if self._into.size(pieces, padded) > INLINE_COPY:
            fed = await in_thread(self._into.join, pieces, padded, effects=False)
        else:
            fed = self._into.join(pieces, padded)
        values = await self._step(*fed)
        try:
            self._out.check(values, padded)
        except InvalidArgumentError as error:
            if self.uneven is None:
                self.uneven = error
                _LOG.warning("calls share no more steps, since one gave other rows than it was fed: %s", error)
            raise
        # Check again: a concurrent step may have set `uneven` while this one ran.
        self._check_even(pieces, rows)
        return values

    async def _is_repeatable(self, pieces: list[Piece]) -> bool:
        return await self.is_repeatable()

    async def is_repeatable(self) -> bool:
        """Return True if the step has no side effects, so that it may run again with some of its rows."""
        return await self._repeatable()

    def _shares(self, results: list[Array], pieces: list[Piece]) -> Iterable[list[Array]]:
        return self._out.shares(results, pieces)

    def _joined(self, shares: Sequence[list[Array]]) -> list[Array]:
        return self._out.joined(shares)

    def _give(self, share: list[Array]) -> Value:
        return self._out.give(share)

    def _refuse_all(self) -> None:
        """Fail all waiting calls because the session is closing. A later call fails in `_begin`."""
        self._loop = None
        super()._refuse_all()


def _late(timeout: float) -> DeadlineExceededError:
    return DeadlineExceededError(
        "the call was not answered in time", expected=f"at most {timeout} s", actual="still waiting, or being computed"
    )
