"""Elastic synchronous training: a step needs no more gradients than there are replicas that live.

The chief looks at the tasks again and again. What it finds is kept on the parameter servers: as a limit of the
accumulators, which also holds for the take that waits, and as the number of tokens that each update hands out.

No step may wait for more gradients than will come, so a replica that comes raises the limit together with one more
token, for whoever waits for one. One that has gone has perhaps taken its token along, and lowers the limit. Where a
token was lost otherwise, all replicas are found waiting, and one of them gets another.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import aioflow
from aioflow.errors import OpError
from aioflow.graph import dtypes
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.core import placeholder
from aioflow.ops.variables.variable import Variable
from aioflow.runtime.worker import WorkerState
from aioflow.train.coordinator import Coordinator

__all__ = ["Attendance", "Health", "LivingReplicas", "Watch", "tasks_without"]

Health = Callable[[], Awaitable[Mapping[str, WorkerState | OpError]]]

_LOGGER: Final = logging.getLogger("aioflow.train")
_LOOK: Final = 1.0  # seconds between two looks


class Attendance:
    """Which replicas live: those that answer, and hold a part of a graph. One that has just been started does not yet.

    One that does not once is busy; one that does not twice in a row has gone. By then the parameter servers know that,
    too, and have dropped its steps: it takes no token any more.
    """

    def __init__(self) -> None:
        self._last: frozenset[str] = frozenset()

    def look(self, health: Mapping[str, WorkerState | OpError]) -> int:
        """How many live, at least one: the chief itself."""
        here = frozenset(task for task, state in health.items() if isinstance(state, WorkerState) and state.registered)
        living = here | self._last
        self._last = here
        return max(1, len(living))


def tasks_without(jobs: Iterable[str | None], health: Mapping[str, WorkerState | OpError]) -> Mapping[str, Any]:
    """Those of no such job; all where that is nobody."""
    excluded = set(jobs)
    return {task: it for task, it in health.items() if DeviceSpec.from_string(task).job not in excluded} or health


class LivingReplicas:
    """How many replicas live, as the parameter servers know it: nodes on the device of the scope.

    The variable is in no collection: of no interest in a checkpoint, and set by the chief in each new session.

    Args:
        count: How many, at first.
        limit: Makes the nodes that have no step wait for more gradients than so many.
        hand_out: Makes the node that hands out so many tokens of the present step.
        progress: The present step, and how many wait for a token.

    Attributes:
        reset: Sets the variable to `count`.
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
        # Tokens come after that. An update that has not seen it yet has then been made, and they are of its new step.
        with self._now.graph.control_dependencies(noted):
            self._change = hand_out(self._more)

    def read(self) -> Tensor:
        """The number at the moment, an int32 scalar."""
        return self._count.read_value()

    async def set(self, session: aioflow.Session, living: int, more: int) -> None:
        """So many live from now on, and those who wait for a token get so many more."""
        await session.run(self._change, {self._now: living, self._more: more})

    async def progress(self, session: aioflow.Session) -> tuple[int, int]:
        """The present step, and how many replicas wait for a token."""
        step, waiting = await session.run(self._progress)
        return int(step), int(waiting)


class Watch:
    """The chief's looks at the replicas, in one session.

    Args:
        health: Says of each replica how it is.
    """

    def __init__(self, replicas: LivingReplicas, session: aioflow.Session, health: Health) -> None:
        self._replicas = replicas
        self._session = session
        self._health = health
        self._attendance = Attendance()
        self._living: int | None = None
        self._idle: int | None = None  # the step at which all were waiting at the last look

    async def look(self) -> None:
        """Look once. The first time nobody counts as new: the chief hands out the first tokens afterwards."""
        living, before = self._attendance.look(await self._health()), self._living
        more = 0 if before is None else max(0, living - before) or await self._missing_tokens(living)
        if living == before and not more:
            return
        await self._replicas.set(self._session, living, more)
        self._living = living
        if living != before:
            _LOGGER.info("%d replicas live; they were %s", living, "not known" if before is None else before)

    async def _missing_tokens(self, living: int) -> int:
        """One where all wait since the last look, so that nobody computes a gradient of this step."""
        step, waiting = await self._replicas.progress(self._session)
        idle, self._idle = self._idle, step if waiting >= living else None
        return int(idle == step and self._idle == step)

    async def run(self, coord: Coordinator) -> None:
        """Look again and again, until a stop is requested."""
        while not await coord.wait_for_stop(_LOOK):
            await self.look()
