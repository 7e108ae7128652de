"""One GPU: its streams, memory, copies and executor, created and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property  # noqa: TID251  # a forked child has no GPU
from typing import Any, Final, TypeVar

import numpy as np

from aioflow.concurrency.threads import although_cancelled
from aioflow.errors import InternalError, ResourceExhaustedError
from aioflow.kernels.registry import Binding, KernelBody, KernelDef
from aioflow.kernels.resources import VariableResource
from aioflow.memory.values import Array, Value
from aioflow.runtime.backend_api import MemoryStats
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.host_values import HostValues
from aioflow.runtime.step import Step, root_cause
from aioflow_cupy.completion import Completions
from aioflow_cupy.dlpack import SharedArray, imported, is_on_gpu
from aioflow_cupy.driver import CudaDriver, Event, MemoryPool
from aioflow_cupy.graphs import CapturedFunction, StrandFunction, is_capturable
from aioflow_cupy.namespace import CupyNamespace
from aioflow_cupy.staging import LANE_BYTES, Lanes
from aioflow_cupy.streams import DeviceStreams
from aioflow_cupy.transfers import Transfers

# ── a device's memory: the pool of its arrays, an exact limit, and statistics ─────────────────────────────────────────


class DeviceMemory:
    """The allocator of one device.

    It enforces the limit itself, because the limit of CUDA's stream-ordered pool bounds only the memory kept for reuse,
    not the memory in use.
    """

    def __init__(self, pool: MemoryPool, limit: int | None) -> None:
        self._pool = pool
        self._limit = limit
        self.allocate: Any = pool.malloc if limit is None else self._within_limit

    def _within_limit(self, size: int) -> Any:
        if self._limit is not None and self._pool.used_bytes() + size > self._limit:
            used = self._pool.used_bytes()
            raise ResourceExhaustedError(
                "the memory limit of the device does not allow another array",
                expected=f"at most {self._limit} bytes",
                actual=f"{size} bytes more than the {used} in use",
            )
        return self._pool.malloc(size)

    def stats(self) -> MemoryStats:
        """Return the memory statistics."""
        return MemoryStats(self._pool.used_bytes(), self._pool.total_bytes(), self._limit)

    def trim(self) -> None:
        """Release the memory that no array uses."""
        self._pool.free_all_blocks()


# ── the executor of a GPU: one thread launches kernels, in order, into the compute stream ─────────────────────────────

T = TypeVar("T")


class StreamExecutor:
    """A `backend_api.Executor`. While the kernels of one function run, the thread launches those of the next."""

    def __init__(self, name: str, streams: DeviceStreams, completions: Completions) -> None:
        self._threads = DeviceThreads(name, 1)
        self._streams = streams
        self._completions = completions

    async def run(self, step: Step, function: Callable[..., T], *args: object) -> T:
        """Run `function(*args)` in the launching thread, with the compute stream current.

        Returns after its kernels are done.
        """
        result: T
        try:
            result, launched = await self._threads.run(step, self._launch, function, args)
            await self._completions.future(launched)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                step.stop()
            # Also after a cancellation: the step ends only when no kernel of it is running.
            await self._wait_until_done()
            raise
        return result

    def _launch(self, function: Callable[..., T], args: tuple[object, ...]) -> tuple[T, Event]:
        with self._streams.computing():
            result = function(*args)
        # Marked in the launching thread, so that no work of a later function is before the event.
        return result, self._streams.mark(self._streams.compute)

    async def _wait_until_done(self) -> None:
        """Wait until the compute stream is done, ignoring further cancellation."""
        done = self._completions.future(self._streams.mark(self._streams.compute))
        await although_cancelled(done)
        # Retrieve the error: the caller raises its own, and reads of the results report this one.
        done.exception()


# ── the device ────────────────────────────────────────────────────────────────────────────────────────────────────────


_INLINE: Final = 256 * 1024  # bytes that are staged on the event loop; larger copies would block it for too long


@dataclass(frozen=True, slots=True)
class CupySettings:
    """The settings of a GPU.

    Attributes:
        memory_limit: Bytes that its arrays may occupy; None for all of its memory.
        capture: Whether strands with recurring shapes may be captured and replayed as CUDA graphs.
        cudnn: Whether convolutions use cuDNN if its frontend is installed.
        lane_bytes: Size of the page-locked buffers for copies.
    """

    memory_limit: int | None = None
    capture: bool = True
    cudnn: bool = True
    lane_bytes: int = LANE_BYTES


class CupyDevice:
    """A `backend_api.BackendDevice` that adds copies between GPUs, DLPack and CUDA graphs."""

    device_type = "GPU"

    def __init__(self, driver: CudaDriver, index: int, settings: CupySettings) -> None:
        self.index = index
        self.uses_cudnn = settings.cudnn
        self._driver = driver
        self._settings = settings
        self._memory = DeviceMemory(driver.pool(index), settings.memory_limit)
        self.streams = DeviceStreams(driver, index, self._memory.allocate)
        self._completions = Completions(f"-gpu{index}")
        self._lanes = Lanes(driver, self.streams, settings.lane_bytes)
        self.transfers = Transfers(driver, self.streams, self._lanes, self._completions)
        self.executor = StreamExecutor(f"-gpu{index}", self.streams, self._completions)
        # A thread of its own, so that large uploads do not wait behind the launches of kernels.
        self._stager = DeviceThreads(f"-gpu{index}-copies", 1)
        self._host_values = HostValues(lambda value: self.xp.asarray(value), lambda: self.streams.capturing)
        self._closed = False

    # -- for kernels -----------------------------------------------------------------------------------------------

    @cached_property
    def xp(self) -> Any:
        """The array namespace: CuPy, with the differences of `namespace`."""
        return CupyNamespace(self._driver.xp, self._driver.extras)

    @cached_property
    def special(self) -> Any:
        """CuPy's special functions, or None if they are not available."""
        return self._driver.special()

    def generator(self, seed: int, seed2: int) -> Any:
        """Return a random generator for the pair of seeds; (0, 0) seeds from the operating system."""
        # NumPy's seeds are not negative; TensorFlow's are any int64.
        entropy = None if seed == 0 and seed2 == 0 else [seed & (2**64 - 1), seed2 & (2**64 - 1)]
        with self.streams.computing():
            return self._driver.generator(entropy)

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, KernelBody]:
        """Bind the kernel as `HostValues` does. Arrays made now (constants) are made on this device."""
        with self.streams.computing():
            return self._host_values.bind(kernel, binding)

    # -- copies ----------------------------------------------------------------------------------------------------

    async def to_device(self, value: Any) -> Any:
        """Return the device's array for a host value, which may be modified afterwards.

        An array of another library on this GPU is imported without a copy. Arrays of this backend and strings are
        returned unchanged.
        """
        self._check_open()
        if isinstance(value, self._driver.xp.ndarray):
            return value
        if is_on_gpu(value):
            return imported(self._driver, self.streams, value)
        if not isinstance(value, np.ndarray | np.generic) or value.dtype == object:
            return value
        # Staging copies the bytes once on the host, which takes the event loop's time.
        if value.nbytes <= _INLINE:
            return self.transfers.upload(value)
        return await self._stager.run(Step(), self.transfers.upload, value)

    async def to_host(self, value: Any) -> Any:
        """Return the value of a device array as a new NumPy array, once it has been computed."""
        self._check_open()
        if isinstance(value, self._driver.xp.ndarray):
            return await self.transfers.download(value)
        return value.copy() if isinstance(value, np.ndarray) else value  # a value that never left the host

    def on_host(self, value: Any) -> Any:
        """Return the value in host memory, for a kernel. Blocks until an array has been computed."""
        return value.get() if isinstance(value, self._driver.xp.ndarray) else value

    def copy_from(self, array: Array, other: CupyDevice) -> Array:
        """Return this device's array with the value of another GPU's array."""
        self._check_open()
        return array if other is self else self.transfers.copy_from(array, other.transfers)

    def share(self, array: Any) -> SharedArray:
        """Return the array in a form for other libraries, through DLPack."""
        return SharedArray(self._driver, self.streams, array)

    # -- running ---------------------------------------------------------------------------------------------------

    def capture(self, function: StrandFunction, variables: Sequence[VariableResource] = ()) -> StrandFunction:
        """Return a form of the function that is captured as a CUDA graph when its shapes recur; see `graphs`.

        Call it in the executor.
        """
        if not self._settings.capture:
            return function
        return CapturedFunction(self._driver, self.streams, function, variables)

    def captured(self, function: StrandFunction, nodes: Sequence[BoundNode]) -> StrandFunction | None:
        """Return a form of a strand that uses CUDA graphs, if none of its nodes needs the host.

        See `BackendDevice.captured`.
        """
        if not self._settings.capture or not is_capturable(nodes):
            return None
        handles = [bound.call for bound in nodes if bound.kernel.makes is VariableResource]
        current: tuple[VariableResource, ...] | None = None
        replayed = function

        def call(*values: Value) -> tuple[Value, ...]:
            nonlocal current, replayed
            variables = tuple(handle() for handle in handles)
            if variables != current:  # the first call, or the first after the container was cleared
                current, replayed = variables, self.capture(function, variables)
            return replayed(*values)

        return call

    async def synchronize(self) -> None:
        """Wait until all work submitted to the device is done."""
        try:
            async with asyncio.TaskGroup() as tg:
                for event in self.streams.all_marks():
                    tg.create_task(self._passed(event))
        except BaseExceptionGroup as group:
            raise root_cause(group) from None

    async def _passed(self, event: Any) -> None:
        await self._completions.future(event)

    def memory(self) -> MemoryStats:
        """Return the memory statistics."""
        with self.streams.computing():
            return self._memory.stats()

    def close(self) -> None:
        """End the event thread and release pooled memory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # First, because it waits for all copies: lanes may be dropped only when none is in progress.
        self._completions.close()
        self._lanes.clear()
        with self.streams.computing():
            self._memory.trim()

    def _check_open(self) -> None:
        if self._closed:
            raise InternalError("the device is closed", expected="an open device", actual=f"GPU {self.index}")
