"""Targets of aioflow's entry points; importing this module does not load onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioflow.release import install_command
from aioflow_onnxruntime import missing, require

if TYPE_CHECKING:
    from aioflow.compiler.delegate import Delegate


def delegate(options: str) -> Delegate:
    """Return the engine.

    Args:
        options: The name of an execution provider, such as "CPU" or "OpenVINOExecutionProvider"; "" for the CPU's.

    Raises:
        NotFoundError: onnxruntime is not installed, or does not have the provider.
    """
    require()
    from aioflow_onnxruntime.engine import Engine

    return Engine(options)


def register() -> None:
    """Register the kernels.

    The kernel of delegated parts is registered only if onnxruntime is installed. The kernel of nodes of ONNX models is
    always registered: without onnxruntime it raises an error that has the install command.
    """
    import aioflow_onnxruntime.nodes  # importing registers it

    if not missing():
        import aioflow_onnxruntime.kernels  # noqa: F401  # importing registers it


def describe() -> dict[str, str]:
    """Return the lines of `python -m aioflow doctor`."""
    if name := missing():
        return {"onnxruntime": f"not used: {name} is not installed ({install_command('onnxruntime')})"}
    from aioflow_onnxruntime.engine import version

    return {"onnxruntime": version()}
