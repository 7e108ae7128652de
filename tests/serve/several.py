"""A service of several processes with a client, and clients that check every response."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from tests.serve.folders import SECONDS, rows
from tests.serve.service import asked, httpx, post
from tests.support.waiting import eventually

pytest.importorskip("httptools", reason="httptools is not installed")

from aioflow.serve import ModelOptions, Processes, ServerOptions  # after importorskip

__all__ = ["LONG", "Client", "each_process", "loaded", "several"]

LONG = 2 * SECONDS  # starting processes takes long on busy machines


@contextlib.asynccontextmanager
async def several(models: Any, options: ModelOptions | None = None, **named: Any) -> AsyncIterator[Any]:
    """Yield the service, and a client for occasional requests."""
    where = ServerOptions(port=0, drain_seconds=named.pop("drain_seconds", 20.0), **named.pop("where", {}))
    async with asyncio.timeout(LONG), Processes(models, options, where, **{"processes": 2, **named}) as service:
        await service.ready()
        async with httpx.AsyncClient(base_url=service.url, trust_env=False, verify=False, timeout=LONG) as client:
            yield service, client


async def each_process(service: Processes, **headers: str) -> AsyncIterator[Any]:
    """Yield a client with a connection to a process, for each process once."""
    seen: set[int] = set()
    async with contextlib.AsyncExitStack() as stack:
        # A new connection goes to the process with the fewest, so holding connections open reaches every process.
        while seen != set(service.pids):
            options: Any = {"base_url": service.url, "trust_env": False, "timeout": LONG, "headers": headers}
            client = await stack.enter_async_context(httpx.AsyncClient(**options))
            process = (await client.get("/status")).json()["server"]["process"]
            if process not in seen:
                seen.add(process)
                yield client


class Client:
    """A client that sends requests one after another over a connection, and reconnects when it is closed.

    Attributes:
        right: Number of responses; each of them was correct.
        broken: Number of connections that were closed without notice during a request.
    """

    def __init__(self, url: str, seed: int) -> None:
        self._port = int(url.rpartition(":")[2])
        self._tls = ssl.create_default_context() if url.startswith("https") else None
        if self._tls is not None:
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._seed = seed
        self.is_done = False
        self.right = 0
        self.broken = 0

    async def run(self) -> None:
        """Send requests until `is_done` is set."""
        while not self.is_done:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
            try:
                is_open = True
                while is_open and not self.is_done:
                    is_open = await self._ask(reader, writer)
                    await asyncio.sleep(0.002 * (self._seed % 3))  # some connections are idle at times
            except (ConnectionError, asyncio.IncompleteReadError):
                self.broken += 1
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send a request, check the response, and return whether the connection stays open."""
        x = rows(1 + self.right % 3, 1000 * self._seed + self.right)
        writer.write(post(json.dumps(asked(x)).encode()))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        (output,) = answer["outputs"]
        values = np.array(output["data"], np.float32).reshape(output["shape"])
        np.testing.assert_allclose(values, x * int(answer["model_version"]), rtol=1e-5)
        self.right += 1
        return b"connection: close" not in head.lower()


@contextlib.asynccontextmanager
async def loaded(url: str, count: int = 8) -> AsyncIterator[list[Client]]:
    """Run clients during the block, each of which gets a response before the block begins and at its end."""
    clients = [Client(url, seed) for seed in range(count)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run())
        await eventually(lambda: all(client.right for client in clients))
        yield clients
        before = [client.right + client.broken for client in clients]
        await eventually(lambda: all(c.right + c.broken > b for c, b in zip(clients, before, strict=True)))
        for client in clients:
            client.is_done = True
