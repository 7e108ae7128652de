"""Models as a service: the Open Inference Protocol, version 2, over HTTP and gRPC.

HTTP needs `pip install 'aioflow-engine[serve]'`, gRPC needs `'aioflow-engine[grpc]'`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
# Loaded on first use.
if _TYPE_CHECKING:
    from aioflow.serve.app import create_app as create_app
    from aioflow.serve.grpc import GrpcServer as GrpcServer
    from aioflow.serve.options import ModelOptions as ModelOptions
    from aioflow.serve.options import ServerOptions as ServerOptions
    from aioflow.serve.processes.supervisor import Processes as Processes
    from aioflow.serve.protocol.limits import Limits as Limits
    from aioflow.serve.repository import Repository as Repository
    from aioflow.serve.server import Server as Server
    from aioflow.serve.sources import ModelSource as ModelSource

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

_load_later(
    __name__,
    {
        "GrpcServer": "aioflow.serve.grpc",
        "Limits": "aioflow.serve.protocol.limits",
        "ModelOptions": "aioflow.serve.options",
        "ModelSource": "aioflow.serve.sources",
        "Processes": "aioflow.serve.processes.supervisor",
        "Repository": "aioflow.serve.repository",
        "Server": "aioflow.serve.server",
        "ServerOptions": "aioflow.serve.options",
        "create_app": "aioflow.serve.app",
    },
    extra="serve",
)
