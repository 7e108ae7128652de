"""The workers that a session runs on. A local session has a cluster of one in-process worker.

A plan is registered once, part by part, and a step is then one call of every worker that has a part.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from aioflow.compiler.ir import Part, Plan, worth_a_thread
from aioflow.config import SessionConfig
from aioflow.errors import ClosedSessionError, NotFoundError, OpError
from aioflow.graph.device_spec import task_of
from aioflow.runtime.handing_over import Unfinished
from aioflow.runtime.parts import StepOfParts
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker, WorkerState
from aioflow.sync.background import Background
from aioflow.work.collector import full_collections_postponed
from aioflow.work.threads import in_thread

__all__ = ["Cluster", "Home", "LocalCluster", "LocalStep", "RegisteredStep", "register"]


Home: TypeAlias = tuple[str, str, str]  # a resource: its container, its name, and the device that was asked for


class RegisteredStep(Protocol):
    """A plan that the workers know."""

    def run_inline(self, feeds: Sequence[Any]) -> list[Any] | Unfinished | None:
        """The fetches, if the step is so short that it is run right here; else None."""

    async def run(self, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run one step; returns the fetches in order. Raises OpError."""

    async def deregister(self) -> None:
        """Forget the plan; a step that is running goes on."""


async def register(worker: Worker, part: Part, session: int, config: SessionConfig) -> int:
    """`Worker.register`, in a thread if it takes its time; one who is cancelled leaves nothing registered."""
    if not worth_a_thread(part.size):
        return worker.register_now(part, session, config)
    handles: list[int] = []

    @full_collections_postponed()
    def registered() -> None:
        handles.append(worker.register_now(part, session, config))

    try:
        await in_thread(registered, effects=False)
    except BaseException:
        for handle in handles:  # it was done in the moment of the cancellation
            await worker.deregister(handle)
        raise
    return handles[0]


class LocalStep:
    """A plan on the in-process worker, with a way around the event loop for what is short."""

    def __init__(self, worker: Worker, handle: int) -> None:
        self._worker = worker
        self._handle = handle
        self._executable = worker.executable(handle)
        self.run_inline = self._executable.run_inline

    async def run(self, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run one step, also where the plan was forgotten after it had been looked up; returns the fetches in order.

        Raises:
            OpError: as of `Worker.run`.
        """
        return await self._worker.execute(self._executable, feeds, step)

    async def deregister(self) -> None:
        """Forget the plan; a step that is running goes on."""
        await self._worker.deregister(self._handle)


class Cluster(Protocol):
    """What a session needs of the workers that it runs on."""

    @property
    def devices(self) -> Sequence[str]:
        """Full names of all devices, the preferred ones first."""

    @property
    def pins(self) -> dict[str, str]:
        """The devices of the nodes that keep state, by name; those who plan steps fill it in."""

    @property
    def home(self) -> frozenset[str] | None:
        """The devices in this process, if not all are."""

    @property
    def files(self) -> frozenset[str] | None:
        """The devices on which files may be opened, if not on all."""

    @property
    def own(self) -> str:
        """The device of the client itself, for what has to be in this process; "" where no other is elsewhere."""

    on_move: list[Callable[[], Awaitable[None]]]
    """Each is awaited when resources are elsewhere than before: plans that were made are wrong."""

    settings: SessionConfig | None
    """Of whom `connect` has reached, for the session to take up."""

    @property
    def worker(self) -> Worker:
        """The one worker, of this process. Raises UnimplementedError where there are others."""

    def keep_checkpoints_in(self, folder: str | os.PathLike[str]) -> None:
        """The program keeps its checkpoints there: its own server may open files of that folder."""

    def background(self, session: int) -> Background:
        """Where the tasks of a session belong that outlive a step."""

    async def connect(self) -> None:
        """Find out who is there; the devices are known from then on."""

    def next_step(self) -> int:
        """The id of a new step; 0 where no other worker need know of it."""

    async def register(self, plan: Plan, session: int, config: SessionConfig) -> RegisteredStep:
        """Have every worker prepare its part."""

    async def settle(self, homes: Mapping[Home, str]) -> Mapping[Home, str]:
        """Where resources are, once and for all clients.

        Args:
            homes: Where this client would have them.
        """

    async def reset(self, containers: Sequence[str] | None) -> None:
        """Drop the resources of the containers, or of all, on every worker."""

    async def health(self, seconds: float) -> Mapping[str, WorkerState | OpError]:
        """For each task how its worker is, or why nobody knows, after so many seconds at the most."""

    def forget(self, session: int) -> None:
        """The session runs no more steps."""

    async def close(self) -> None:
        """End the connections to the workers."""

    def stop(self) -> None:
        """Begin to `close`, for one who cannot wait."""


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
        """The worker may open files of that folder, if not all."""
        self.worker.folders.allow(folder)

    def background(self, session: int) -> Background:
        """The worker has it, with what nodes keep for the session."""
        return self.worker.background(session)

    async def connect(self) -> None:
        """Nothing: the worker is here."""

    def next_step(self) -> int:
        """0: no other worker knows of a step here."""
        return 0

    async def settle(self, homes: Mapping[Home, str]) -> Mapping[Home, str]:
        """As they are: sessions on one worker share `pins`."""
        return homes

    async def reset(self, containers: Sequence[str] | None) -> None:
        """Drop the resources of the containers, or of all."""
        self.worker.reset(containers)

    async def health(self, seconds: float) -> Mapping[str, WorkerState | OpError]:
        """How the worker is."""
        return {task_of(next(iter(self.worker.devices))): await self.worker.state()}

    def forget(self, session: int) -> None:
        """Drop the session's plans, and what nodes keep for it."""
        self._is_over = True
        self.worker.forget_session(session)

    async def close(self) -> None:
        """Nothing: the worker may be shared."""

    def stop(self) -> None:
        """Nothing."""

    @property
    def devices(self) -> Sequence[str]:
        """Full names of the worker's devices."""
        return tuple(self.worker.devices)

    @property
    def pins(self) -> dict[str, str]:
        """As `Cluster.pins`; sessions on one worker share them, as they share its resources."""
        return self.worker.pins

    async def register(self, plan: Plan, session: int, config: SessionConfig) -> RegisteredStep:
        """Have the worker prepare the plan."""
        (part,) = plan.parts.values()
        if not any(graph.nodes for graph in part.subgraphs.values()):
            return StepOfParts(())
        handle = await register(self.worker, part, session, config)
        try:
            made = LocalStep(self.worker, handle)
        except NotFoundError:  # the session was closed, perhaps by another thread, before the handle was here
            raise ClosedSessionError.refusing() from None
        if self._is_over:  # meanwhile
            self.worker.forget_session(session)
        return made
