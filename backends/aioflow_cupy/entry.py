"""What aioflow's entry point names: where there is no CuPy, the backend and its kernels are not loaded at all."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aioflow_cupy.driver import load_driver

if TYPE_CHECKING:
    from aioflow_cupy.backend import CupyBackend

__all__ = ["backend"]


def backend() -> CupyBackend:
    """The backend. Raises ImportError, with the command, where CuPy is not installed."""
    driver = load_driver()
    found: CupyBackend = import_module("aioflow_cupy.backend").CupyBackend(driver)
    return found
