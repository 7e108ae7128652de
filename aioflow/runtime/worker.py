"""The worker of one process: it owns devices and their resources, registers parts of plans, and runs steps on them.

A session talks to a `WorkerAPI` and does not care whether the worker is in its own process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from aioflow.compiler.ir import Part
from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError, NotFoundError, OpError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.kernels.resources import VariableResource
from aioflow.kernels.snapshots import Snapshot
from aioflow.runtime.device import make_devices
from aioflow.runtime.executable import Executable, make_executable
from aioflow.runtime.host_copies import with_host_copies
from aioflow.runtime.registered_part import PartExecutable
from aioflow.runtime.step import Step
from aioflow.sync.background import Background, background_of
from aioflow.work.forking import check_process, generation
from aioflow.work.stopping import acting
from aioflow.work.switch_interval import lower_switch_interval

__all__ = ["Begun", "Worker", "WorkerAPI", "WorkerState"]

LOCAL_TASK: Final = "/job:localhost/replica:0/task:0"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker at a glance: its devices, and how many parts and running steps it holds."""

    devices: tuple[str, ...]
    registered: int
    running: int


class Begun(Protocol):
    """A part that is running at a worker. `close` must follow."""

    def done(self) -> bool:
        """Whether it has ended."""

    def results(self) -> list[Any]:
        """Its fetches, when it has ended well."""

    async def stop(self) -> None:
        """Have it stopped, and wait until nothing of it is running, as far as the worker can be reached."""

    def close(self) -> None:
        """Nobody is interested in it any more."""


