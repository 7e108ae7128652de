"""A gRPC client with the messages of our own table, for valid messages and for arbitrary bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

grpc = pytest.importorskip("grpc", reason="aioflow-engine[grpc] is not installed")

from aioflow.serve import GrpcServer, Limits, ModelOptions, Repository, ServerOptions  # noqa: E402  # after importorskip
from aioflow.serve.grpc.messages import message  # noqa: E402
from tests.serve.folders import SECONDS  # noqa: E402

__all__ = ["Client", "asking", "client_of", "grpc", "infer_request", "over_grpc", "raw_values"]


class Client:
    """A client that calls the methods of the service by name."""

    def __init__(self, channel: Any, address: str = "") -> None:
        self.channel = channel
        self.address = address

    def call(self, method: str) -> Any:
        """Return a callable that sends a message or bytes and returns the response message."""
        return self.channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}",
            request_serializer=lambda request: request if isinstance(request, bytes) else request.SerializeToString(),
            response_deserializer=message(f"{method}Response").FromString,
        )

    async def __call__(self, method: str, request: Any = None, **more: Any) -> Any:
        """Return the response of a method to a message, or to a message with these fields."""
        if request is None:
            fields = {key: more.pop(key) for key in list(more) if key not in ("metadata", "compression")}
            request = message(f"{method}Request")(**fields)
        return await self.call(method)(request, **{"timeout": SECONDS, **more})


@contextlib.asynccontextmanager
async def client_of(address: str, credentials: Any = None) -> AsyncIterator[Client]:
    """Yield a client of the server at an address."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options)
    async with channel:
        yield Client(channel, address)


@contextlib.asynccontextmanager
async def over_grpc(
    models: Any, options: ModelOptions | None = None, where: ServerOptions | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[Repository, Client]]:
    """Yield a repository with all its models loaded, served over gRPC, and a client of the server."""
    async with (
        asyncio.timeout(SECONDS),
        Repository(models, options) as repository,
        GrpcServer(repository, where, limits=limits) as server,
        client_of(server.address) as client,
    ):
        await repository.load_all()
        yield repository, client


def infer_request(arrays: dict[str, Any], raw: bool = True, model: str = "m", **more: Any) -> Any:
    """Return a request with float32 inputs, as raw bytes or as numbers."""
    inputs = [
        {"name": name, "datatype": "FP32", "shape": array.shape}
        | ({} if raw else {"contents": {"fp32_contents": array.ravel().tolist()}})
        for name, array in arrays.items()
    ]
    contents = [array.tobytes() for array in arrays.values()] if raw else []
    return message("ModelInferRequest")(model_name=model, inputs=inputs, raw_input_contents=contents, **more)


def raw_values(response: Any, dtype: Any = np.float32) -> Any:
    """Return the only output of a response."""
    (output,), (data,) = response.outputs, response.raw_output_contents
    return np.frombuffer(data, dtype).reshape(output.shape)


@contextlib.asynccontextmanager
async def asking(code: Any) -> AsyncIterator[Any]:
    """Expect the block to raise an RPC error with this status code."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield raised
    assert raised.value.code() is code, raised.value
