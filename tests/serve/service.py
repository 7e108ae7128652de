"""A service on loopback with a client, and their requests and responses in plain JSON."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="aioflow-engine[serve] is not installed")
pytest.importorskip("uvicorn", reason="aioflow-engine[serve] is not installed")
pytest.importorskip("prometheus_client", reason="aioflow-engine[serve] is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402  # after importorskip

from aioflow.serve import Limits, ModelOptions, Server, ServerOptions, create_app  # noqa: E402
from tests.serve.folders import SECONDS  # noqa: E402

__all__ = ["Server", "ServerOptions", "asked", "create_app", "families", "httpx", "post", "serving", "values"]


@contextlib.asynccontextmanager
async def serving(
    models: Any, options: ModelOptions | None = None, where: ServerOptions | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[Server, Any]]:
    """Yield a server with all its models loaded, and a client."""
    async with (
        asyncio.timeout(SECONDS),
        Server(models, options, where or ServerOptions(port=0), limits=limits) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=SECONDS) as client,
    ):
        await server.ready()
        yield server, client


def asked(x: Any, **more: Any) -> dict[str, Any]:
    """Return a request with one input."""
    return {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}], **more}


def post(body: bytes, length: int | None = None) -> bytes:
    """Return an inference request as bytes on the wire."""
    size = len(body) if length is None else length
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def values(response: Any) -> Any:
    """Return the only output of a response."""
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


async def families(client: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples of each metric, by the values of their labels, which are sorted by label name."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    text = (await client.get("/metrics")).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels[name] for name in sorted(sample.labels))] = (
                sample.value
            )
    return found
