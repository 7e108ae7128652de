"""The entry point of the backend. Without CuPy, it does not load the backend and its kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aioflow_cupy.driver import load_driver

if TYPE_CHECKING:
    from aioflow_cupy.backend import CupyBackend


def backend() -> CupyBackend:
    """Return the backend. Raise ImportError, with the install command, if CuPy is not installed."""
    driver = load_driver()
    found: CupyBackend = import_module("aioflow_cupy.backend").CupyBackend(driver)
    return found
