"""Addresses of comms, such as "tcp://127.0.0.1:2222" or "inproc://name", and the restriction to loopback addresses.

Peers on other machines must authenticate (`credentials`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import weakref
from typing import Final

from aioflow.errors import InvalidArgumentError, PermissionDeniedError, UnavailableError
from aioflow.net.inherited import Inherited

_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.DOTALL)
_LOOPBACK: Final = "a loopback address, such as 127.0.0.1"
_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})")
_HAS_PORT: Final = re.compile(r"[^:]*:[0-9]*|\[.*\]:[0-9]*")


def split_address(address: str) -> tuple[str, str]:
    """Return the scheme and the rest. Raises InvalidArgumentError."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InvalidArgumentError("not an address", expected="scheme://place", actual=address)
    return match[1], match[2]


def split_host(place: str) -> tuple[str, int]:
    """Return the host and port of "host:port" or "[::1]:port". Raises InvalidArgumentError."""
    match = _HOST_PORT.fullmatch(place)
    if match is None or int(match[3]) > 65535:
        raise InvalidArgumentError("not a TCP address", expected="host:port", actual=place)
    return match[1] or match[2], int(match[3])


def join_host(host: str, port: int) -> str:
    """Return "host:port", or "[::1]:port"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_place(place: str, bind: str) -> str:
    """Return the address to listen on.

    Args:
        place: The address that peers know, "host:port".
        bind: The address to bind, "host" or "host:port"; without a port, the port of `place` is used.

    Raises:
        InvalidArgumentError: `bind` is malformed, or has port 0 although peers know a fixed port.
    """
    named = split_host(place)[1]
    host, port = split_host(bind if _HAS_PORT.fullmatch(bind) else f"{bind}:{named}")
    if port == 0 != named:
        raise InvalidArgumentError(
            "others would look for the port that they know", expected=f"a port, or none for {named}", actual=bind
        )
    return join_host(host, port)


async def resolved(host: str, port: int, anywhere: bool = False) -> tuple[str, int]:
    """Return the first address that the host resolves to.

    Args:
        host: The host name or address.
        port: The port, returned unchanged.
        anywhere: Whether any address is allowed, because peers authenticate. If not, all addresses must be loopback.

    Raises:
        PermissionDeniedError: an address is not loopback.
        UnavailableError: the host name cannot be resolved.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnavailableError(f"the host {host!r} is not known: {error}") from error
    # `getaddrinfo` may list an address more than once.
    addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    other = [] if anywhere else [address for address in addresses if not is_loopback(address)]
    if other or not addresses:
        raise PermissionDeniedError(
            f"{host}:{port} is not an address of this machine's loopback, and this process has nothing to prove itself"
            " by",
            expected=f"{_LOOPBACK}, or a secret (AIOFLOW_SECRET_FILE) or certificates (AIOFLOW_TLS_CERT)",
            actual=", ".join(other) or "none",
        )
    return addresses[0], port


class PortReservation:
    """A free loopback port that stays reserved until a listener takes it or this object is garbage collected.

    Args:
        host: "localhost", or a loopback address.
        anywhere: Whether any host is allowed, because peers authenticate.

    Attributes:
        place: "host:port".

    Raises:
        UnavailableError: no port is free.
        PermissionDeniedError: the host is not loopback.
    """

    def __init__(self, host: str, anywhere: bool = False) -> None:
        if not anywhere and host != "localhost" and not is_loopback(host):
            raise PermissionDeniedError(
                f"{host} is not an address of this machine's loopback", expected=_LOOPBACK, actual=host
            )
        try:
            family, kind, protocol, _, sockaddr = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._socket: socket.socket | None = socket.socket(family, kind, protocol)
            # The system closes the socket at exit.
            weakref.finalize(self, self._socket.close).atexit = False
            self._inherited = Inherited([self._socket])
            self._socket.bind(sockaddr)
        except OSError as error:
            raise UnavailableError(f"no port of {host} is free: {error}") from error
        port = self._socket.getsockname()[1]
        self.place = join_host(host, port)
        # A listener in this process finds the socket by its address.
        _RESERVED[self.place] = self

    def take(self) -> socket.socket | None:
        """Hand over the reserved socket to a listener; None if it has been taken already."""
        taken, self._socket = self._socket, None
        if taken is not None and os.name == "posix":
            # Set only now: earlier, other processes could bind the port as well. Accepted connections inherit the
            # option, so that their remains after a crash do not keep a restarted process from binding the port.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return taken


_RESERVED: Final[weakref.WeakValueDictionary[str, PortReservation]] = weakref.WeakValueDictionary()


def reserved_socket(place: str) -> socket.socket | None:
    """Take the socket that is reserved for "host:port"; None if there is no reservation."""
    reservation = _RESERVED.pop(place, None)
    return None if reservation is None else reservation.take()


def is_loopback(host: str) -> bool:
    """Return True if this is a loopback address. A host name is not."""
    try:
        # An IPv6 address may have a scope, as in fe80::1%eth0.
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
