"""The NumPy backend object. The import of this module registers the kernels that override portable ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.kernels.registry import HOST, Binding, KernelBody, KernelDef
from aioflow.memory.values import Array, Value
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.executor import shared_threads
from aioflow_numpy import kernels as _kernels  # noqa: F401  # importing registers them
from aioflow_numpy.compiled.small import joinable
from aioflow_numpy.namespace import NumpyNamespace

# The host's CPU as a device: NumPy's namespace, random generators and threads. Its arrays never leave host memory

_NAMESPACE: Final = NumpyNamespace()


class NumpyDevice:
    """The CPU device, a `backend_api.BackendDevice`.

    Args:
        index: Number of the device.
        threads: Number of threads of its executor and of each kernel; 0 means one per processor. All devices with the
            same number and threads share an executor.
    """

    device_type = HOST

    def __init__(self, index: int, threads: int = 0) -> None:
        self.executor: Executor = shared_threads(f"-cpu{index}", threads)

    @property
    def xp(self) -> Any:
        """The array namespace."""
        return _NAMESPACE

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, KernelBody]:
        """Return the kernel unchanged, and its body for the node."""
        return kernel, joinable(kernel, binding, kernel.bind(binding))

    def generator(self, seed: int, seed2: int) -> np.random.Generator:
        """Return a counter-based generator for the pair of seeds; (0, 0) takes a seed from the operating system."""
        # NumPy's seeds are not negative; TensorFlow's are any int64.
        entropy = None if seed == 0 and seed2 == 0 else [seed & (2**64 - 1), seed2 & (2**64 - 1)]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))

    async def to_device(self, value: Any) -> Any:
        """Return a copy. Steps do not call this, since the host's subgraphs use the host's values."""
        # The index `[()]` returns a scalar for a 0-d array, and for others a view of the copy.
        return np.array(value)[()] if isinstance(value, np.ndarray | np.generic) else value

    async def to_host(self, value: Array) -> Array:
        """Return a copy."""
        return np.array(value)

    def on_host(self, value: Any) -> Any:
        """Return the value, which is on the host already."""
        return value

    def copy_from(self, array: Array, other: NumpyDevice) -> Array:
        """Return the array itself: it is in the same memory and is never modified."""
        return array

    def share(self, array: Array) -> Array:
        """Return a copy, which has `__dlpack__` and which the caller may modify."""
        return np.array(array)

    def captured(self, function: Callable[..., tuple[Value, ...]], nodes: Sequence[BoundNode]) -> None:
        """Return None: the generated function is called directly."""

    def memory(self) -> None:
        """Return None: arrays are in the process's ordinary memory."""

    def close(self) -> None:
        """Do nothing: the threads belong to the process and stay."""


class NumpyBackend:
    """The host's CPU, as one device or as several that share its memory."""

    name = "numpy"
    device_type = HOST

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], NumpyDevice] = {}

    def count(self) -> None:
        """Return None: there are as many devices as requested."""

    def describe(self, index: int) -> tuple[int | None, str]:
        """Return no memory limit, and the name."""
        return None, "NumPy"

    def device(self, index: int, threads: int = 0) -> NumpyDevice:
        """Return the CPU device of that number with that many threads, the same object every time."""
        found = self._devices.get((index, threads))
        # `setdefault`: of two threads that make a device at once, both must get the same one.
        return found or self._devices.setdefault((index, threads), NumpyDevice(index, threads))
