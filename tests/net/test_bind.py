"""Servers that listen at another address than the cluster's address of the task."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError, OpError, PermissionDeniedError
from aioflow.net.addresses import PortReservation, bound_place, reserved_socket, split_host
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.credentials import Credentials
from aioflow.net.server import Server

KNOWN = Credentials(b"0123456789abcdef0123456789abcdef")


@asynccontextmanager
async def translated(outside: str, inside: str) -> AsyncIterator[list[int]]:
    """Forward connections from one address to another; yield a list with an entry per connection."""
    seen: list[int] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        there, back = await asyncio.open_connection(*inside.split(":"))
        async with asyncio.TaskGroup() as group:
            group.create_task(pass_on(reader, back))
            group.create_task(pass_on(there, writer))

    door = await asyncio.start_server(accept, *outside.split(":"))
    async with door:
        yield seen
        door.close()


def doubled_at(target: str, credentials: Credentials | None = None) -> float:
    """Return the result of a step on the target, run by a client on its own event loop."""

    async def run() -> float:
        with af.Graph().as_default(), af.device("/job:ps"):
            product = af.constant(21.0) * 2.0
            async with af.Session(target, credentials=credentials) as session:
                return float(await session.run(product))

    return asyncio.run(run())


async def test_clients_connect_by_the_address_in_the_cluster() -> None:
    outside, inside = free_addresses(2)
    async with (
        asyncio.timeout(60),
        translated(outside, inside) as seen,
        Server({"ps": [outside]}, "ps", 0, bind=inside) as server,
    ):
        assert server.target == f"aioflow://{outside}"
        assert await asyncio.to_thread(doubled_at, server.target) == 42.0
        assert seen


async def test_bind_without_a_port_uses_that_of_the_cluster() -> None:
    [outside] = free_addresses(1)
    async with Server({"ps": [outside]}, "ps", 0, bind="0.0.0.0", credentials=KNOWN) as server:
        port = outside.partition(":")[2]
        for host in ("127.0.0.1", "127.0.0.5"):
            assert await asyncio.to_thread(doubled_at, f"aioflow://{host}:{port}", KNOWN) == 42.0
        assert server.target == f"aioflow://{outside}"


async def test_port_0_becomes_the_bound_port_in_the_cluster() -> None:
    async with Server({"ps": ["localhost:0"]}, "ps", 0, bind="127.0.0.1") as server:
        assert not server.target.endswith(":0")
        assert server.target == f"aioflow://{server.cluster.task_address('ps', 0)}"
        assert server.target.startswith("aioflow://localhost:")
        assert await asyncio.to_thread(doubled_at, server.target) == 42.0


@pytest.mark.parametrize("bind", ["0.0.0.0", "[::]", "0.0.0.0:2222", "192.0.2.1"])
async def test_server_without_secret_may_not_bind_beyond_loopback(bind: str) -> None:
    """Judge by the bound address, whatever the cluster's address is: reachability is what counts."""
    [address] = free_addresses(1)
    with pytest.raises(PermissionDeniedError):
        async with Server({"ps": [address]}, "ps", 0, bind=bind, credentials=Credentials()):
            raise AssertionError("it listens")


def test_server_without_secret_reserves_no_port_beyond_loopback() -> None:
    with pytest.raises(PermissionDeniedError):
        Server({"ps": ["127.0.0.1:0"]}, "ps", 0, bind="0.0.0.0", credentials=Credentials())


@pytest.mark.parametrize(
    ("bind", "place"),
    [
        ("0.0.0.0", "0.0.0.0:2222"),
        ("0.0.0.0:1", "0.0.0.0:1"),
        ("[::]", "[::]:2222"),
        ("[::1]:7", "[::1]:7"),
        ("pod", "pod:2222"),
    ],
)
def test_bound_place_completes_the_port(bind: str, place: str) -> None:
    assert bound_place("ps.example:2222", bind) == place


@pytest.mark.parametrize("bind", ["", ":1", "::1", "host:port", "host:70000", "0.0.0.0:0", "tcp://0.0.0.0:1", "a b"])
def test_invalid_bind_address_is_refused(bind: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Server({"ps": ["127.0.0.1:2222"]}, "ps", 0, bind=bind)


def test_bind_requires_tcp() -> None:
    with pytest.raises(OpError, match="TCP"):
        Server({"ps": ["inproc://somewhere"]}, "ps", 0, bind="0.0.0.0")


async def test_reserved_port_can_be_bound_while_connections_linger() -> None:
    """Bind a port with connections in TIME_WAIT.

    The end that closes first keeps its port for a minute, also when its process was killed.
    """
    reservation = PortReservation("127.0.0.1")
    kept = reserved_socket(reservation.place)
    assert kept is not None
    host, port = split_host(reservation.place)
    with kept:
        kept.listen()
        with socket.create_connection((host, port)) as client:
            accepted, _ = kept.accept()
            accepted.close()
            assert client.recv(1) == b""
    async with Server({"ps": [reservation.place]}, "ps", 0) as server:
        assert server.target == f"aioflow://{reservation.place}"
