"""The NumPy backend object: the array namespace, random generators, and the kernels that override portable ones."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aioflow.kernels.registry import Binding, Body, KernelDef
from aioflow_numpy import kernels as _kernels  # noqa: F401  # importing registers them
from aioflow_numpy.namespace import Namespace

__all__ = ["NumpyBackend"]

_NAMESPACE: Final = Namespace()


class NumpyBackend:
    """Runs kernels on the CPU with NumPy."""

    name = "numpy"
    device_type = "CPU"

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
