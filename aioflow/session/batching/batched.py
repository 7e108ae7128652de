"""The callable that `Session.batched` makes: a batch is a step of the session, whose tasks compute them."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

from aioflow.checks.numbers import check_seconds, check_whole
from aioflow.errors import (
    ClosedSessionError,
    DeadlineExceededError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from aioflow.runtime.delegates import PREPARATIONS
from aioflow.session.batching.rows import RowsIn, RowsOut
from aioflow.session.fetches import small_copies
from aioflow.sync.background import Background
from aioflow.sync.batch_driver import BatchDriver, Call
from aioflow.sync.batch_statistics import BatchStatistics
from aioflow.sync.batches import BatchCore, BatchPolicy, Piece
from aioflow.work.stopping import Elsewhere
from aioflow.work.threads import in_thread

__all__ = ["Batched"]

_LOG: Final = logging.getLogger("aioflow.batching")
_LARGE: Final = 1 << 18  # bytes, copied in about the time that a thread takes to answer
_RESERVED: Final = ("timeout", "priority")  # arguments of a call

Step = Callable[..., Awaitable[list[Any]]]


class Batched(BatchDriver):
    """Concurrent calls of it are rows of one step. `Session.batched` makes it.

        predict = session.batched(probabilities, [image], max_batch_size=64)
        mine = await predict(rows)  # [rows, 784] → [rows, 10]

    Args:
        step: Runs the step: a coroutine function of the arrays that are fed, which gives those that are fetched.
        repeatable: Whether a step may be run again with some of its rows, since it changes nothing.
        names: For calls by keyword, the names of the feeds, in order; empty for calls by position.
        max_concurrent_batches: How many batches may be computed at once.

    Calls from several tasks of one event loop share batches; it works on the loop of its first call.

    Attributes:
        uneven: The error of the first step that gave another number of rows than it was fed; None as long as there is
            none. From then on no two calls share a step: nobody can tell whose rows they are.
    """

    def __init__(
        self,
        step: Step,
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
        self._open = 0  # calls that have not been answered
        self.uneven: InvalidArgumentError | None = None

    def __repr__(self) -> str:
        names = ", ".join(tensor.name for tensor in self._into.tensors)
        return f"<aioflow.Batched of {names}, {self._core.requests} waiting>"

    @property
    def policy(self) -> BatchPolicy:
        """When a batch begins, and how large it is."""
        return self._core.policy

    def statistics(self) -> BatchStatistics:
        """What it has done so far, and what it has to do."""
        return self._tally.statistics(self._core.requests, self._core.rows)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def __call__(self, *values: Any, timeout: float | None = None, priority: int = 0, **named: Any) -> Any:
        """What the step gives for these rows, in the structure of the fetches.

        Args:
            values: Of each feed, an array [rows, ...]; by keyword, if the feeds have been given by name. Arrays up to
                64 KiB may be changed as soon as the call waits; larger ones must stay as they are until it returns.
            timeout: Seconds, after which nobody waits any more; rows that have not been computed by then never are.
            priority: 0 goes before 1, and so on.

        Raises:
            InvalidArgumentError, …: the values do not fit, or a kernel refused these rows.
            DeadlineExceededError: `timeout` ran out.
            ResourceExhaustedError: too much is waiting already; its `retry_after` says when to come again.
            ClosedSessionError: the session is closed, or the callable is.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._draining is not None:
            await self._begin(loop)
        if named or self._names:
            values = self._by_name(values, named)
        begun, core = loop.time(), self._core
        call: Call | None = None
        self._open += 1
        try:
            try:
                arrays, rows, kind = self._into.admit(values)
            except Elsewhere:
                arrays, rows, kind = await self._admitted_elsewhere(values, timeout, loop)
            if priority.__class__ is not int or priority < 0:
                check_whole(priority, "the priority of a call", 0)
            future = loop.create_future()
            call = Call(rows, tuple(small_copies(arrays)), kind, priority, future)
            if timeout is not None:
                self._limit(call, timeout, begun)
            self._add(call, loop.time())
            return await future
        except asyncio.CancelledError:
            if call is not None:
                if call.future.cancelled():  # else the answer was there already
                    self._tally.cancelled += 1
                self._leave(call)
            raise
        finally:
            if call is not None and call.timer is not None:
                call.timer.cancel()
            self._over(core)

    def _over(self, core: BatchCore) -> None:
        """Count a call as answered, unless it was left on a loop that is closed: it is not counted any more."""
        if core is self._core:
            self._open -= 1
            self._drain()

    def _drain(self) -> None:
        """Where no more calls may come and none is open: answer `aclose`, and let the tasks that compute end."""
        if self._draining is not None and not self._open and not self._draining.done():
            self._draining.set_result(None)
            self._lingers = False
            if self._loop is self._draining.get_loop():
                self._dismiss()

    async def _admitted_elsewhere(
        self, values: Sequence[Any], timeout: float | None, loop: asyncio.AbstractEventLoop
    ) -> tuple[tuple[Any, ...], int, Hashable]:
        """As `RowsIn.admit`, in a thread. Raises as a call."""
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
            raise ClosedSessionError.refusing()  # meanwhile
        return admitted

    def _by_name(self, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        if values or named.keys() != set(self._names):
            raise DTypeError(
                "wrong feeds",
                expected=f"keyword arguments {list(self._names)}" if self._names else f"{len(self._into)} values",
                actual=sorted(named) or f"{len(values)} values by position",
            )
        return tuple(named[name] for name in self._names)

    def _limit(self, call: Call, timeout: float, begun: float) -> None:
        check_seconds(timeout, "the time limit of a call")
        loop = asyncio.get_running_loop()
        if begun + timeout <= loop.time():
            self._tally.expired += 1
            raise _late(timeout)
        call.timer = loop.call_at(begun + timeout, self._expire, call, timeout)

    def _expire(self, call: Call, timeout: float) -> None:
        if not call.future.done():
            self._tally.expired += 1
            call.future.set_exception(_late(timeout))
            self._leave(call)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first call, or one that comes too late."""
        if self._draining is not None:
            raise ClosedSessionError("the batched callable is closed", expected="calls before", actual="closed")
        if self._loop is not None and not self._loop.is_closed():
            raise FailedPreconditionError(
                "a batched callable works on one event loop", expected="the loop of its first call", actual="another"
            )
        if self._loop is not None:  # what waited on a loop that is closed waits for nothing
            self._open = self._serving = 0
            self._core = BatchCore(self._core.policy)
            self._idle.clear()
            self._runs = []
            self._loop = self._timer = None
        await self._begin_tasks()
        self._loop = loop

    async def warmup(self) -> None:
        """Run a step of each allowed size, or of one row and of the most, with zeros: what compiles, and what is made
        ready once, parts for another engine among it, is done before the first call. Sizes of rows that are open are
        taken to be one.
        """
        policy = self._core.policy
        for rows in policy.allowed_batch_sizes or sorted({1, policy.max_batch_size}):
            await self._step(*self._into.zeros(rows))
        await PREPARATIONS.ended()

    async def aclose(self) -> None:
        """Refuse new calls, and wait until all that are waiting have been answered."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_future()
            self._drain()
        await asyncio.shield(self._draining)

    async def __aenter__(self) -> Batched:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    # -- batches ------------------------------------------------------------------------------------------------------

    async def _answer(self, pieces: list[Piece], loop: asyncio.AbstractEventLoop) -> None:
        if self.uneven is None:
            await super()._answer(pieces, loop)
            return
        for piece in pieces:  # of which none has been computed
            await super()._answer([piece], loop)

    def _check_even(self, pieces: list[Piece], rows: int) -> None:
        """Raise InvalidArgumentError where calls share a step, or one takes several, and none may any more."""
        if self.uneven is not None and (len(pieces) > 1 or rows < pieces[0].request.rows):
            raise copy.copy(self.uneven)

    async def _results(self, pieces: list[Piece]) -> list[Any]:
        rows = sum(piece.end - piece.begin for piece in pieces)
        self._check_even(pieces, rows)
        padded = self._core.policy.padded(rows)
        if self._into.size(pieces, padded) > _LARGE:
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
        self._check_even(pieces, rows)  # again: meanwhile another step may have shown it
        return values

    async def _is_repeatable(self, pieces: list[Piece]) -> bool:
        return await self.is_repeatable()

    async def is_repeatable(self) -> bool:
        """Return whether a step may be run again with some of its rows, since it changes nothing."""
        return await self._repeatable()

    def _shares(self, results: list[Any], pieces: list[Piece]) -> Iterable[list[Any]]:
        return self._out.shares(results, pieces)

    def _joined(self, shares: Sequence[list[Any]]) -> list[Any]:
        return self._out.joined(shares)

    def _give(self, share: list[Any]) -> Any:
        return self._out.give(share)

    def _refuse_all(self) -> None:
        """The session is being closed. Later calls find that out by themselves."""
        self._loop = None
        super()._refuse_all()


def _late(timeout: float) -> DeadlineExceededError:
    return DeadlineExceededError(
        "the call was not answered in time", expected=f"at most {timeout} s", actual="still waiting, or being computed"
    )
