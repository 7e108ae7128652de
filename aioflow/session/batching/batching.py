"""What a session has for callers who come with a few rows each, and for services that begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aioflow.checks.numbers import check_number, check_whole
from aioflow.compiler.ir import Plan
from aioflow.compiler.rows import row_verdict
from aioflow.errors import InvalidArgumentError
from aioflow.graph.argument_kinds import check_list
from aioflow.graph.graph import Graph
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect
from aioflow.session.batching.batched import Batched
from aioflow.session.batching.rows import RowsIn, RowsOut
from aioflow.sync.background import Background
from aioflow.sync.batches import BatchPolicy
from aioflow.work.threads import in_thread

__all__ = ["Batching"]


class Batching(ABC):
    """Makes callables whose concurrent calls share steps."""

    graph: Graph
    _background: Background

    @abstractmethod
    def make_callable(self, fetches: Any, feed_list: Sequence[Any] | None = None) -> Callable[..., Awaitable[Any]]:
        """As `Session.make_callable`."""

    @abstractmethod
    def plan(self, fetches: Any, feeds: Sequence[Any] = ()) -> Plan:
        """As `Session.plan`."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ClosedSessionError, once it is closed."""

    def batched(
        self,
        fetches: Any,
        feeds: Any,
        *,
        max_batch_size: int = 64,
        batch_timeout: float = 0.0,
        max_enqueued_batches: int = 16,
        max_concurrent_batches: int = 1,
        allowed_batch_sizes: Sequence[int] = (),
        pad: Mapping[Any, Any] | None = None,
        unchecked: bool = False,
    ) -> Batched:
        """An async callable whose concurrent calls become rows of one step.

            predict = session.batched(probabilities, [image], max_batch_size=64)
            mine = await predict(rows, timeout=0.5)  # [rows, 784] → [rows, 10]

        Args:
            fetches: As of `run`. Each tensor has the rows of the feeds along axis 0, and each caller gets his own.
            feeds: Tensors that callers give by position, or a mapping from names by which they give them. The first
                size of each is open.
            max_batch_size: Rows of a batch, not calls. A call with more is cut and put together again.
            batch_timeout: Seconds that a call waits for others while nothing is being computed. With 0 the first
                begins at once, and what comes while it is computed is the next batch.
            max_enqueued_batches: Full batches that may wait; a call beyond them raises ResourceExhaustedError.
            max_concurrent_batches: How many batches may be computed at once.
            allowed_batch_sizes: Rows that a batch may have, rising to `max_batch_size`; one between is filled up by
                repeating its last row, so that fewer different steps run.
            pad: By feed, a `Padding` or what to fill up with, for rows that differ in length.
            unchecked: Whether fetches are taken as they are that are known to mix rows, to give another number of them,
                or to depend on what the step changes: that callers may share steps is the caller's word.

        Raises:
            InvalidArgumentError, DTypeError: a feed or fetch has no rows, its rows are not kept apart (with the node
                that mixes them), or a setting is out of range.
        """
        self._check_open()
        named = isinstance(feeds, Mapping)
        keys = list(feeds.values()) if named else feeds
        check_list(keys, "the feeds of a batch")
        check_number(batch_timeout, "batch_timeout", "a number of seconds")
        for value, what in ((max_batch_size, "max_batch_size"), (max_enqueued_batches, "max_enqueued_batches")):
            check_whole(value, what, 1)
        policy = BatchPolicy(max_batch_size, float(batch_timeout), max_enqueued_batches, tuple(allowed_batch_sizes))
        into = RowsIn(self.graph, keys, pad)
        out = RowsOut(self.graph, fetches, into.paddings)
        if not unchecked:
            _check_apart(into, out)
        step = self.make_callable(out.tensors, into.tensors)

        async def repeatable() -> bool:
            plan = await in_thread(self.plan, out.tensors, into.tensors, effects=False)
            return not any(traits_of(node.op).effect is Effect.CHANGES for node in plan.nodes())

        names = list(feeds) if named else ()
        return Batched(step, repeatable, self._background, into, out, policy, names, max_concurrent_batches)

    async def warmup(self, *callables: Batched) -> None:
        """Run a step of each size of each of these: what is compiled, and made ready once, is done before the first
        call. A service is ready when this has returned.
        """
        for each in callables:
            await each.warmup()


def _check_apart(into: RowsIn, out: RowsOut) -> None:
    """Raise InvalidArgumentError where rows are not kept apart."""
    found = row_verdict(into.tensors, out.tensors)
    if found.is_refuted and found.op is not None:
        raise InvalidArgumentError(
            f"callers cannot share a step: {found.op.name!r} {found.why}",
            expected="rows that do not depend on one another, or `unchecked=True`",
            actual=found.op.type,
        ).at(found.op.name, found.op.type, found.op.source)
