"""The transports, by the scheme of an address, and the two ways to get a comm: `listen` and `connect`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

from aioflow.checks.numbers import check_seconds
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from aioflow.net.addresses import split_address
from aioflow.net.comm import Comm, CommOptions, Handler, Listener
from aioflow.net.inproc import connect_inproc, listen_inproc
from aioflow.net.tcp import connect_tcp
from aioflow.net.tcp_listener import listen_tcp

__all__ = ["TRANSPORTS", "Transport", "connect", "listen"]


class Transport(NamedTuple):
    """How comms of one scheme are made; each function gets the address without its scheme."""

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
        handler: A coroutine function that gets each comm in a task of its own, which is cancelled at the end of the
            block. The comm is closed after it.

    Raises:
        InvalidArgumentError: the address is malformed.
        PermissionDeniedError: it is not of this machine's loopback, and the options have no credentials.
        AlreadyExistsError, UnavailableError: it is taken.
    """
    transport, place = _transport(address)
    return transport.listen(place, handler, options or CommOptions())


async def connect(
    address: str, timeout: float = 5.0, options: CommOptions | None = None, *, peer: str | None = None
) -> Comm:
    """Connect to a listener.

    Args:
        timeout: Seconds until there is a connection on which both ends have said hello and proved themselves.
        peer: What errors call the other end; the address by default.

    Raises:
        InvalidArgumentError: the address is malformed.
        PermissionDeniedError: it is not of this machine's loopback, and the options have no credentials.
        UnauthenticatedError: one of the ends has not the other's secret.
        UnavailableError: nobody answers there.
        DeadlineExceededError: the time has run out.
    """
    transport, place = _transport(address)
    name = peer or address
    check_seconds(timeout, "the time limit of a connection")
    try:
        async with asyncio.timeout(timeout) as deadline:
            return await transport.connect(place, options or CommOptions(), name)
    except UnavailableError as error:
        raise UnavailableError(f"{name} cannot be reached: {error.message}") from (error.__cause__ or error)
    except TimeoutError as error:
        if not deadline.expired() or isinstance(error, DeadlineExceededError):
            raise
        raise DeadlineExceededError(f"{name} has not answered within {timeout:g} s") from error
