"""The transports, by the scheme of an address, and the two ways to get a comm: `listen` and `connect`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

from aioflow.arguments import check_seconds
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from aioflow.net.addresses import split_address
from aioflow.net.comm import Comm, CommOptions, Handler, Listener
from aioflow.net.inproc import connect_inproc, listen_inproc
from aioflow.net.tcp import connect_tcp
from aioflow.net.tcp_listener import listen_tcp


class Transport(NamedTuple):
    """The functions that make comms of one scheme; each receives the address without the scheme."""

    listen: Callable[[str, Handler, CommOptions], AbstractAsyncContextManager[Listener]]
    connect: Callable[[str, CommOptions, str], Awaitable[Comm]]


TRANSPORTS: Final[Mapping[str, Transport]] = {
    "inproc": Transport(listen_inproc, connect_inproc),
    "tcp": Transport(listen_tcp, connect_tcp),
}


def _transport(address: str) -> tuple[Transport, str]:
    scheme, place = split_address(address)
    found = TRANSPORTS.get(scheme)
    if found is None:
        raise InvalidArgumentError("no such transport", expected=f"one of {sorted(TRANSPORTS)}", actual=address)
    return found, place


def listen(address: str, handler: Handler, options: CommOptions | None = None) -> AbstractAsyncContextManager[Listener]:
    """Accept connections at an address for as long as the block runs.

    Args:
        address: The address, with its scheme.
        handler: A coroutine function, called with each comm in a task of its own. The task is cancelled at the end of
            the block, and the comm is closed after it.
        options: Options of the connections.

    Raises:
        InvalidArgumentError: the address is malformed.
        PermissionDeniedError: the address is beyond this machine's loopback, and the options have no credentials.
        AlreadyExistsError: the address is in use.
        UnavailableError: the address does not belong to this machine.
    """
    transport, place = _transport(address)
    return transport.listen(place, handler, options or CommOptions())


async def connect(
    address: str, timeout: float = 5.0, options: CommOptions | None = None, *, peer: str | None = None
) -> Comm:
    """Connect to a listener.

    Args:
        address: The address, with its scheme.
        timeout: Seconds for the connection and its handshake.
        options: Options of the connection.
        peer: Name of the other end in errors; the address by default.

    Raises:
        InvalidArgumentError: the address is malformed.
        PermissionDeniedError: the address is beyond this machine's loopback, and the options have no credentials.
        UnauthenticatedError: the two ends do not have the same secret, or refuse each other's certificates.
        UnavailableError: nothing answers at the address.
        DataLossError, UnimplementedError: the other end is not a peer, or has another version of the protocol.
        DeadlineExceededError: the time limit has passed.
    """
    transport, place = _transport(address)
    name = peer or address
    check_seconds(timeout, "the timeout of a connection")
    try:
        async with asyncio.timeout(timeout) as deadline:
            return await transport.connect(place, options or CommOptions(), name)
    except UnavailableError as error:
        raise UnavailableError(f"{name} cannot be reached: {error.message}") from (error.__cause__ or error)
    except TimeoutError as error:
        # `asyncio.timeout` also passes on a TimeoutError of the transport itself.
        if not deadline.expired() or isinstance(error, DeadlineExceededError):
            raise
        raise DeadlineExceededError(f"{name} did not answer within {timeout:g} s") from error
