"""The workers that a session runs on. A local session has a cluster of one in-process worker.

A plan is registered once, part by part. A step is then one call of every worker that has a part.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from aioflow.compiler.ir import Part, Plan, worth_a_thread
from aioflow.concurrency.threads import in_thread
from aioflow.config import SessionConfig
from aioflow.errors import ClosedSessionError, NotFoundError, OpError
from aioflow.graph.device_spec import task_of
from aioflow.memory.collector import full_collections_postponed
from aioflow.memory.values import Value
from aioflow.runtime.device import import_backends
from aioflow.runtime.handing_over import Unfinished
from aioflow.runtime.parts import StepOfParts
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker, WorkerState
from aioflow.sync.background import Background

Home: TypeAlias = tuple[str, str, str]  # a resource: its container, its name, and the requested device


class RegisteredStep(Protocol):
    """A plan that is registered with the workers."""

    def run_inline(self, feeds: Sequence[Value]) -> list[Value] | Unfinished | None:
        """Return the fetches if the step is short enough to run in the calling thread, otherwise None.

        An `Unfinished` holds fetches of which large copies remain to be made.
        """

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return the fetches in order. Raises OpError."""

    async def deregister(self) -> None:
        """Remove the plan. Running steps continue."""


async def register(worker: Worker, part: Part, session: int, config: SessionConfig) -> int:
    """Register a part with `worker` and return its handle; in a thread if the part is large.

    If the call is cancelled, nothing stays registered.
    """
    if not worth_a_thread(part.size):
        return worker.register_now(part, session, config)
    # Not the result of `in_thread`, which is lost if the call is cancelled just after the registration.
    handles: list[int] = []

    @full_collections_postponed()
    def registered() -> None:
        handles.append(worker.register_now(part, session, config))

    try:
        await in_thread(registered, effects=False)
    except BaseException:
        for handle in handles:  # registration completed while the call was being cancelled
            await worker.deregister(handle)
        raise
    return handles[0]


class LocalStep:
    """A plan on the in-process worker, with a fast path that bypasses the event loop for short steps."""

    def __init__(self, worker: Worker, handle: int) -> None:
        self._worker = worker
        self._handle = handle
        self._executable = worker.executable(handle)
        # An instance attribute saves one call per step.
        self.run_inline = self._executable.run_inline

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return the fetches in order, even if the plan was deregistered after its lookup.

        Raises:
            OpError: as for `Worker.run`.
        """
        return await self._worker.execute(self._executable, feeds, step)

    async def deregister(self) -> None:
        """Remove the plan. Running steps continue."""
        await self._worker.deregister(self._handle)


class Cluster(Protocol):
    """The interface of a session to the workers that it runs on."""

    @property
    def devices(self) -> Sequence[str]:
        """Full names of all devices, the preferred ones first."""

    @property
    def pins(self) -> dict[str, str]:
        """The devices of the stateful nodes, by node name. The planner of steps fills it in."""

    @property
    def home(self) -> frozenset[str] | None:
        """The devices in this process, or None if all are."""

    @property
    def files(self) -> frozenset[str] | None:
        """The devices on which files may be opened, or None for all."""

    @property
    def own(self) -> str:
        """The client's own device, for nodes that must run in this process; "" if no device is in another process."""

    on_move: list[Callable[[], Awaitable[None]]]
    """Callbacks that are awaited when resources have moved to other devices, which invalidates existing plans."""

    settings: SessionConfig | None
    """The settings of the cluster that `connect` reached, for the session to adopt."""

    @property
    def worker(self) -> Worker:
        """The only worker, in this process. Raises UnimplementedError if there are others."""

    def keep_checkpoints_in(self, folder: str | os.PathLike[str]) -> None:
        """Allow the client's own server to open files of `folder`, where the program keeps its checkpoints."""

    def background(self, session: int) -> Background:
        """Return the background tasks of a session, which outlive a step."""

    async def connect(self) -> None:
        """Discover the workers. Afterwards the devices are known."""

    async def reach(self, wait: float | None) -> None:
        """Wait until all workers answer, at most `wait` seconds; None for the default."""

    def next_step(self) -> int:
        """Return the id of a new step, or 0 if no other worker needs to know about it."""

    async def register(self, plan: Plan, session: int, config: SessionConfig) -> RegisteredStep:
        """Register the parts of the plan with their workers."""

    async def resolve(self, homes: Mapping[Home, str]) -> Mapping[Home, str]:
        """Resolve the locations of resources, once for all clients.

        Args:
            homes: The locations that this client proposes.
        """

    async def reset(self, containers: Sequence[str] | None) -> None:
        """Drop the resources of the containers, or all resources, on every worker."""

    async def health(self, seconds: float) -> Mapping[str, WorkerState | OpError]:
        """Return the state of each task's worker, or the reason why it is unknown, within `seconds`."""

    def forget(self, session: int) -> None:
        """Release what the workers keep for the session, which runs no more steps."""

    async def close(self) -> None:
        """Close the connections to the workers."""

    def stop(self) -> None:
        """Start closing without waiting."""


