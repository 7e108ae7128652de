"""The Open Inference Protocol, version 2, over gRPC.

`coding` converts its messages without I/O, `methods` answers them, and `server` listens. The server is imported on
first use, and needs `pip install 'aioflow-engine[grpc]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aioflow.errors import UnimplementedError
from aioflow.release import install_command

if TYPE_CHECKING:
    from aioflow.serve.grpc.server import GrpcServer

__all__ = ["GrpcServer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("aioflow.serve.grpc.server"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "grpc":
            raise
        raise UnimplementedError(
            "serving over gRPC needs grpcio, which is not installed", expected=install_command("grpc")
        ) from error
