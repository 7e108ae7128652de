"""What a replica of synchronous training does in each new session, as a hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import aioflow
from aioflow.config import RunOptions
from aioflow.errors import FailedPreconditionError, OpError
from aioflow.graph.graph import Operation, Tensor
from aioflow.runtime.worker import WorkerState
from aioflow.train.coordinator import Coordinator, current_coordinator
from aioflow.train.elastic import Health, LivingReplicas, Watch, tasks_without
from aioflow.train.monitored.session_run_hook import SessionRunHook
from aioflow.train.queue_runner import QueueRunner

__all__ = ["Preparation", "SyncReplicasHook"]

_PATIENCE: Final = 2.0  # seconds; who is silent for longer is dead to his peers, too


@dataclass(frozen=True, slots=True)
class Preparation:
    """The nodes that prepare a session.

    Attributes:
        missing: The names of variables without a value.
        initialize: Comes first.
        tokens, runner: The first tokens, and what hands out those of each step; for the chief alone.
        leave: What a replica other than the chief leaves to the others at the end of its training.
        replicas: How many live; for the chief of elastic training.
        shared: The jobs whose tasks hold variables, and are no replicas.
    """

    missing: Tensor
    initialize: Operation
    tokens: Operation | None = None
    runner: QueueRunner | None = None
    replicas: LivingReplicas | None = None
    shared: frozenset[str | None] = frozenset()
    leave: Operation | None = None


class SyncReplicasHook(SessionRunHook):
    """What `SyncReplicasOptimizer.make_session_run_hook` gives.

    Args:
        prepare: Makes the nodes, once the training step has been built.
        health: Says of each replica how it is, for elastic training; that of the session by default.
    """

    def __init__(self, prepare: Callable[[], Preparation], health: Health | None = None) -> None:
        self._prepare = prepare
        self._health = health
        self._preparation: Preparation | None = None

    def begin(self) -> None:
        """Make what is missing in the graph.

        Raises:
            InvalidArgumentError: `apply_gradients` has not been called.
        """
        if self._preparation is None:
            self._preparation = self._prepare()

    async def after_create_session(self, session: aioflow.Session, coord: Coordinator | None) -> None:
        """Prepare the session; the chief's runner, and what watches the replicas, become tasks of `coord`.

        Raises:
            FailedPreconditionError: `begin` has not been called, or there are variables without a value.
        """
        nodes = self._preparation
        if nodes is None:
            raise FailedPreconditionError("the hook has not begun", expected="begin() before", actual="a new session")
        missing = await session.run(nodes.missing)
        if len(missing):
            raise FailedPreconditionError(
                "replicas cannot begin before all variables have a value",
                expected="initialized variables",
                actual=[name.decode() for name in missing],
            )
        await session.run(nodes.initialize)
        watch = self._watch(nodes, session)
        if watch is not None:
            await watch.look()
        if nodes.tokens is not None:
            await session.run(nodes.tokens)
        if nodes.runner is not None:
            nodes.runner.create_threads(session, coord)
        owner = coord or current_coordinator()
        if watch is not None and owner is not None:
            owner.start(watch.run(owner), attendant=True)

    async def end(self, session: aioflow.Session) -> None:
        """Leave a token to the others, which they need to see that the training has ended.

        A replica that is quick may have made the last updates alone: then one that was late in the meantime waits for a
        token that is never handed out, since an update takes gradients of others.
        """
        if self._preparation is not None and self._preparation.leave is not None:
            with suppress(OpError):  # the chief has ended before, and has closed the queue
                await session.run(self._preparation.leave, options=RunOptions(timeout=_PATIENCE))

    def _watch(self, nodes: Preparation, session: aioflow.Session) -> Watch | None:
        if nodes.replicas is None:
            return None

        async def health() -> Mapping[str, WorkerState | OpError]:
            return tasks_without(nodes.shared, await session.health(_PATIENCE))

        return Watch(nodes.replicas, session, self._health or health)
