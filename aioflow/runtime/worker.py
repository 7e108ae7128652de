"""The worker of one process: it owns devices and their resources, registers parts of plans, and runs steps on them.

A session talks to a `WorkerAPI` and does not care whether the worker is in its own process.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aioflow.compiler.ir import Part
from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError, NotFoundError, OpError
from aioflow.kernels.background import Background, background_of
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.device import load_backend
from aioflow.runtime.executable import Executable
from aioflow.runtime.executor import DeviceThreads, shared_threads
from aioflow.runtime.part import PartExecutable
from aioflow.runtime.step import Step

__all__ = ["Device", "Worker", "WorkerAPI", "WorkerState"]

LOCAL_TASK: Final = "/job:localhost/replica:0/task:0"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker at a glance: its devices, and how many parts and running steps it holds."""

    devices: tuple[str, ...]
    registered: int
    running: int


class WorkerAPI(Protocol):
    """What a session asks of a worker."""

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Prepare a part of a plan; returns the handle to run it by."""

    async def deregister(self, handle: int) -> None:
        """Forget a part."""

    async def run(self, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run a registered part once and return its fetches."""

    async def abort(self, step: int, error: OpError) -> None:
        """Stop a step, because of an error somewhere else."""

    async def state(self) -> WorkerState:
        """How the worker is."""


@dataclass(slots=True)
class Device:
    """One device: its full name, the backend that runs its kernels, its threads and its resources."""

    name: str
    backend: Any
    threads: DeviceThreads
    resources: ResourceManager = field(default_factory=ResourceManager)


def _cpu_devices(config: SessionConfig) -> Iterator[Device]:
    count = config.device_count.get("CPU", 1)
    if count < 1:
        raise InvalidArgumentError("a process needs a CPU device", expected="device_count of CPU ≥ 1", actual=count)
    for index in range(count):
        name = f"{LOCAL_TASK}/device:CPU:{index}"
        yield Device(name, load_backend("numpy"), shared_threads(f"-cpu{index}", config.threads))


class Worker:
    """The in-process worker. It owns its resources: sessions opened on the same worker share variables.

    Attributes:
        devices: By their full names.
        pins: The device of each node that keeps state, by name: later steps find it there.
    """

    def __init__(self, config: SessionConfig | None = None) -> None:
        settings = config or SessionConfig()
        if settings.switch_interval is not None:
            sys.setswitchinterval(min(sys.getswitchinterval(), settings.switch_interval))
        self.devices = {d.name: d for d in _cpu_devices(settings)}
        self.pins: dict[str, str] = {}
        self._handles = itertools.count(1)
        self._executables: dict[int, Executable | PartExecutable] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._running: dict[Step, None] = {}

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Bind the kernels of a part and generate its strands.

        Raises:
            UnimplementedError: there is no kernel for a node.
        """
        return self.register_now(part, session, config)

    def register_now(self, part: Part, session: int, config: SessionConfig) -> int:
        """`register` for a caller in a thread of its own."""
        state = self._states.setdefault(session, {})
        made: dict[str, Executable] = {}
        for name, graph in part.subgraphs.items():
            device = self.devices[name]
            made[name] = Executable(graph, device.backend, device.resources, state, device.threads, config)
        handle = next(self._handles)
        self._executables[handle] = next(iter(made.values())) if len(made) == 1 else PartExecutable(made)
        return handle

    async def deregister(self, handle: int) -> None:
        """Forget a part; a step of it that is running goes on."""
        self._executables.pop(handle, None)

    def forget_session(self, session: int) -> None:
        """Drop the kernel state of a session that has ended."""
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
        """Run a registered part once and return its fetches."""
        self._running[step] = None
        try:
            return await self.executable(handle).run(feeds, step)
        finally:
            del self._running[step]

    async def abort(self, step: int, error: OpError) -> None:
        """Stop a step, because of an error somewhere else; nothing is left to do for one that has ended."""
        for running in self._running:
            if running.id == step:
                running.stop(error)

    def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of the containers, or of all."""
        for device in self.devices.values():
            for container in [None] if containers is None else containers:
                device.resources.clear(container)

    async def state(self) -> WorkerState:
        """How the worker is."""
        return WorkerState(tuple(self.devices), len(self._executables), len(self._running))
