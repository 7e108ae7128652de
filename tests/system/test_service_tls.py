"""A model service over TLS, with HTTP and gRPC."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from aioflow import errors
from aioflow.serve import GrpcServer, Repository
from tests.net.certificates import Authority

pytest.importorskip("grpc", reason="aioflow-engine[grpc] is not installed")

from tests.serve.folders import SECONDS, save_model, scaled
from tests.serve.grpc_client import client_of, grpc
from tests.serve.service import Server, ServerOptions, httpx


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await save_model(tmp_path / "m", scaled(2))


async def test_grpc_over_tls(folder: Path, tmp_path: Path) -> None:
    cert, key, ca = Authority(tmp_path).tls("server").files
    trusted = grpc.ssl_channel_credentials(await asyncio.to_thread(Path(ca).read_bytes))
    async with (
        asyncio.timeout(SECONDS),
        Repository({"m": folder}) as repository,
        GrpcServer(repository, ServerOptions(tls_cert=cert, tls_key=key)) as server,
        client_of(server.address, trusted) as ask,
    ):
        assert (await ask("ServerLive")).live


async def test_servers_reject_a_key_readable_by_others(folder: Path, tmp_path: Path) -> None:
    cert, key, _ = Authority(tmp_path).tls("server").files
    await asyncio.to_thread(os.chmod, key, 0o644)
    where = ServerOptions(port=0, tls_cert=cert, tls_key=key)
    async with Repository({"m": folder}) as repository:
        for server in (Server({"m": folder}, where=where), GrpcServer(repository, where)):
            with pytest.raises(errors.InvalidArgumentError, match="chmod 600"):
                async with asyncio.timeout(SECONDS), server:
                    pass


async def test_http_over_tls(folder: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key, ca = authority.tls("server").files
    where = ServerOptions(port=0, tls_cert=cert, tls_key=key)
    async with asyncio.timeout(SECONDS), Server({"m": folder}, where=where) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=ca)
        async with httpx.AsyncClient(base_url=server.url, verify=context, trust_env=False) as client:
            assert (await client.get("/v2/health/live")).status_code == 200
