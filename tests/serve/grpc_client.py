"""A client over gRPC that has the messages of the protocol from our table: bytes, and what a server says to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

grpc = pytest.importorskip("grpc", reason="aioflow-engine[grpc] is not installed")

from aioflow.serve import GrpcServer, Limits, ModelOptions, Repository, ServerOptions  # noqa: E402  # it may not be there
from aioflow.serve.grpc.messages import message  # noqa: E402
from tests.serve.folders import SECONDS  # noqa: E402

__all__ = ["Client", "asking", "client_of", "grpc", "infer_request", "over_grpc", "raw_values"]


class Client:
    """Calls of the service by the names of its methods."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def call(self, method: str) -> Any:
        """A call that sends and gives messages."""
        return self.channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}",
            request_serializer=lambda request: request if isinstance(request, bytes) else request.SerializeToString(),
            response_deserializer=message(f"{method}Response").FromString,
        )

    async def __call__(self, method: str, request: Any = None, **more: Any) -> Any:
        """What a method answers, to a message or to the fields of one."""
        if request is None:
            fields = {key: more.pop(key) for key in list(more) if key not in ("metadata", "compression")}
            request = message(f"{method}Request")(**fields)
        return await self.call(method)(request, **{"timeout": SECONDS, **more})


@contextlib.asynccontextmanager
async def client_of(address: str, credentials: Any = None) -> AsyncIterator[Client]:
    """A client of a server at an address."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options)
    async with channel:
        yield Client(channel)


@contextlib.asynccontextmanager
async def over_grpc(
    models: Any, options: ModelOptions | None = None, where: ServerOptions | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[Repository, Client]]:
    """A repository with all its models, behind a server for gRPC, and a client of that."""
    async with (
        asyncio.timeout(SECONDS),
        Repository(models, options) as repository,
        GrpcServer(repository, where, limits=limits) as server,
        client_of(server.address) as client,
    ):
        await repository.load_all()
        yield repository, client


def infer_request(arrays: dict[str, Any], raw: bool = True, model: str = "m", **more: Any) -> Any:
    """A request with float32 inputs, as bytes or as numbers."""
    inputs = [
        {"name": name, "datatype": "FP32", "shape": array.shape}
        | ({} if raw else {"contents": {"fp32_contents": array.ravel().tolist()}})
        for name, array in arrays.items()
    ]
    contents = [array.tobytes() for array in arrays.values()] if raw else []
    return message("ModelInferRequest")(model_name=model, inputs=inputs, raw_input_contents=contents, **more)


def raw_values(response: Any, dtype: Any = np.float32) -> Any:
    """The only output of an answer."""
    (output,), (data,) = response.outputs, response.raw_output_contents
    return np.frombuffer(data, dtype).reshape(output.shape)


@contextlib.asynccontextmanager
async def asking(code: Any) -> AsyncIterator[Any]:
    """A block that ends with that status."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield raised
    assert raised.value.code() is code, raised.value
