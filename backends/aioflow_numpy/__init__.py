"""The NumPy backend: the CPU device type.

Nothing here imports NumPy at the top. `aioflow.preload` imports this package before NumPy is loaded, because the
OpenBLAS core type (`aioflow_numpy.blas`) can only be chosen until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioflow_numpy.backend import NumpyBackend


def backend() -> NumpyBackend:
    """What the entry point `aioflow.backends` names: the backend, with its kernels registered."""
    from aioflow_numpy.backend import NumpyBackend  # not before the core type is chosen

    return NumpyBackend()
