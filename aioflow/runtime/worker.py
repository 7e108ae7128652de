"""The worker of one process: it owns devices and their resources, registers parts of plans, and runs steps on them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from aioflow.compiler.ir import Part
from aioflow.concurrency.forking import Locked, check_process, generation
from aioflow.concurrency.stopping import critical_section, value_limit
from aioflow.concurrency.switch_interval import lower_switch_interval
from aioflow.config import SessionConfig
from aioflow.errors import CancelledError, InvalidArgumentError, NotFoundError, OpError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.kernels.resources import VariableResource
from aioflow.kernels.snapshots import Snapshot
from aioflow.memory.values import Array, Value
from aioflow.runtime.device import Device, make_devices
from aioflow.runtime.driver import Driver, TaskRun
from aioflow.runtime.executable import Executable, TasksExecutable, make_executable
from aioflow.runtime.host_copies import with_host_copies
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step
from aioflow.sync.background import Background, background_of

# ── a registered part of a plan: the subgraphs of one worker, with a rendezvous between them ──────────────────────────


class PartExecutable:
    """The executables of one worker's devices. `run` may be called concurrently any number of times.

    Args:
        executables: The executables by device.

    Attributes:
        changes: Whether a run changes state that is visible outside without notifying its step at that moment.
        feeds: Number of feeds of the whole step.
    """

    def __init__(self, executables: Mapping[str, Executable]) -> None:
        self._executables = tuple(executables.values())
        self._devices = frozenset(executables)
        self.changes = any(executable.changes for executable in self._executables)
        self.feeds = max((executable.feeds for executable in self._executables), default=0)
        indices = [i for executable in self._executables for i in executable.fetch_indices]
        # For each fetch, in the order of the step's indices, its position in the executables' concatenated results.
        self._order = sorted(range(len(indices)), key=indices.__getitem__)

    def run_inline(self, feeds: Sequence[Value]) -> list[Value] | None:
        """Return None: the devices run concurrently, so their results have to be awaited."""
        return None

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return the part's fetches in the order of their indices in the step.

        Raises:
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        if step.rendezvous is None:
            step.rendezvous = Rendezvous(asyncio.get_running_loop(), self._devices)
        step.changed = step.changed or self.changes
        results: dict[int, list[Value]] = {}
        runs: dict[int, tuple[TasksExecutable, TaskRun]] = {}
        flows: list[Coroutine[object, object, None]] = []
        for index, executable in enumerate(self._executables):
            if isinstance(executable, TasksExecutable):
                runs[index] = (executable, executable.program.begin(feeds))
            else:
                # Tagged dataflow and the reference executor have no tasks for the driver, and run beside it.
                flows.append(_flow(executable, feeds, step, index, results))
        try:
            # All executables have the limit of the same session settings.
            with value_limit(self._executables[0].limit):
                await Driver(step).run([run for _, run in runs.values()], flows)
        except BaseException as error:
            step.rendezvous.abort(error if isinstance(error, OpError) else CancelledError("the step was stopped"))
            raise
        for index, (executable, run) in runs.items():
            fetches = executable.results(run)
            results[index] = fetches if isinstance(fetches, list) else await fetches.finish(step)
        values = [value for index in range(len(self._executables)) for value in results[index]]
        return [values[i] for i in self._order]


async def _flow(
    executable: Executable, feeds: Sequence[Value], step: Step, index: int, results: dict[int, list[Value]]
) -> None:
    """Run a subgraph that has its own executor."""
    try:
        results[index] = await executable.run(feeds, step)
    except OpError as error:
        step.stop(error)  # before the others are cancelled, so that they end with the same error
        raise


# ── the worker ────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A session uses the interface `WorkerAPI`, whether or not the worker is in its own process.


LOCAL_TASK: Final = "/job:localhost/replica:0/task:0"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of a worker: its devices, and the numbers of its parts and running steps."""

    devices: tuple[str, ...]
    registered: int
    running: int


