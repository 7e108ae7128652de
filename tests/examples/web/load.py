"""Concurrent clients of a service that answers rows.

Some clients wait for their answers, each of which must belong to their own rows. Others cancel, disconnect, send
malformed requests, or have a short timeout.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.examples.web.services import IMAGES, Service
from tests.support.processes import SECONDS

__all__ = [
    "Api",
    "Load",
    "answered_although_it_ends",
    "callers_share_steps",
    "gone_before_they_are_computed",
    "post",
    "rows_by_chance",
]


def rows_by_chance(chance: random.Random) -> Any:
    """Return some digits, mostly a few."""
    count = chance.choice([1, 1, 1, 2, 5, 70])
    begin = chance.randrange(len(IMAGES) - count)
    return IMAGES[begin : begin + count]


def post(path: str, body: bytes, *, announced: bool = False) -> bytes:
    """Return the bytes of a request. With `announced` its body is announced, but not included."""
    expect = "Expect: 100-continue\r\n" if announced else ""
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n{expect}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + (b"" if announced else body)


@dataclass(frozen=True)
class Api:
    """The way to call a service.

    Attributes:
        agrees: Whether a response is the answer to these rows.
        body: Conversion of rows to JSON.
        nonsense: Bodies that the service must reject with a status of 400 to 499.
        path: Path of the route.
    """

    agrees: Callable[[Any, Any], bool]
    body: Callable[[Any], Any] = lambda rows: rows.tolist()
    nonsense: Sequence[bytes] = (
        b"", b"7", b"[[1, 2]]", b"[]", b"{}", b'[["a"]]', b"[" * 100_000, b"\xff\xfe", b"[[1e300]]",
        b"[[" + b"NaN," * 63 + b"NaN]]", b"null", b"[[1], [1, 2]]", b"1" * 5000,
    )  # fmt: skip
    path: str = "/predict"

    def encoded(self, rows: Any) -> bytes:
        return json.dumps(self.body(rows)).encode()


@dataclass
class Load:
    """Clients of each kind, with the same number of requests for each client.

    Attributes:
        service: Service under load.
        api: The way to call it.
        requests: Requests of each client.
        seen: Number of outcomes of each kind.
    """

    service: Service
    api: Api
    requests: int = 40
    seen: Counter[str] = field(default_factory=Counter)

    async def run(self, seed: int = 0) -> None:
        """Run all clients at the same time, then check that the service still answers and closes its connections."""
        files = self.service.files
        kinds = [*[self._right] * 6, self._cancels, self._goes, self._nonsense, self._no_http, self._hurries]
        async with self.service.client() as client:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                for number, kind in enumerate(kinds):
                    group.create_task(self._repeat(kind, client, random.Random(seed * 1000 + number)))
            await self._right(client, random.Random(seed))
        await self.service.closed(files)
        assert self.seen["right"] == 6 * self.requests + 1

    async def _repeat(self, kind: Any, client: httpx.AsyncClient, chance: random.Random) -> None:
        for _ in range(self.requests):
            await kind(client, chance)

    async def _right(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        rows = rows_by_chance(chance)
        response = await client.post(self.api.path, json=self.api.body(rows))
        assert response.status_code == 200, response.text
        assert self.api.agrees(rows, response.json())
        self.seen["right"] += 1

    async def _cancels(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        rows = rows_by_chance(chance)
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.uniform(0, 0.01)):
                response = await client.post(self.api.path, json=self.api.body(rows))
                assert self.api.agrees(rows, response.json())
                return
        self.seen["cancelled"] += 1

    async def _goes(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        _, writer = await self.service.connect()
        request = post(self.api.path, self.api.encoded(rows_by_chance(chance)))
        writer.write(request[: chance.choice([len(request), len(request), len(request) // 2, 20])])
        with suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(chance.uniform(0, 0.005))
        if chance.random() < 0.5:
            writer.transport.abort()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.seen["gone"] += 1

    async def _nonsense(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        body = chance.choice(self.api.nonsense)
        response = await client.post(self.api.path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= response.status_code < 500, (response.status_code, body[:40])
        assert ".py" not in response.text
        self.seen["refused"] += 1

    async def _no_http(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        reader, writer = await self.service.connect()
        writer.write(chance.randbytes(chance.randint(1, 300)) + b"\r\n\r\n")
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(0.05):  # the service may take it for the beginning of a request
                await reader.read()
        writer.transport.abort()
        self.seen["no HTTP"] += 1

    async def _hurries(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        rows, seconds = rows_by_chance(chance), chance.choice([0.0001, 0.002, 5.0])
        response = await client.post(f"{self.api.path}?timeout={seconds}", json=self.api.body(rows))
        assert response.status_code in (200, 504), response.text
        assert response.status_code == 504 or self.api.agrees(rows, response.json())
        self.seen["late" if response.status_code == 504 else "in time"] += 1


async def answered_although_it_ends(service: Service, api: Api, *, late_bodies: bool = True) -> None:
    """Check that a stopping service answers the requests that it has begun to read, and then exits.

    Args:
        service: Service to stop.
        api: The way to call it.
        late_bodies: Whether bodies are sent only after the service begins to stop.
    """
    chance = random.Random(1)
    asked = [rows_by_chance(chance) for _ in range(12)]
    connections = [await service.connect() for _ in asked]
    async with asyncio.timeout(SECONDS):
        for (reader, writer), rows in zip(connections, asked, strict=True):
            writer.write(post(api.path, api.encoded(rows), announced=True))
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        if late_bodies:
            service.stop()
            while b"Shutting down" not in b"".join(service.printed):  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.01)
        for (_, writer), rows in zip(connections, asked, strict=True):
            writer.write(api.encoded(rows))
        if not late_bodies:
            async with service.client() as client:  # its response shows that the bodies have been received
                await client.get("/statistics")
            service.stop()
        for (reader, writer), rows in zip(connections, asked, strict=True):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b" 200 " in head, head
            assert api.agrees(rows, json.loads(body))
            writer.close()
        await service.process.wait()


async def callers_share_steps(service: Service, api: Api) -> None:
    """Send concurrent requests of one row each, until one step answers several of them."""
    async with asyncio.timeout(SECONDS), service.client() as client:
        while True:
            before = (await client.get("/statistics")).json()
            await asyncio.gather(*(client.post(api.path, json=api.body(IMAGES[i : i + 1])) for i in range(20)))
            after = (await client.get("/statistics")).json()
            calls, batches = (after[each] - before[each] for each in ("answered", "batches"))
            assert calls == 20
            if batches < calls:
                return


async def gone_before_they_are_computed(service: Service, api: Api) -> None:
    """Disconnect clients during their requests, until the service counts a call that it cancelled for that reason."""
    request, chance = post(api.path, api.encoded(IMAGES[:500])), random.Random(3)
    async with asyncio.timeout(SECONDS), service.client() as client:
        while not (await client.get("/statistics")).json()["cancelled"]:
            connections = [await service.connect() for _ in range(4)]
            for _, writer in connections:
                writer.write(request)
                await writer.drain()
            await asyncio.sleep(chance.uniform(0, 0.05))
            for _, writer in connections:
                writer.transport.abort()
