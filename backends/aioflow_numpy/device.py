"""The host's CPU as a device: NumPy's namespace, random generators, and threads. Its arrays never leave host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.kernels.registry import HOST, Binding, Body, KernelDef
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.executor import shared_threads
from aioflow_numpy.namespace import Namespace

__all__ = ["NumpyDevice"]

_NAMESPACE: Final = Namespace()


class NumpyDevice:
    """As `backend_api.BackendDevice`.

    Args:
        threads: Of its executor, and of each kernel; 0 means one per processor. All devices of the same number and
            threads share them.
    """

    device_type = HOST

    def __init__(self, index: int, threads: int = 0) -> None:
        self.executor: Executor = shared_threads(f"-cpu{index}", threads)

    @property
    def xp(self) -> Any:
        """The array namespace."""
        return _NAMESPACE

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, Body]:
        """The kernel as it is."""
        return kernel, kernel.bind(binding)

    def generator(self, seed: int, seed2: int) -> np.random.Generator:
        """A counter-based generator for the pair of seeds; (0, 0) takes one from the operating system."""
        entropy = None if seed == 0 and seed2 == 0 else [seed & (2**64 - 1), seed2 & (2**64 - 1)]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))

    async def to_device(self, value: Any) -> Any:
        """A copy. (In a step nothing is copied: the host's subgraphs get the host's values.)"""
        return np.array(value)[()] if isinstance(value, np.ndarray | np.generic) else value

    async def to_host(self, value: Any) -> Any:
        """A copy."""
        return np.array(value)

    def on_host(self, value: Any) -> Any:
        """The value, which is there."""
        return value

    def copy_from(self, array: Any, other: NumpyDevice) -> Any:
        """The array: it is in the same memory, and never changes."""
        return array

    def share(self, array: Any) -> Any:
        """A copy, which has `__dlpack__` itself: what the caller does with it is its own business."""
        return np.array(array)

    def captured(self, function: Callable[..., tuple[Any, ...]], nodes: Sequence[BoundNode]) -> None:
        """None: the generated function is called as it is."""

    def memory(self) -> None:
        """None: arrays are in the process's memory, like everything else."""

    def close(self) -> None:
        """Its threads are the process's, and stay."""