class WorkerAPI(Protocol):
    """What a session asks of a worker."""

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Prepare a part of a plan; returns the handle to run it by."""

    async def deregister(self, handle: int) -> None:
        """Forget a part."""

    async def run(self, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run a registered part once and return its fetches."""

    def begin(
        self, handle: int, feeds: Sequence[Any], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
    ) -> Begun | None:
        """Begin to run a registered part, if that takes no waiting; else None.

        Args:
            on_end: Called when it has ended, on the step's event loop; with its error if it has failed.
            quietly: Whether only the latter need be told: the part has no fetches, and has ended when others have.

        Raises:
            OpError: it cannot be begun.
        """

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step, because of an error somewhere else; returns whether anything of it had begun."""

    async def state(self) -> WorkerState:
        """How the worker is."""


class Worker:
    """The in-process worker. It owns its resources: sessions opened on the same worker share variables.

    Args:
        task: The name that its devices begin with.
        folders: Where its graphs may open files.

    Attributes:
        devices: By their full names.
        process: The `generation` of the process that it was made in.
        folders: As above.
        pins: The device of each node that keeps state, by name: later steps find it there.
    """

    def __init__(
        self, config: SessionConfig | None = None, task: str = LOCAL_TASK, folders: AllowedFolders = ANYWHERE
    ) -> None:
        settings = config or SessionConfig()
        self.process = generation()
        if settings.switch_interval is not None:
            lower_switch_interval(settings.switch_interval)
        self.devices = {device.name: device for device in make_devices(settings, task)}
        self.folders = folders
        self.pins: dict[str, str] = {}
        self._handles = itertools.count(1)
        self._executables: dict[int, Executable | PartExecutable] = {}
        self._owners: dict[int, int] = {}  # the session of each
        self._states: dict[int, dict[str, Any]] = {}
        self._running: dict[Step, None] = {}

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Bind the kernels of a part and generate its strands.

        Raises:
            UnimplementedError: there is no kernel for a node.
            InvalidArgumentError: no kernel can be made for the attributes of a node.
            NotFoundError: it is for devices that are not here.
        """
        return self.register_now(part, session, config)

    def register_now(self, part: Part, session: int, config: SessionConfig) -> int:
        """`register` for a caller in a thread of its own."""
        for name in part.subgraphs:
            if name not in self.devices:
                raise NotFoundError("no such device", expected=f"one of {list(self.devices)}", actual=name)
        state = self._states.setdefault(session, {})
        made: dict[str, Executable] = {}
        for name, graph in part.subgraphs.items():
            device = self.devices[name]
            settings = config
            if not device.is_host:
                graph = with_host_copies(graph, device.backend.device_type, config.fetch_to_host)
                settings = replace(config, inline_budget=-1.0)  # kernels are launched by the executor only
            backend = device.backend
            capture = None if device.is_host else backend.captured  # Python's own form is the one that costs least
            alone = len(part.subgraphs) == 1
            made[name] = make_executable(
                graph, backend, device.resources, state, backend.executor, settings, capture, alone, self.folders
            )
        executable = next(iter(made.values())) if len(made) == 1 else PartExecutable(made)
        with acting():
            handle = next(self._handles)
            self._executables[handle], self._owners[handle] = executable, session
        return handle

    async def deregister(self, handle: int) -> None:
        """Forget a part; a step of it that is running goes on."""
        self._forget(handle)

    def _forget(self, handle: int) -> None:
        self._executables.pop(handle, None)
        self._owners.pop(handle, None)

    def forget_session(self, session: int) -> None:
        """Drop the parts and the kernel state of a session that has ended; steps that are running go on."""
        for handle in [handle for handle, owner in list(self._owners.items()) if owner == session]:
            self._forget(handle)
        self._states.pop(session, None)

    def background(self, session: int) -> Background:
        """The tasks of a session that outlive a step."""
        return background_of(self._states.setdefault(session, {}))

    def executable(self, handle: int) -> Executable | PartExecutable:
        """The registered part. Raises NotFoundError."""
        found = self._executables.get(handle)
        if found is None:
            raise NotFoundError(
                "the step is not registered with this worker", expected="a registered handle", actual=handle
            )
        return found

    async def run(self, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run a registered part once and return its fetches.

        Raises:
            NotFoundError: there is no such part.
            InvalidArgumentError: `feeds` are not those of the whole step.
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        return await self.execute(self.executable(handle), feeds, step)

    def begin(
        self, handle: int, feeds: Sequence[Any], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
    ) -> Begun | None:
        """None: what runs here is waited for."""
        return None

    async def execute(self, executable: Executable | PartExecutable, feeds: Sequence[Any], step: Step) -> list[Any]:
        """`run` for who has the registered part, which may have been forgotten meanwhile."""
        if len(feeds) != executable.feeds:
            raise InvalidArgumentError("wrong number of feeds", expected=executable.feeds, actual=len(feeds))
        self._running[step] = None
        try:
            return await executable.run(feeds, step)
        finally:
            del self._running[step]

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step, because of an error somewhere else; nothing is left to do for one that has ended."""
        found = [running for running in list(self._running) if running.id == step]
        for running in found:
            running.stop(error)
        return bool(found)

    @property
    def registered(self) -> int:
        """How many parts are registered."""
        return len(self._executables)

    def waited_for(self) -> Iterator[str]:
        """What steps may wait for (queues, barriers …), each with its state in words."""
        for device in self.devices.values():
            for resource in device.resources.held():
                if hasattr(resource, "describe"):
                    yield resource.describe()

    def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of the containers, or of all."""
        for device in self.devices.values():
            for container in [None] if containers is None else containers:
                device.resources.clear(container)

    def snapshots(self, names: Sequence[tuple[str, str]]) -> list[Any] | None:
        """The values that variables have now, without a copy, for who reads them later (`VariableResource.snapshot`).

        Args:
            names: Containers and names.

        Returns:
            Arrays, not to be modified, and `Snapshot`s; None where one of the variables has no value, or has it in a
            device's own memory.

        Raises:
            FailedPreconditionError: this is a child of the process that made the worker.
        """
        check_process(self.process, "the worker")
        found = [[device.resources.find(*name) for device in self.devices.values()] for name in names]
        variables = [next((each for each in here if isinstance(each, VariableResource)), None) for here in found]
        taken = [each.snapshot() for each in variables if each is not None and each.is_initialized]
        is_here = len(taken) == len(names) and all(isinstance(each, np.ndarray | Snapshot) for each in taken)
        return taken if is_here else None

    async def state(self) -> WorkerState:
        """How the worker is."""
        return WorkerState(tuple(self.devices), self.registered, len(self._running))
