"""The interface of backends. A backend is one kind of device; the host's CPU is one kind among several.

On any device, a subgraph is compiled to strands. Each strand runs as one call of the executor; on the host, cheap
strands run directly on the event loop. If a device has its own memory, values to and from the host are transferred by
`to_device` and `to_host` (`runtime/host_copies.py` inserts these where needed). Backends are found by the entry point
group `aioflow.backends`; `aioflow.testing.check_backend` tests one. `examples/own_backend.py` is a small example.
`aioflow.extend` exports the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from aioflow.kernels.registry import ArrayBackend
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.step import Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """A device's memory in bytes: used by arrays, reserved from the device, and the limit (None: no limit)."""

    used: int
    reserved: int
    limit: int | None = None


class Executor(Protocol):
    """The executor of a device's functions. `extend.DeviceThreads` is one that runs them in threads."""

    async def run(self, step: Step, function: Callable[..., T], *args: object) -> T:
        """Run `function(*args)` where the device's kernels are launched, and wait until all launched work has ended.

        Several calls may be awaited at once. Errors of the function are raised unchanged.

        If the awaiting task is cancelled, the step is asked to stop, by `step.stop()`. This method then raises only
        after the function has ended, or if it has not begun. So no kernel of a step runs after the step's `run` has
        ended. An executor may abandon a function that does not end, except in a critical section (`StepWork`), and
        notes it by `step.leave_behind`.
        """


class BackendDevice(ArrayBackend, Protocol):
    """One device: the interface for kernels (`ArrayBackend`), extended by the methods that the runtime calls."""

    @property
    def executor(self) -> Executor:
        """Executor of the device's strands."""

    def captured(
        self, function: Callable[..., tuple[Value, ...]], nodes: Sequence[BoundNode]
    ) -> Callable[..., tuple[Value, ...]] | None:
        """Return a form of a strand's function that is cheaper to call repeatedly, or None.

        Args:
            function: Takes and returns arrays of the device. It is called in the executor.
            nodes: The nodes that it computes, with their kernels.
        """

    def memory(self) -> MemoryStats | None:
        """Return the memory statistics, or None if they are not tracked."""

    def close(self) -> None:
        """Release threads, streams and pooled memory. Called when nothing runs."""


class Backend(Protocol):
    """A kind of device. It is instantiated when a process first needs it, and may raise ImportError then."""

    @property
    def name(self) -> str:
        """Name of the backend's entry point, and of the aioflow extra that installs the backend."""

    @property
    def device_type(self) -> str:
        """Type in device names and in the kernel registry, for example "GPU"; `registry.HOST` for the host's own."""

    def count(self) -> int | None:
        """Return the number of devices visible to this process; 0 if the library is installed but finds no device.

        None means that there can be any number, as a CPU may stand for several devices; the default is then one.
        """

    def describe(self, index: int) -> tuple[int | None, str]:
        """Return the memory limit in bytes (None without one), and a description of the device."""

    def device(self, index: int, threads: int = 0) -> BackendDevice:
        """Return the device with this number; the same object every time.

        Args:
            index: Number of the device.
            threads: Number of host threads that compute for the device; 0 for one per processor. Devices that compute
                elsewhere ignore it.
        """
