"""The small part of CUDA that the backend needs, through CuPy: a facade that the tests can replace with a recorder.

Nothing is imported from CuPy before `load_driver` is called, and `load_driver` itself makes no call to the GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from aioflow.release import install_command

Allocator: TypeAlias = Callable[[int], Any]

_NEVER_RELEASED: Final = 2**63 - 1  # bytes


class Event(Protocol):
    """A point in a stream's work."""

    @property
    def done(self) -> bool:
        """True if the event has passed. Raises the error of work before it."""

    def synchronize(self) -> None:
        """Block the thread until the event has passed."""


class CudaGraph(Protocol):
    """Captured work."""

    def launch(self, stream: Any) -> None:
        """Run the work again."""


class CudaStream(Protocol):
    """A queue of work that runs in order."""

    def record(self, event: Any) -> object:
        """Make the event stand for all work submitted to the stream so far."""

    def wait_event(self, event: Any) -> None:
        """Make work submitted from now on wait for the event."""

    def begin_capture(self) -> None:
        """Record work submitted from now on instead of running it."""

    def end_capture(self) -> CudaGraph:
        """Return the recorded work."""


class MemoryPool(Protocol):
    """Memory for arrays."""

    def malloc(self, size: int) -> Any:
        """Allocate memory; a CuPy allocator."""

    def used_bytes(self) -> int:
        """Return the bytes in arrays."""

    def total_bytes(self) -> int:
        """Return the bytes in arrays or kept for reuse."""

    def free_all_blocks(self) -> None:
        """Release the memory that no array uses."""


class CudaDriver(Protocol):
    """The CUDA functions that the backend uses. `xp` is the array namespace, `extras` CuPy's `cupyx`."""

    xp: Any
    extras: Any

    def device_count(self) -> int:
        """Return the number of GPUs; 0 without a driver."""

    def describe(self, device: int) -> tuple[int, str]:
        """Return the GPU's memory in bytes, and its name."""

    def current(self, device: int, stream: Any, allocator: Allocator) -> AbstractContextManager[None]:
        """Return a context in which the thread makes arrays on that device, with that allocator, in that stream."""

    def stream(self, device: int) -> CudaStream:
        """Return a new stream that does not wait for other streams."""

    def external_stream(self, device: int, pointer: int) -> CudaStream:
        """Return another library's stream."""

    def event(self, device: int) -> Event:
        """Return a new event."""

    def pool(self, device: int) -> Any:
        """Return the device's pool, which reuses memory in the order of the stream that allocated it."""

    def private_pool(self) -> Any:
        """Return a separate pool for a captured graph."""

    def pinned(self, size: int) -> Any:
        """Return `size` bytes of page-locked host memory as a NumPy array."""

    def upload(self, target: Any, source: Any, stream: Any) -> None:
        """Start to copy contiguous page-locked bytes to contiguous bytes of the device."""

    def download(self, target: Any, source: Any, stream: Any) -> None:
        """Start to copy contiguous bytes of the device to contiguous page-locked bytes."""

    def copy_between(self, target: Any, source: Any, stream: Any) -> None:
        """Start to copy a contiguous array of one device to one of another; `stream` is the target's."""

    def reach(self, device: int, other: int) -> bool:
        """Return whether one device can read the other's memory directly, and enable that."""

    def generator(self, entropy: Any) -> Any:
        """Return a random generator on the current device."""

    def special(self) -> Any:
        """Return the module of special functions (erf, gammaln, …), or None."""

    def import_array(self, exporter: object) -> Any:
        """Return the array exported by an object with `__dlpack__` on the current device, for the current stream."""


def load_driver() -> CupyDriver:
    """Return the driver of this machine.

    Raises:
        ImportError: CuPy is not installed; the error contains the install command for the CUDA version of the GPU's
            driver, or those for all versions if there is no driver.
    """
    try:
        import cupy
        import cupyx
    except ImportError as error:
        raise ImportError(f"the GPU backend needs CuPy: {_install_commands()} ({error})") from error
    return CupyDriver(cupy, cupyx)


def _install_commands() -> str:
    version = cuda_version()
    if not version:
        return f"{install_command('cupy')} for CUDA 12, {install_command('cupy13')} for CUDA 13"
    return install_command("cupy13" if version >= 13 else "cupy")


