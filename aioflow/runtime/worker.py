"""The worker of one process: it owns devices and their resources, registers parts of plans, and runs steps on them.

A session talks to a `WorkerAPI` and does not care whether the worker is in its own process.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from aioflow.compiler.ir import Part
from aioflow.config import SessionConfig
from aioflow.errors import NotFoundError
from aioflow.kernels.background import Background, background_of
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.device import load_backend
from aioflow.runtime.executable import Executable
from aioflow.runtime.executor import DeviceThreads, shared_threads
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

    async def state(self) -> WorkerState:
        """How the worker is."""


@dataclass(slots=True)
class Device:
    """One device: its full name, the backend that runs its kernels, its threads and its resources."""

    name: str
    backend: Any
    threads: DeviceThreads
    resources: ResourceManager = field(default_factory=ResourceManager)


class Worker:
    """The in-process worker. It owns its resources: sessions opened on the same worker share variables."""

    def __init__(self, config: SessionConfig | None = None) -> None:
        settings = config or SessionConfig()
        if settings.switch_interval is not None:
            sys.setswitchinterval(min(sys.getswitchinterval(), settings.switch_interval))
        name = f"{LOCAL_TASK}/device:CPU:0"
        self.devices = {name: Device(name, load_backend("numpy"), shared_threads("-cpu0", settings.threads))}
        self._handles = itertools.count(1)
        self._executables: dict[int, Executable] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._running = 0

    async def register(self, part: Part, session: int, config: SessionConfig) -> int:
        """Bind the kernels of a part and generate its strands.

        Raises:
            UnimplementedError: there is no kernel for a node.
        """
        return self.register_now(part, session, config)

    def register_now(self, part: Part, session: int, config: SessionConfig) -> int:
        """`register` for a caller in a thread of its own."""
        ((device_name, graph),) = part.subgraphs.items()
        device = self.devices[device_name]
        state = self._states.setdefault(session, {})
        handle = next(self._handles)
        self._executables[handle] = Executable(graph, device.backend, device.resources, state, device.threads, config)
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

    def executable(self, handle: int) -> Executable:
        """The registered part. Raises NotFoundError."""
        found = self._executables.get(handle)
        if found is None:
            raise NotFoundError(
                "the step is not registered with this worker", expected="a registered handle", actual=handle
            )
        return found

    async def run(self, handle: int, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run a registered part once and return its fetches."""
        self._running += 1
        try:
            return await self.executable(handle).run(feeds, step)
        finally:
            self._running -= 1

    def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the resources of the containers, or of all."""
        for device in self.devices.values():
            for container in [None] if containers is None else containers:
                device.resources.clear(container)

    async def state(self) -> WorkerState:
        """How the worker is."""
        return WorkerState(tuple(self.devices), len(self._executables), self._running)
