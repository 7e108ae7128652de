"""Elastic synchronous training: a step needs no more gradients than there are live replicas.

The chief polls the tasks. It stores the result on the parameter servers in two places: as the limit of the
accumulators, which also applies to a pending take, and as the number of tokens that each update hands out.

No step may wait for more gradients than will arrive. A new replica therefore raises the limit and adds one token, for
any replica that waits for one. A replica that has gone may have taken a token with it, and lowers the limit. If a token
was lost in another way, all replicas are found waiting, and one more token is handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from aioflow.errors import OpError
from aioflow.graph import dtypes
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.core import placeholder
from aioflow.ops.variables.variable import Variable
from aioflow.runtime.worker import WorkerState
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator

Health = Callable[[], Awaitable[Mapping[str, WorkerState | OpError]]]

_LOGGER: Final = logging.getLogger("aioflow.train")
_LOOK: Final = 1.0  # seconds between two polls


class Attendance:
    """The set of live replicas: those that answer and hold a registered graph partition.

    A replica that has just started holds no partition yet. One that misses a single poll may be busy; one that misses
    two in a row counts as gone. By then the parameter servers have noticed too and have dropped its steps, so it can
    take no token.
    """

    def __init__(self) -> None:
        self._last: frozenset[str] = frozenset()

    def look(self, health: Mapping[str, WorkerState | OpError]) -> int:
        """Return the number of live replicas, at least one: the chief itself."""
        here = frozenset(task for task, state in health.items() if isinstance(state, WorkerState) and state.registered)
        # A task counts as gone after two polls without it.
        living = here | self._last
        self._last = here
        return max(1, len(living))


def tasks_without(
    jobs: Iterable[str | None], health: Mapping[str, WorkerState | OpError]
) -> Mapping[str, WorkerState | OpError]:
    """Return the health of the tasks outside these jobs, or of all tasks if no other task exists."""
    excluded = set(jobs)
    # A cluster of one job holds variables and replicas in the same tasks.
    return {task: it for task, it in health.items() if DeviceSpec.from_string(task).job not in excluded} or health


class LivingReplicas:
    """The number of live replicas, stored on the parameter servers: nodes on the device of the current scope.

    The variable is in no collection: checkpoints do not need it, and the chief sets it in each new session.

    Args:
        count: Initial number of replicas.
        limit: Function that makes the nodes that set the accumulators' limit to a number of gradients.
        hand_out: Function that makes the node that hands out a number of tokens of the current step.
        progress: Tensors of the current step and of the number of replicas that wait for a token.

    Attributes:
        reset: Op that sets the variable to `count`.
    """

    def __init__(
        self,
        count: int,
        limit: Callable[[Tensor], Sequence[Operation]],
        hand_out: Callable[[Tensor], Operation],
        progress: tuple[Tensor, Tensor],
    ) -> None:
        self._progress = list(progress)
        self._count = Variable(count, trainable=False, collections=[], dtype=dtypes.int32, name="sync_rep_living")
        self._now = placeholder(dtypes.int32, [], "sync_rep_living_now")
        self._more = placeholder(dtypes.int32, [], "sync_rep_tokens_more")
        self.reset: Operation = self._count.initializer
        noted = [self._count.assign(self._now, read_value=False), *limit(self._now)]
        # Tokens come after the new count: an update that did not see it is complete by then, and they carry its new
        # step.
        with self._now.graph.control_dependencies(noted):
            self._change = hand_out(self._more)

    def read(self) -> Tensor:
        """Return the current number of live replicas, an int32 scalar."""
        return self._count.read_value()

    async def set(self, session: Session, living: int, more: int) -> None:
        """Set the number of live replicas to `living`, and hand out `more` tokens to waiting replicas."""
        await session.run(self._change, {self._now: living, self._more: more})

    async def progress(self, session: Session) -> tuple[int, int]:
        """Return the current step and the number of replicas that wait for a token."""
        step, waiting = await session.run(self._progress)
        return int(step), int(waiting)


class ReplicaWatch:
    """The chief's polling of the replicas, in one session.

    Args:
        replicas: The number of live replicas on the parameter servers.
        session: Session in which that number is updated.
        health: Async function that returns the state of each replica.
    """

    def __init__(self, replicas: LivingReplicas, session: Session, health: Health) -> None:
        self._replicas = replicas
        self._session = session
        self._health = health
        self._attendance = Attendance()
        self._living: int | None = None
        self._idle: int | None = None  # the step at which all replicas were waiting at the last poll

    async def look(self) -> None:
        """Poll once and update the parameter servers.

        The first call hands out no tokens, because the chief hands out the first ones afterwards.
        """
        living, before = self._attendance.look(await self._health()), self._living
        more = 0 if before is None else max(0, living - before) or await self._missing_tokens(living)
        if living == before and not more:
            return
        await self._replicas.set(self._session, living, more)
        self._living = living
        if living != before:
            _LOGGER.info("%d replicas live; they were %s", living, "not known" if before is None else before)

    async def _missing_tokens(self, living: int) -> int:
        """Return 1 if all replicas have waited at this step since the last poll, so no gradient will come; else 0."""
        step, waiting = await self._replicas.progress(self._session)
        # The step must be the same at two polls: tokens of a running update are still to come.
        idle, self._idle = self._idle, step if waiting >= living else None
        return int(idle == step and self._idle == step)

    async def run(self, coord: Coordinator) -> None:
        """Poll until a stop is requested."""
        while not await coord.wait_for_stop(_LOOK):
            await self.look()