def cuda_version() -> int:
    """Return the major version of CUDA that the GPU's driver supports, without CuPy; 0 without a driver."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    version = ctypes.c_int()
    failed = library.cuDriverGetVersion(ctypes.byref(version))  # 1000 times the major version, 10 times the minor one
    return 0 if failed else version.value // 1000


class CupyDriver:
    """The `CudaDriver` that calls CuPy."""

    def __init__(self, cupy: Any, cupyx: Any) -> None:
        self.xp = cupy
        self.extras = cupyx
        self._cuda = cupy.cuda
        self._runtime = cupy.cuda.runtime
        self._reached: dict[tuple[int, int], bool] = {}

    def device_count(self) -> int:
        """Return the number of GPUs; 0 if CUDA reports an error, as it does without a driver."""
        try:
            return int(self._runtime.getDeviceCount())
        except self._runtime.CUDARuntimeError:
            return 0

    def describe(self, device: int) -> tuple[int, str]:
        """Return the memory in bytes and the name, as `CudaDriver.describe`."""
        properties = self._runtime.getDeviceProperties(device)
        return int(properties["totalGlobalMem"]), properties["name"].decode()

    @contextmanager
    def current(self, device: int, stream: Any, allocator: Allocator) -> Iterator[None]:
        """Enter the context of `CudaDriver.current`."""
        with ExitStack() as stack:
            stack.enter_context(self._cuda.Device(device))
            stack.enter_context(stream)
            stack.enter_context(self._cuda.using_allocator(allocator))
            yield

    def stream(self, device: int) -> Any:
        """Return a new stream, as `CudaDriver.stream`."""
        with self._cuda.Device(device):
            # Other streams wait for CUDA's legacy default stream, which any library may use.
            return self._cuda.Stream(non_blocking=True)

    def external_stream(self, device: int, pointer: int) -> Any:
        """Return another library's stream."""
        return self._cuda.ExternalStream(pointer, device)

    def event(self, device: int) -> Any:
        """Return a new event without timing, as `CudaDriver.event`."""
        with self._cuda.Device(device):
            # Recording a time would cost more, and it is not read.
            return self._cuda.Event(disable_timing=True)

    def pool(self, device: int) -> Any:
        """Return CUDA's stream-ordered pool if the GPU supports it, otherwise CuPy's own pool."""
        with self._cuda.Device(device):
            # CuPy's own pool also reuses memory in the order of the stream that allocated it.
            supported = self._runtime.deviceGetAttribute(self._runtime.cudaDevAttrMemoryPoolsSupported, device)
            if not supported:
                return self._cuda.MemoryPool()
            with warnings.catch_warnings():
                # CuPy 13 calls the pool experimental.
                warnings.simplefilter("ignore", FutureWarning)
                pool = self._cuda.MemoryAsyncPool()
            # With a threshold of 0, CUDA returns the free memory to the system whenever the host waits for a stream.
            pool.set_limit(size=_NEVER_RELEASED)
            return pool

    def private_pool(self) -> Any:
        """Return a new pool, as `CudaDriver.private_pool`."""
        return self._cuda.MemoryPool()

    def pinned(self, size: int) -> Any:
        """Return page-locked host memory, as `CudaDriver.pinned`."""
        return np.frombuffer(self._cuda.alloc_pinned_memory(max(size, 1)), np.uint8, size)

    def upload(self, target: Any, source: Any, stream: Any) -> None:
        """Start a copy from the host to the device."""
        self._copy(target.data.ptr, source.ctypes.data, source.nbytes, self._runtime.memcpyHostToDevice, stream)

    def download(self, target: Any, source: Any, stream: Any) -> None:
        """Start a copy from the device to the host."""
        self._copy(target.ctypes.data, source.data.ptr, source.nbytes, self._runtime.memcpyDeviceToHost, stream)

    def _copy(self, target: int, source: int, size: int, kind: int, stream: Any) -> None:
        if size:
            self._runtime.memcpyAsync(target, source, size, kind, stream.ptr)

    def copy_between(self, target: Any, source: Any, stream: Any) -> None:
        """Start a copy between devices."""
        self._runtime.memcpyPeerAsync(
            target.data.ptr, target.device.id, source.data.ptr, source.device.id, source.nbytes, stream.ptr
        )

    def reach(self, device: int, other: int) -> bool:
        """Return whether one device can read the other's memory directly, and enable that."""
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
            # Another library in this process may have enabled it.
            if "AlreadyEnabled" not in str(error):
                raise

    def generator(self, entropy: Any) -> Any:
        """Return a Philox generator on the current device."""
        random = self.xp.random
        return random.Generator(random.Philox4x3210(np.random.SeedSequence(entropy)))

    def special(self) -> Any:
        """Return `cupyx.scipy.special`, or None."""
        try:
            return importlib.import_module("cupyx.scipy.special")
        except ImportError:
            return None

    def import_array(self, exporter: object) -> Any:
        """Import an array through DLPack, as `CudaDriver.import_array`."""
        return self.xp.from_dlpack(exporter)
