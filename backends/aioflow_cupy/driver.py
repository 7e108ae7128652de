"""The few things that are asked of CUDA, by way of CuPy: a facade, so that the tests can put a recorder in its place.

Nothing is imported from CuPy before `load_driver` is called, and nothing touches the GPU's driver before that finds
one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np

from aioflow.release import install_command

__all__ = ["Allocator", "CupyDriver", "Driver", "Event", "Graph", "Pool", "Stream", "load_driver"]

Allocator: TypeAlias = Callable[[int], Any]


class Event(Protocol):
    """A point in a stream's work."""

    @property
    def done(self) -> bool:
        """Whether it has been passed. Raises what went wrong on the device before it."""

    def synchronize(self) -> None:
        """Wait for it, in this thread."""


class Graph(Protocol):
    """Captured work."""

    def launch(self, stream: Any) -> None:
        """Do it again."""


class Stream(Protocol):
    """Work that is done in order."""

    def record(self, event: Any) -> Any:
        """Let the event stand for everything asked of the stream until now."""

    def wait_event(self, event: Any) -> None:
        """Let what is asked from now on wait for the event."""

    def begin_capture(self) -> None:
        """From now on, note what is asked instead of doing it."""

    def end_capture(self) -> Graph:
        """What was noted."""


class Pool(Protocol):
    """Memory for arrays."""

    def malloc(self, size: int) -> Any:
        """An allocator, as CuPy takes it."""

    def used_bytes(self) -> int:
        """In arrays."""

    def total_bytes(self) -> int:
        """In arrays or ready for others."""

    def free_all_blocks(self) -> None:
        """Give back what no array uses."""


class Driver(Protocol):
    """What the backend asks of CUDA. `xp` is the array namespace, `extras` CuPy's `cupyx`."""

    xp: Any
    extras: Any

    def device_count(self) -> int:
        """How many GPUs there are; 0 without a driver."""

    def describe(self, device: int) -> tuple[int, str]:
        """The GPU's memory in bytes, and its name."""

    def current(self, device: int, stream: Any, allocator: Allocator) -> AbstractContextManager[None]:
        """Within it the thread's arrays are made on that device, by that allocator, and computed in that stream."""

    def stream(self, device: int) -> Any:
        """A new stream that waits for no other one."""

    def external_stream(self, device: int, pointer: int) -> Any:
        """Another library's stream."""

    def event(self, device: int) -> Any:
        """A new event."""

    def pool(self, device: int) -> Pool:
        """The device's pool, whose memory is reused in the order of the stream that it was allocated in."""

    def private_pool(self) -> Pool:
        """A pool of its own, for a captured graph."""

    def pinned(self, size: int) -> Any:
        """`size` bytes of page-locked host memory, as a NumPy array."""

    def upload(self, target: Any, source: Any, stream: Any) -> None:
        """Begin to copy contiguous page-locked bytes to contiguous ones of the device."""

    def download(self, target: Any, source: Any, stream: Any) -> None:
        """Begin to copy the other way."""

    def copy_between(self, target: Any, source: Any, stream: Any) -> None:
        """Begin to copy from a contiguous array of one device to one of another; `stream` is the target's."""

    def reach(self, device: int, other: int) -> bool:
        """Whether one device can read the other's memory itself; from then on it may."""

    def generator(self, entropy: Any) -> Any:
        """A random generator on the current device."""

    def special(self) -> Any:
        """The module of special functions (erf, gammaln, …), or None."""

    def import_array(self, exporter: Any) -> Any:
        """The array that an object with `__dlpack__` on the current device exports, for the current stream."""


def load_driver() -> CupyDriver:
    """The driver of this machine.

    Raises:
        ImportError: CuPy is not installed; the error gives the command.
    """
    try:
        import cupy
        import cupyx
    except ImportError as error:
        raise ImportError(f"the GPU backend needs CuPy: {install_command('cupy')} ({error})") from error
    return CupyDriver(cupy, cupyx)


