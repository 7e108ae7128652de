"""`QueueRunner`: tasks that keep a queue filled by running its enqueue nodes repeatedly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from aioflow.arguments import check_kind
from aioflow.errors import InvalidArgumentError, OpError, OutOfRangeError, UnimplementedError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.default_session import check_session, session_for
from aioflow.graph.graph import GraphKeys, Operation
from aioflow.ops.queues.queues import QueueBase
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator, current_coordinator


class QueueRunner:
    """A filler of a queue: one task per enqueue node, all in the task group of a `Coordinator`.

    When the input of all enqueue nodes has ended, the queue is closed. When the coordinator stops, the queue is closed
    and pending enqueues are cancelled.

    Args:
        queue: The queue.
        enqueue_ops: Nodes that enqueue elements; a node may occur several times.
        close_op, cancel_op: Nodes that close the queue, gracefully and at once; created if not given.
        queue_closed_exception_types: Tuple of the exceptions of an enqueue node that mean that its input has ended; by
            default `OutOfRangeError`.
        queue_runner_def, import_scope: Not supported; `import_meta_graph` creates the runners of a stored graph.

    Raises:
        InvalidArgumentError: the queue or the enqueue nodes are missing.
        DTypeError: `queue_closed_exception_types` is not a tuple.
        UnimplementedError: `queue_runner_def` or `import_scope` is given.
    """

    def __init__(
        self,
        queue: QueueBase | None = None,
        enqueue_ops: Sequence[Operation] | None = None,
        close_op: Operation | None = None,
        cancel_op: Operation | None = None,
        queue_closed_exception_types: Iterable[type[OpError]] | None = None,
        queue_runner_def: object = None,
        import_scope: str | None = None,
    ) -> None:
        if queue_runner_def is not None or import_scope is not None:
            raise UnimplementedError(
                "QueueRunner accepts neither queue_runner_def nor import_scope",
                expected="queue and enqueue_ops; `train.import_meta_graph` creates the runners of a stored graph",
                actual="queue_runner_def" if queue_runner_def is not None else "import_scope",
            )
        if queue is None or not enqueue_ops:
            raise InvalidArgumentError(
                "a queue runner needs a queue and enqueue_ops", expected="both", actual=enqueue_ops
            )
        self._queue = queue
        self._enqueue_ops = list(enqueue_ops)
        self._close_op = close_op if close_op is not None else queue.close()
        self._cancel_op = cancel_op if cancel_op is not None else queue.close(cancel_pending_enqueues=True)
        if queue_closed_exception_types is not None:
            check_kind(queue_closed_exception_types, tuple, "the exceptions that close the queue", "a tuple of classes")
        types = (OutOfRangeError,) if queue_closed_exception_types is None else tuple(queue_closed_exception_types)
        self._closed_types = types
        self._exceptions: list[BaseException] = []
        # Weak: a closed session must not live as long as the graph's runners.
        self._filling: WeakKeyDictionary[Session, list[asyncio.Task[None]]] = WeakKeyDictionary()

    @property
    def queue(self) -> QueueBase:
        """The queue to fill."""
        return self._queue

    @property
    def enqueue_ops(self) -> list[Operation]:
        """The nodes that fill the queue."""
        return list(self._enqueue_ops)

    @property
    def close_op(self) -> Operation:
        """The node that closes the queue when its input has ended."""
        return self._close_op

    @property
    def cancel_op(self) -> Operation:
        """The node that closes the queue at once."""
        return self._cancel_op

    @property
    def queue_closed_exception_types(self) -> tuple[type[OpError], ...]:
        """Exceptions that mean that the input of an enqueue node has ended."""
        return self._closed_types

    @property
    def exceptions_raised(self) -> list[BaseException]:
        """Errors of enqueue nodes since the tasks were started, other than the end of the input."""
        return list(self._exceptions)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    def create_threads(
        self, sess: Session, coord: Coordinator | None = None, daemon: bool = False, start: bool = True
    ) -> list[asyncio.Task[None]]:
        """Start the tasks (not threads) in the coordinator's task group, and return them.

        Args:
            sess: The session that runs the nodes.
            coord: The owner of the tasks; by default the `Coordinator` of the enclosing block.
            daemon: Ignored: tasks end with their coordinator.
            start: Must be True: a task starts when it is created.

        Returns:
            The tasks; an empty list if the tasks of an earlier call still fill the queue in this session.

        Raises:
            InvalidArgumentError: there is no coordinator, or `start` is False.
        """
        owner = coord or current_coordinator()
        if owner is None:
            raise InvalidArgumentError(
                "no coordinator to own the tasks",
                expected="coord=, or an enclosing `async with Coordinator()` block",
                actual="neither",
            )
        if not start:
            raise InvalidArgumentError(
                "asyncio tasks start when they are created", expected="start=True", actual="start=False"
            )
        # A second call, such as that of a session creator and of the user, must not fill the queue twice.
        if any(not task.done() for task in self._filling.get(sess, ())):
            return []
        self._exceptions.clear()
        left = _Countdown(len(self._enqueue_ops))
        filling = self._filling[sess] = [owner.start(self._fill(sess, owner, op, left)) for op in self._enqueue_ops]
        return [*filling, owner.start(self._close_on_stop(sess, owner), attendant=True)]

    async def _fill(self, session: Session, coord: Coordinator, op: Operation, left: _Countdown) -> None:
        try:
            # Prepared once: each enqueue then skips the lookup of the step.
            enqueue = session.make_callable(op)
            while not coord.should_stop():
                await enqueue()
        except self._closed_types:
            pass
        except Exception as error:
            # After a stop, errors are expected: `_close_on_stop` cancels pending enqueues.
            if not coord.should_stop():
                self._exceptions.append(error)
            raise
        # The last task closes the queue: others may still enqueue.
        if left.count_down() and not coord.should_stop():
            with suppress(OpError):  # already closed elsewhere
                await session.run(self._close_op)

    async def _close_on_stop(self, session: Session, coord: Coordinator) -> None:
        # An attendant, so it runs even if all enqueue tasks have ended.
        await coord.wait_for_stop()
        with suppress(OpError):  # the session or the queue has been closed meanwhile
            await session.run(self._cancel_op)


class _Countdown:
    """Number of enqueue tasks of one session that are still running."""

    def __init__(self, count: int) -> None:
        self._count = count

    def count_down(self) -> bool:
        """Record that a task has ended. Return whether it was the last."""
        self._count -= 1
        return self._count == 0


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Add a runner to a collection of the default graph, from which `start_queue_runners` starts it."""
    default_graph().add_to_collection(collection, qr)


class StartsQueueRunners(Protocol):
    """A session that starts the queue runners itself, such as a `MonitoredSession`."""

    starts_queue_runners: bool


def start_queue_runners(
    sess: Session | StartsQueueRunners | None = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[asyncio.Task[None]]:
    """Start all queue runners of the session's graph as tasks of `coord`, and return the tasks.

    A monitored session starts the runners itself, so for one this returns an empty list.

    Args:
        sess: The session; by default the default session.
        coord: A `Coordinator`, inside its `async with` block; by default that of the enclosing block.
        daemon: As in `QueueRunner.create_threads`.
        start: As in `QueueRunner.create_threads`.
        collection: Key of the collection of runners.

    Raises:
        FailedPreconditionError: there is no session.
        InvalidArgumentError: there is no coordinator.
    """
    if getattr(sess, "starts_queue_runners", False):
        return []
    given: Any = sess
    session: Any = session_for(given, default_graph())
    check_session(session)
    runners = session.graph.get_collection(collection)
    return [task for runner in runners for task in runner.create_threads(session, coord, daemon, start)]
