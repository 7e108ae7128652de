"""What a backend supplies: a kind of device, and each device of it. The host's CPU is one kind of several.

A subgraph is cut into strands on any device; each runs as one call of the executor, on the host also straight on the
event loop while it is cheap. Where a device has memory of its own, what comes from or goes to the host crosses by
`to_device` and `to_host` (`runtime/host_copies.py` puts these where they are needed). A backend is found by the entry
point group `aioflow.backends`; `aioflow.testing.check_backend` proves one. `examples/own_backend.py` is a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aioflow.kernels.registry import ArrayBackend
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.step import Step

__all__ = ["Backend", "BackendDevice", "Executor", "MemoryStats"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """A device's memory in bytes: held by arrays, taken from the device, and how much there may be (None: no limit)."""

    used: int
    reserved: int
    limit: int | None = None


class Executor(Protocol):
    """Runs functions for a device."""

    async def run(self, step: Step, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` where kernels of the device are launched; returns when what it launched has ended.

        When the awaiting task is cancelled the step is asked to stop, and this returns (by raising) only when the
        function has, or if it has not begun: no kernel of a step runs after its `run` has ended.
        """


class BackendDevice(ArrayBackend, Protocol):
    """One device: what kernels may ask of it (`ArrayBackend`), and what the run-time asks besides."""

    @property
    def executor(self) -> Executor:
        """Runs the strands of the device."""

    def captured(
        self, function: Callable[..., tuple[Any, ...]], nodes: Sequence[BoundNode]
    ) -> Callable[..., tuple[Any, ...]] | None:
        """The function of a strand in a form that costs less to call again and again; None where there is none.

        Args:
            function: Takes and returns arrays of the device; it is called in the executor.
            nodes: What it computes.
        """

    def memory(self) -> MemoryStats | None:
        """How full it is; None where nobody counts."""

    def close(self) -> None:
        """Let go of threads, streams and pooled memory. Nothing is running then."""


class Backend(Protocol):
    """A kind of device. An instance is made when a process first needs it, and may raise ImportError then."""

    @property
    def name(self) -> str:
        """The name of its entry point, and of the extra of aioflow that brings it."""

    @property
    def device_type(self) -> str:
        """ "GPU", …: the type in device names, and in the kernel registry; `registry.HOST` for the host's own."""

    def count(self) -> int | None:
        """How many devices this process sees; 0 where the library is there and no device is. None where it has as many
        as are wanted, as a CPU may be taken for several devices: one, then, if nobody says.
        """

    def describe(self, index: int) -> tuple[int | None, str]:
        """Memory limit in bytes, and what the device is, in words."""

    def device(self, index: int, threads: int = 0) -> BackendDevice:
        """The device of that number; the same object every time.

        Args:
            threads: How many of the host's threads compute for it, 0 for one per processor. A device that computes
                elsewhere does not look at it.
        """