class LocalCluster:
    """The cluster of one session on an in-process worker, which may be shared."""

    home = None
    files = None
    own = ""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.on_move: list[Callable[[], Awaitable[None]]] = []
        self.settings: SessionConfig | None = None
        self._is_over = False

    def keep_checkpoints_in(self, folder: str | os.PathLike[str]) -> None:
        """Allow the worker to open files of `folder`, if it is restricted to some folders."""
        self.worker.folders.allow(folder)

    def background(self, session: int) -> Background:
        """Return the background tasks of the session, which the worker owns together with the state of its nodes."""
        return self.worker.background(session)

    async def connect(self) -> None:
        """Import the backends of the worker, which is in this process."""
        await import_backends()

    async def reach(self, wait: float | None) -> None:
        """Do nothing: the worker is in this process."""

    def next_step(self) -> int:
        """Return 0, because no other worker takes part in a step."""
        return 0

    async def resolve(self, homes: Mapping[Home, str]) -> Mapping[Home, str]:
        """Return `homes` unchanged: sessions on one worker share `pins`."""
        return homes

    async def reset(self, containers: Sequence[str] | None) -> None:
        """Drop the resources of the containers, or all resources."""
        self.worker.reset(containers)

    async def health(self, seconds: float) -> Mapping[str, WorkerState | OpError]:
        """Return the state of the worker."""
        return {task_of(next(iter(self.worker.devices))): await self.worker.state()}

    def forget(self, session: int) -> None:
        """Drop the session's plans and the state that nodes keep for it."""
        self._is_over = True
        self.worker.forget_session(session)

    async def close(self) -> None:
        """Do nothing: the worker may be shared."""

    def stop(self) -> None:
        """Do nothing: there are no connections."""

    @property
    def devices(self) -> Sequence[str]:
        """Full names of the worker's devices."""
        return tuple(self.worker.devices)

    @property
    def pins(self) -> dict[str, str]:
        """The devices of the stateful nodes, by node name. Sessions on one worker share them, like its resources."""
        return self.worker.pins

    async def register(self, plan: Plan, session: int, config: SessionConfig) -> RegisteredStep:
        """Register the plan with the worker."""
        (part,) = plan.parts.values()
        # A step without fetches and targets has no nodes.
        if not any(graph.nodes for graph in part.subgraphs.values()):
            return StepOfParts(())
        handle = await register(self.worker, part, session, config)
        try:
            made = LocalStep(self.worker, handle)
        except NotFoundError:  # the session was closed, perhaps by another thread, while the part was registered
            raise ClosedSessionError.refusing() from None
        if self._is_over:  # `forget` was called while the part was registered
            self.worker.forget_session(session)
        return made
