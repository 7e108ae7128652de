"""Parts of steps by onnxruntime, as ONNX models of aioflow's exporter, in the process that owns the device.

`engine` reports the nodes that have a translation, and `kernels` runs the parts. They are found by the entry point
groups `aioflow.delegates` and `aioflow.kernels`. onnxruntime is loaded only when a session requests it
(`SessionConfig.delegate`).
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

from aioflow.errors import NotFoundError
from aioflow.release import install_command

__all__ = ["NAME", "missing", "require"]

NAME: Final = "onnxruntime"  # the engine's name in `SessionConfig.delegate`
_NEEDED: Final = ("onnxruntime", "onnx")

# Published builds of onnxruntime send usage data to their maker by default, and read this when they are loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def missing() -> str:
    """Return the name of a required package that is not installed, or ""."""
    return next((name for name in _NEEDED if find_spec(name) is None), "")


def require() -> None:
    """Raise NotFoundError, with the command that installs it, if a package is missing."""
    if name := missing():
        raise NotFoundError(f"{name} is not installed", expected=install_command("onnxruntime"), actual="no package")