class CupyDriver:
    """The real one."""

    def __init__(self, cupy: Any, cupyx: Any) -> None:
        self.xp = cupy
        self.extras = cupyx
        self._cuda = cupy.cuda
        self._runtime = cupy.cuda.runtime
        self._reached: dict[tuple[int, int], bool] = {}

    def device_count(self) -> int:
        """As `Driver`."""
        try:
            return int(self._runtime.getDeviceCount())
        except self._runtime.CUDARuntimeError:
            return 0

    def describe(self, device: int) -> tuple[int, str]:
        """As `Driver`."""
        properties = self._runtime.getDeviceProperties(device)
        return int(properties["totalGlobalMem"]), properties["name"].decode()

    @contextmanager
    def current(self, device: int, stream: Any, allocator: Allocator) -> Iterator[None]:
        """As `Driver`."""
        with ExitStack() as stack:
            stack.enter_context(self._cuda.Device(device))
            stack.enter_context(stream)
            stack.enter_context(self._cuda.using_allocator(allocator))
            yield

    def stream(self, device: int) -> Any:
        """As `Driver`."""
        with self._cuda.Device(device):
            return self._cuda.Stream(non_blocking=True)

    def external_stream(self, device: int, pointer: int) -> Any:
        """As `Driver`."""
        return self._cuda.ExternalStream(pointer, device)

    def event(self, device: int) -> Any:
        """As `Driver`."""
        with self._cuda.Device(device):
            return self._cuda.Event(disable_timing=True)

    def pool(self, device: int) -> Any:
        """As `Driver`: CUDA's stream-ordered pool where the GPU has it, else CuPy's own."""
        with self._cuda.Device(device) as own:
            supported = own.attributes.get("MemoryPoolsSupported", 0)
            return self._cuda.MemoryAsyncPool() if supported else self._cuda.MemoryPool()

    def private_pool(self) -> Any:
        """As `Driver`."""
        return self._cuda.MemoryPool()

    def pinned(self, size: int) -> Any:
        """As `Driver`."""
        return np.frombuffer(self._cuda.alloc_pinned_memory(max(size, 1)), np.uint8, size)

    def upload(self, target: Any, source: Any, stream: Any) -> None:
        """As `Driver`."""
        self._copy(target.data.ptr, source.ctypes.data, source.nbytes, self._runtime.memcpyHostToDevice, stream)

    def download(self, target: Any, source: Any, stream: Any) -> None:
        """As `Driver`."""
        self._copy(target.ctypes.data, source.data.ptr, source.nbytes, self._runtime.memcpyDeviceToHost, stream)

    def _copy(self, target: int, source: int, size: int, kind: int, stream: Any) -> None:
        if size:
            self._runtime.memcpyAsync(target, source, size, kind, stream.ptr)

    def copy_between(self, target: Any, source: Any, stream: Any) -> None:
        """As `Driver`."""
        self._runtime.memcpyPeerAsync(
            target.data.ptr, target.device.id, source.data.ptr, source.device.id, source.nbytes, stream.ptr
        )

    def reach(self, device: int, other: int) -> bool:
        """As `Driver`."""
        key = (device, other)
        if key not in self._reached:
            self._reached[key] = bool(self._runtime.deviceCanAccessPeer(device, other))
            if self._reached[key]:
                with self._cuda.Device(device):
                    self._enable(other)
        return self._reached[key]

    def _enable(self, other: int) -> None:
        try:
            self._runtime.deviceEnablePeerAccess(other)
        except self._runtime.CUDARuntimeError as error:
            if "AlreadyEnabled" not in str(error):
                raise

    def generator(self, entropy: Any) -> Any:
        """As `Driver`."""
        random = self.xp.random
        return random.Generator(random.Philox4x3210(np.random.SeedSequence(entropy)))

    def special(self) -> Any:
        """As `Driver`."""
        try:
            return importlib.import_module("cupyx.scipy.special")
        except ImportError:
            return None

    def import_array(self, exporter: Any) -> Any:
        """As `Driver`."""
        return self.xp.from_dlpack(exporter)
