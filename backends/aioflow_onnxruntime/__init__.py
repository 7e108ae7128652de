"""Parts of steps by onnxruntime: as ONNX models that aioflow's exporter makes, in the process that owns the device.

`engine` says which nodes have a translation, `kernels` runs the parts. The entry point groups `aioflow.delegates` and
`aioflow.kernels` find them; nothing of onnxruntime is loaded before a session asks for it (`SessionConfig.delegate`).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from aioflow.errors import NotFoundError
from aioflow.release import install_command

__all__ = ["NAME", "missing", "require"]

NAME: Final = "onnxruntime"  # by which `SessionConfig.delegate` chooses it
_NEEDED: Final = ("onnxruntime", "onnx")


def missing() -> str:
    """Return the name of a package that is needed and not installed, or ""."""
    return next((name for name in _NEEDED if find_spec(name) is None), "")


def require() -> None:
    """Raise NotFoundError where a package is missing, with the command that installs it."""
    if name := missing():
        raise NotFoundError(f"{name} is not installed", expected=install_command("onnxruntime"), actual="no package")
