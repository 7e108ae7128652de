"""The Open Inference Protocol, version 2, over gRPC; it needs `pip install 'aioflow-engine[grpc]'`.

`coding` converts its messages without I/O, `methods` answers them, and `server` listens.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
# Loaded on first use.
if _TYPE_CHECKING:
    from aioflow.serve.grpc.server import GrpcServer as GrpcServer

__all__ = ["GrpcServer"]

_load_later(__name__, {"GrpcServer": "aioflow.serve.grpc.server"}, extra="grpc", modules=("grpc",))