class Begun(Protocol):
    """A part that is running at a worker. `close` must be called at the end."""

    def done(self) -> bool:
        """Return whether it has ended."""

    def results(self) -> list[Value]:
        """Return its fetches after it has ended without an error."""

    async def stop(self) -> None:
        """Abort it, and wait until no kernel of it is running or the worker is unreachable."""

    def close(self) -> None:
        """Release the handle; no further callbacks are made."""


class WorkerAPI(Protocol):
    """The interface of a session to a worker."""

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Prepare a part of a plan, and return the handle to run it by."""

    async def deregister(self, handle: int) -> None:
        """Remove a part."""

    async def run(self, handle: int, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run a registered part once and return its fetches."""

    def begin(
        self, handle: int, feeds: Sequence[Value], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
    ) -> Begun | None:
        """Start a registered part if that needs no awaiting, otherwise return None.

        Args:
            handle: The handle of the part.
            feeds: The feeds of the whole step.
            step: The step.
            on_end: Called on the step's event loop when the part has ended, with its error if it has failed.
            quietly: Whether to call `on_end` only for an error: the part has no fetches, and ends no later than others.

        Raises:
            OpError: the part cannot be started.
        """

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step because of an error elsewhere, and return whether any of it had begun."""

    async def state(self) -> WorkerState:
        """Return the state of the worker."""


class Worker:
    """The in-process worker. It owns its resources, so sessions on the same worker share variables.

    Args:
        config: The settings of the worker.
        task: The prefix of its device names.
        folders: Folders in which its graphs may open files.

    Attributes:
        process: The `generation` of the process in which it was created.
        folders: Folders in which its graphs may open files.
        pins: The device of each stateful node, by name, where later steps find its state.
    """

    def __init__(
        self, config: SessionConfig | None = None, task: str = LOCAL_TASK, folders: AllowedFolders = ANYWHERE
    ) -> None:
        settings = config or SessionConfig()
        self.process = generation()
        if settings.switch_interval is not None:
            lower_switch_interval(settings.switch_interval)
        self._make_devices = partial(make_devices, settings, task)
        self._making = Locked()
        self._devices: dict[str, Device] = {}
        self.folders = folders
        self.pins: dict[str, str] = {}
        self._handles = itertools.count(1)
        self._executables: dict[int, Executable | PartExecutable] = {}
        self._owners: dict[int, int] = {}  # the session of each handle
        self._states: dict[int, dict[str, object]] = {}
        self._running: dict[Step, None] = {}

    @property
    def devices(self) -> Mapping[str, Device]:
        """The devices by their full names, the host's first. The first access imports the backends.

        Raises:
            NotFoundError, AlreadyRegisteredError: as `backends`.
        """
        if not self._devices:
            # One set of devices, since each has its own resources, whichever thread asks first.
            with self._making.lock:
                if not self._devices:
                    self._devices = {device.name: device for device in self._make_devices()}
        return self._devices

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Bind the kernels of a part and generate its strands.

        Raises:
            UnimplementedError: there is no kernel for a node.
            InvalidArgumentError: no kernel can be bound to the attributes of a node.
            NotFoundError: the part is for devices that this worker does not have.
        """
        return self.register_now(part, session, config)

    def register_now(self, part: Part, session: int, config: SessionConfig) -> int:
        """Register a part like `register`, for callers in a thread."""
        for name in part.subgraphs:
            if name not in self.devices:
                raise NotFoundError("no such device", expected=f"one of {list(self.devices)}", actual=name)
        # All parts of a session share this state, so that it survives the plan of a step.
        state = self._states.setdefault(session, {})
        made: dict[str, Executable] = {}
        for name, graph in part.subgraphs.items():
            device = self.devices[name]
            settings = config
            if not device.is_host:
                graph = with_host_copies(graph, device.backend.device_type, config.fetch_to_host)
                settings = replace(config, inline_budget=-1.0)  # only the device's executor launches kernels
            backend = device.backend
            capture = None if device.is_host else backend.captured  # on the host, capturing would gain nothing
            alone = len(part.subgraphs) == 1
            made[name] = make_executable(
                graph, backend, device.resources, state, backend.executor, settings, capture, alone, self.folders
            )
        executable = next(iter(made.values())) if len(made) == 1 else PartExecutable(made)
        # An abandoned call that has not reached this point registers nothing.
        with critical_section():
            handle = next(self._handles)
            self._executables[handle], self._owners[handle] = executable, session
        return handle

    async def deregister(self, handle: int) -> None:
        """Remove a part. Running steps continue."""
        self._forget(handle)

    def _forget(self, handle: int) -> None:
        self._executables.pop(handle, None)
        self._owners.pop(handle, None)

    def forget_session(self, session: int) -> None:
        """Drop the parts and the kernel state of a session that has ended. Running steps continue."""
        # Copied first, because a thread may be in `register_now`, which adds entries.
        for handle in [handle for handle, owner in list(self._owners.items()) if owner == session]:
            self._forget(handle)
        self._states.pop(session, None)

    def background(self, session: int) -> Background:
        """Return the background tasks of a session, which outlive a step."""
        return background_of(self._states.setdefault(session, {}))

    def executable(self, handle: int) -> Executable | PartExecutable:
        """Return the registered part. Raises NotFoundError."""
        found = self._executables.get(handle)
        if found is None:
            raise NotFoundError(
                "the step is not registered with this worker", expected="a registered handle", actual=handle
            )
        return found

    async def run(self, handle: int, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run a registered part once and return its fetches.

        Raises:
            NotFoundError: there is no such part.
            InvalidArgumentError: `feeds` are not those of the whole step.
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        return await self.execute(self.executable(handle), feeds, step)

    def begin(
        self, handle: int, feeds: Sequence[Value], step: Step, on_end: Callable[[OpError | None], None], quietly: bool
    ) -> Begun | None:
        """Return None: an in-process part is awaited, not started in the background."""
        return None

    async def execute(self, executable: Executable | PartExecutable, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run like `run`, but with the executable itself, so that it works after `deregister`."""
        if len(feeds) != executable.feeds:
            raise InvalidArgumentError("wrong number of feeds", expected=executable.feeds, actual=len(feeds))
        # From here on `abort` finds the step, by its id.
        self._running[step] = None
        try:
            return await executable.run(feeds, step)
        finally:
            del self._running[step]

    async def abort(self, step: int, error: OpError) -> bool:
        """Stop a step because of an error elsewhere, and return whether it was running here."""
        found = [running for running in list(self._running) if running.id == step]
        for running in found:
            running.stop(error)
        return bool(found)

    @property
    def registered(self) -> int:
        """The number of registered parts."""
        return len(self._executables)

    def waited_for(self) -> Iterator[str]:
        """Yield a description of the state of each resource that steps may wait for (queues, barriers, …)."""
        for device in self.devices.values():
            for resource in device.resources.held():
                if hasattr(resource, "describe"):
                    yield resource.describe()

    def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of the containers, or all resources."""
        for device in self.devices.values():
            for container in [None] if containers is None else containers:
                device.resources.clear(container)

    def snapshots(self, names: Sequence[tuple[str, str]]) -> list[Array | Snapshot] | None:
        """Return the current values of variables without a copy, to be read later (`VariableResource.snapshot`).

        Args:
            names: The containers and names of the variables.

        Returns:
            Arrays, not to be modified, and `Snapshot`s; None if one of the variables has no value or its value is in a
            device's own memory.

        Raises:
            FailedPreconditionError: this is a child of the process that created the worker.
        """
        check_process(self.process, "the worker")
        found = [[device.resources.find(*name) for device in self.devices.values()] for name in names]
        # A variable is on one device of the worker. The search of the other devices finds nothing.
        variables = [next((each for each in here if isinstance(each, VariableResource)), None) for here in found]
        taken = [each.snapshot() for each in variables if each is not None and each.is_initialized]
        is_here = len(taken) == len(names) and all(isinstance(each, np.ndarray | Snapshot) for each in taken)
        return taken if is_here else None

    async def state(self) -> WorkerState:
        """Return the state of the worker."""
        return WorkerState(tuple(self.devices), self.registered, len(self._running))
