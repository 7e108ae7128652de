"""The worker of one task of a cluster: a `Worker` whose steps meet those of other tasks.

Each client has a `WorkerSession` on it, whatever way it comes by: over a connection (`worker_service.py`), or straight
from a session in the same process. Parts, kernel state and steps belong to that, and are gone with it; variables and
other resources belong to the worker.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from aioflow.compiler.ir import Part
from aioflow.config import SessionConfig
from aioflow.errors import CancelledError, InvalidArgumentError, NotFoundError, OpError
from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.net.outbox import Outbox, Parcel
from aioflow.net.step_table import JointStep, StepTable
from aioflow.runtime.cluster import register
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker, WorkerState

__all__ = ["TaskWorker", "WorkerSession"]

_owner_of: Final = cache(task_of)


class TaskWorker:
    """A worker with its steps and its outbox; it belongs to the running event loop.

    Args:
        worker: What runs the parts.
        outbox: Takes values to other tasks.
    """

    def __init__(self, worker: Worker, outbox: Outbox) -> None:
        self.worker = worker
        self._outbox = outbox
        self._devices = frozenset(worker.devices)
        self._sessions = itertools.count(-1, -1)  # below those of sessions in this process
        self.steps = StepTable(self._rendezvous)
        self._loop = asyncio.get_running_loop()

    def _rendezvous(self, step: int) -> Rendezvous:
        def push(edge: str, tag: str, value: Any, to: str) -> None:
            joint = self.steps.get(step)
            if joint is not None:  # it has ended otherwise
                task = _owner_of(to)
                self._outbox.push(Parcel(task, joint.peers.get(task, 0), step, edge, tag, value, joint.fail))

        return Rendezvous(self._loop, self._devices, push)

    def open_session(self, peers: Mapping[str, int] | None = None) -> WorkerSession:
        """What one client gets.

        Args:
            peers: For each task the number of its process, as the client knows it.
        """
        return WorkerSession(self, next(self._sessions), {} if peers is None else peers)


class WorkerSession:
    """What a worker is to one client (`runtime.worker.WorkerAPI`). `close` must follow.

    Args:
        peers: As of `TaskWorker.open_session`; read at each step.
    """

    def __init__(self, owner: TaskWorker, number: int, peers: Mapping[str, int]) -> None:
        self._owner = owner
        self._worker = owner.worker
        self._number = number
        self._peers = peers
        self._handles: dict[int, bool] = {}  # and whether anything is sent or received there
        self._running: set[JointStep] = set()

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Bind the kernels of a part and generate its strands; `session` is ignored here.

        Raises:
            UnimplementedError: there is no kernel for a node.
            NotFoundError: it is for devices that are not here.
        """
        handle = await register(self._worker, part, self._number, config)
        self._handles[handle] = any(node.op in (SEND, RECV) for node in part.nodes())
        return handle

    async def deregister(self, handle: int) -> None:
        """Forget a part; a step of it that is running goes on."""
        if handle in self._handles:
            del self._handles[handle]
            await self._worker.deregister(handle)

    async def run(self, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run a registered part once and return its fetches.

        Raises:
            NotFoundError: this client has registered no such part.
            InvalidArgumentError: the step has no number, and something is sent or received in it.
            OpError: a kernel failed, or the step was stopped; the first cause.
        """
        meets = self._handles.get(handle)
        if meets is None:
            raise NotFoundError(
                "the step is not registered with this worker", expected="a registered handle", actual=handle
            )
        if step.requested:
            step.halt()
        if not step.id:
            if meets:
                raise InvalidArgumentError("a step in which values are sent has no number", expected="> 0", actual=0)
            return await self._worker.run(handle, feeds, step)
        joint = self._owner.steps.begin(step.id, step, self._peers, meets)
        self._running.add(joint)
        step.rendezvous = joint.rendezvous
        try:
            return await self._worker.run(handle, feeds, step)
        finally:
            self._running.discard(joint)
            self._owner.steps.end(joint)

    async def abort(self, step: int, error: OpError) -> None:
        """Stop a step, because of an error somewhere else; returns when nothing of it is running here any more."""
        joint = self._owner.steps.abort(step, error)
        if joint is not None:
            await joint.ended()

    async def state(self) -> WorkerState:
        """How the worker is, with what all its clients have there."""
        return await self._worker.state()

    async def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of the containers, or of all."""
        self._worker.reset(containers)

    async def close(self) -> None:
        """Stop what runs, and forget all that the client had here."""
        running = list(self._running)
        for joint in running:
            joint.fail(CancelledError("the client of the step is gone"))
        for joint in running:
            await joint.ended()
        await self._worker.background(self._number).close()
        for handle in list(self._handles):
            await self.deregister(handle)
        self._worker.forget_session(self._number)
