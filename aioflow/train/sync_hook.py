"""A hook that prepares each new session of a replica in synchronous training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from aioflow.config import RunOptions
from aioflow.errors import FailedPreconditionError, OpError
from aioflow.graph.graph import Operation, Tensor
from aioflow.runtime.worker import WorkerState
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator, current_coordinator
from aioflow.train.elastic import Health, LivingReplicas, ReplicaWatch, tasks_without
from aioflow.train.monitored.session_run_hook import SessionRunHook
from aioflow.train.queue_runner import QueueRunner

_PATIENCE: Final = 2.0  # seconds; the other tasks, too, treat a peer as dead after this time


@dataclass(frozen=True, slots=True)
class Preparation:
    """The nodes that prepare a session.

    Attributes:
        missing: Names of variables without a value.
        initialize: Op that runs first.
        tokens, runner: First tokens, and the runner that hands out those of each step; only for the chief.
        replicas: Number of live replicas; only for the chief of elastic training.
        shared: Jobs whose tasks hold variables and are not replicas.
        leave: Op that returns a token to the other replicas at the end of training; not for the chief.
    """

    missing: Tensor
    initialize: Operation
    tokens: Operation | None = None
    runner: QueueRunner | None = None
    replicas: LivingReplicas | None = None
    shared: frozenset[str | None] = frozenset()
    leave: Operation | None = None


class SyncReplicasHook(SessionRunHook):
    """The hook that `SyncReplicasOptimizer.make_session_run_hook` returns.

    Args:
        prepare: Function that makes the nodes, called once the training step has been built.
        health: Async function that returns the state of each replica, for elastic training; by default that of the
            session.
    """

    def __init__(self, prepare: Callable[[], Preparation], health: Health | None = None) -> None:
        self._prepare = prepare
        self._health = health
        self._preparation: Preparation | None = None

    def begin(self) -> None:
        """Add the missing nodes to the graph.

        Raises:
            InvalidArgumentError: `apply_gradients` has not been called.
        """
        if self._preparation is None:
            self._preparation = self._prepare()

    async def after_create_session(self, session: Session, coord: Coordinator | None) -> None:
        """Prepare the session. The chief's runner and the polling of replicas become tasks of `coord`.

        Raises:
            FailedPreconditionError: `begin` has not been called, or variables have no value.
        """
        nodes = self._preparation
        if nodes is None:
            raise FailedPreconditionError(
                "the hook has not begun", expected="begin() before the session is created", actual="not called"
            )
        # The creator of the session initializes the variables; a replica that starts before that must not train.
        missing = await session.run(nodes.missing)
        if len(missing):
            raise FailedPreconditionError(
                "replicas cannot start before all variables are initialized",
                expected="initialized variables",
                actual=[name.decode() for name in missing],
            )
        # The local step follows the global one, and the chief's accumulators restart at it.
        await session.run(nodes.initialize)
        watch = self._watch(nodes, session)
        # Before the first tokens: elastic training hands out one for each live replica.
        if watch is not None:
            await watch.look()
        if nodes.tokens is not None:
            await session.run(nodes.tokens)
        if nodes.runner is not None:
            nodes.runner.create_threads(session, coord)
        owner = coord or current_coordinator()
        if watch is not None and owner is not None:
            # An attendant ends only with the training, so `join` does not wait for it before a stop.
            owner.start(watch.run(owner), attendant=True)

    async def end(self, session: Session) -> None:
        """Leave a token to the other replicas, which need it to see that the training has ended.

        A fast replica may make the last updates alone. A slow replica then waits for a token that is never handed out,
        because no update takes its gradients.
        """
        if self._preparation is not None and self._preparation.leave is not None:
            with suppress(OpError):  # the chief may have ended before and closed the queue
                # The queue may be on a task that has gone; the end of the training must not hang on it.
                await session.run(self._preparation.leave, options=RunOptions(timeout=_PATIENCE))

    def _watch(self, nodes: Preparation, session: Session) -> ReplicaWatch | None:
        if nodes.replicas is None:
            return None

        async def health() -> Mapping[str, WorkerState | OpError]:
            return tasks_without(nodes.shared, await session.health(_PATIENCE))

        return ReplicaWatch(nodes.replicas, session, self._health or health)
