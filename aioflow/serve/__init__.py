"""Models as a service: the Open Inference Protocol, version 2, over HTTP and gRPC.

The servers are imported on first use. HTTP needs `pip install 'aioflow-engine[serve]'`, gRPC needs
`'aioflow-engine[grpc]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from aioflow.errors import UnimplementedError
from aioflow.release import install_command
from aioflow.serve.options import ModelOptions, ServerOptions
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.repository import Repository
from aioflow.serve.sources import ModelSource

if TYPE_CHECKING:
    from aioflow.serve.app import create_app
    from aioflow.serve.grpc.server import GrpcServer
    from aioflow.serve.processes.supervisor import Processes
    from aioflow.serve.server import Server

__all__ = [
    "GrpcServer",
    "Limits",
    "ModelOptions",
    "ModelSource",
    "Processes",
    "Repository",
    "Server",
    "ServerOptions",
    "create_app",
]

_LATER: Final = {
    "create_app": "aioflow.serve.app",
    "GrpcServer": "aioflow.serve.grpc",
    "Processes": "aioflow.serve.processes.supervisor",
    "Server": "aioflow.serve.server",
}


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "aioflow":
            raise
        raise UnimplementedError(
            f"serving needs {error.name}, which is not installed", expected=install_command("serve")
        ) from error
