"""What aioflow's entry points name: loading this module loads nothing of onnxruntime."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from aioflow.errors import NotFoundError
from aioflow.release import install_command

if TYPE_CHECKING:
    from aioflow.compiler.delegate import Delegate

__all__ = ["delegate", "describe", "register"]

_NEEDED: Final = ("onnxruntime", "onnx")


def delegate(options: str) -> Delegate:
    """Return the engine.

    Args:
        options: The name of an execution provider, such as "CPU" or "OpenVINOExecutionProvider"; "" for the CPU's.

    Raises:
        NotFoundError: onnxruntime is not installed, or does not have the provider.
    """
    missing = _missing()
    if missing:
        raise NotFoundError(f"{missing} is not installed", expected=install_command("onnxruntime"), actual="no package")
    from aioflow_onnxruntime.engine import Engine

    return Engine(options)


def register() -> None:
    """Register the kernel of delegated parts, where onnxruntime is there."""
    if not _missing():
        import aioflow_onnxruntime.kernels  # noqa: F401  # importing registers it


def describe() -> dict[str, str]:
    """Return the lines of `python -m aioflow doctor`."""
    missing = _missing()
    if missing:
        return {"onnxruntime": f"not used: {missing} is not installed ({install_command('onnxruntime')})"}
    from aioflow_onnxruntime.engine import version

    return {"onnxruntime": version()}


def _missing() -> str:
    return next((name for name in _NEEDED if find_spec(name) is None), "")
