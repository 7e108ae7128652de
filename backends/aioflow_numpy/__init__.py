"""The NumPy backend: the CPU device type.

Nothing here imports NumPy at the top. `aioflow.loading.preload` imports this package before NumPy is loaded, because
the OpenBLAS core type (`aioflow_numpy.blas`) can be chosen only before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioflow_numpy.backend import NumpyBackend


def backend() -> NumpyBackend:
    """Return the backend, with its kernels registered; the entry point `aioflow.backends`."""
    # Imported late, after the core type has been chosen.
    from aioflow_numpy.backend import NumpyBackend

    return NumpyBackend()
