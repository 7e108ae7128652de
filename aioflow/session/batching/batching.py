"""The batching methods of a session: `batched` and `warmup`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aioflow.arguments import check_list, check_number, check_whole
from aioflow.compiler.ir import Plan
from aioflow.compiler.rows import row_verdict
from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Graph
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect
from aioflow.memory.values import Value
from aioflow.session import signatures
from aioflow.session.batching.batched import Batched
from aioflow.session.batching.rows import RowsIn, RowsOut
from aioflow.session.fetches import Feeds
from aioflow.sync.background import Background
from aioflow.sync.batches import BatchPolicy


class Batching(ABC):
    """Mixin with the factory of callables whose concurrent calls share steps."""

    graph: Graph
    _background: Background

    @abstractmethod
    def make_callable(self, fetches: Any, feed_list: Sequence[object] | None = None) -> Callable[..., Awaitable[Any]]:
        """Return a coroutine function; see `Session.make_callable`."""

    @abstractmethod
    def plan(self, fetches: object, feeds: Sequence[object] = ()) -> Plan:
        """Return the plan of a step; see `Session.plan`."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ClosedSessionError if the session is closed."""

    @signatures.batched
    def batched(
        self,
        fetches: object,
        feeds: Sequence[object] | Mapping[str, object],
        *,
        max_batch_size: int = 64,
        batch_timeout: float = 0.0,
        max_enqueued_batches: int = 16,
        max_concurrent_batches: int = 1,
        allowed_batch_sizes: Sequence[int] = (),
        pad: Feeds | None = None,
        unchecked: bool = False,
    ) -> Batched[Value]:
        """Return an async callable that merges concurrent calls into one step.

            predict = session.batched(probabilities, [image], max_batch_size=64)
            mine = await predict(rows, timeout=0.5)  # [rows, 784] → [rows, 10]

        Args:
            fetches: Fetches as for `run`. Axis 0 of each tensor must hold the rows of the feeds; each caller gets its
                own.
            feeds: Tensors that callers pass by position, or a mapping from keyword names to tensors. Axis 0 of each
                must have unknown size.
            max_batch_size: Maximum number of rows in a batch (rows, not calls). A longer call is split and its results
                are joined.
            batch_timeout: Seconds that a call waits for others while no batch runs. With 0 the first call starts at
                once, and calls that arrive during a batch form the next one.
            max_enqueued_batches: Number of full batches that may wait; a call beyond them raises
                ResourceExhaustedError.
            max_concurrent_batches: Number of batches that may run at once.
            allowed_batch_sizes: Increasing batch sizes that end with `max_batch_size`. A batch of another size is
                padded to the next one by repeating its last row, so that fewer different steps run.
            pad: By feed, a `Padding` or a fill value, for rows that differ in length.
            unchecked: Whether to skip the check for fetches that are known to mix rows, to return another number of
                rows, or to depend on state that the step changes. The caller then guarantees that calls may share
                steps.

        Raises:
            InvalidArgumentError, DTypeError: a feed or fetch has no rows, the rows are not independent (the error names
                the node that mixes them), or a setting is out of range.
            ClosedSessionError: the session is closed.
        """
        self._check_open()
        keys = list(feeds.values()) if isinstance(feeds, Mapping) else feeds
        check_list(keys, "the feeds of a batch")
        check_number(batch_timeout, "batch_timeout", "a number of seconds")
        for value, what in ((max_batch_size, "max_batch_size"), (max_enqueued_batches, "max_enqueued_batches")):
            check_whole(value, what, 1)
        policy = BatchPolicy(max_batch_size, float(batch_timeout), max_enqueued_batches, tuple(allowed_batch_sizes))
        into = RowsIn(self.graph, keys, pad)
        out = RowsOut(self.graph, fetches, into.paddings)
        if not unchecked:
            _check_apart(into, out)
        # A flat list of tensors: `RowsOut` restores the structure for each caller.
        step = self.make_callable(out.tensors, into.tensors)

        async def repeatable() -> bool:
            # Planning may take long, so it runs in a thread.
            plan = await in_thread(self.plan, out.tensors, into.tensors, effects=False)
            return not any(traits_of(node.op).effect is Effect.CHANGES for node in plan.nodes())

        names = list(feeds) if isinstance(feeds, Mapping) else ()
        return Batched(step, repeatable, self._background, into, out, policy, names, max_concurrent_batches)

    async def warmup(self, *callables: Batched[Value]) -> None:
        """Run one step of each batch size of these callables.

        Compilation and one-time preparation then happen before the first call. A service is ready when this has
        returned.
        """
        for each in callables:
            await each.warmup()


def _check_apart(into: RowsIn, out: RowsOut) -> None:
    """Raise InvalidArgumentError if the fetches are known to mix rows."""
    found = row_verdict(into.tensors, out.tensors)
    # An undecided verdict is accepted: only a fetch that certainly mixes rows is an error.
    if found.is_refuted and found.op is not None:
        raise InvalidArgumentError(
            f"callers cannot share a step: {found.op.name!r} {found.why}",
            expected="rows that do not depend on one another, or `unchecked=True`",
            actual=found.op.type,
        ).at(found.op.name, found.op.type, found.op.source)
