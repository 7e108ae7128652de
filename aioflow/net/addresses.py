"""Addresses of comms, "tcp://127.0.0.1:2222" or "inproc://name", and the rule for those beyond the loopback.

Nobody on another machine may be a peer unless it proves who it is (`credentials`).
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

__all__ = [
    "PortReservation",
    "bound_place",
    "is_loopback",
    "join_host",
    "reserved_socket",
    "resolved",
    "split_address",
    "split_host",
]

_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.DOTALL)
_LOOPBACK: Final = "a loopback address, such as 127.0.0.1"
_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})")
_HAS_PORT: Final = re.compile(r"[^:]*:[0-9]*|\[.*\]:[0-9]*")


def split_address(address: str) -> tuple[str, str]:
    """The scheme and the rest. Raises InvalidArgumentError."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InvalidArgumentError("not an address", expected="scheme://place", actual=address)
    return match[1], match[2]


def split_host(place: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[::1]:port". Raises InvalidArgumentError."""
    match = _HOST_PORT.fullmatch(place)
    if match is None or int(match[3]) > 65535:
        raise InvalidArgumentError("not a TCP address", expected="host:port", actual=place)
    return match[1] or match[2], int(match[3])


def join_host(host: str, port: int) -> str:
    """ "host:port", or "[::1]:port"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_place(place: str, bind: str) -> str:
    """Where one listens who is known to others as `place`, "host:port", and listens at `bind`, "host" or "host:port".

    Raises:
        InvalidArgumentError: `bind` is malformed; or it is any port, where others know one.
    """
    named = split_host(place)[1]
    host, port = split_host(bind if _HAS_PORT.fullmatch(bind) else f"{bind}:{named}")
    if port == 0 != named:
        raise InvalidArgumentError(
            "others would look for the port that they know", expected=f"a port, or none for {named}", actual=bind
        )
    return join_host(host, port)


async def resolved(host: str, port: int, anywhere: bool = False) -> tuple[str, int]:
    """The first address that the host resolves to.

    Args:
        anywhere: Whether peers prove who they are. If not, all of the addresses must be of this machine's loopback.

    Raises:
        PermissionDeniedError: one is not.
        UnavailableError: the host is not known.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnavailableError(f"the host {host!r} is not known: {error}") from error
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
    """A free port of the loopback that is kept until somebody listens there, or this object is gone.

    Args:
        host: "localhost", or an address of the loopback.
        anywhere: Whether it may be a different host, since peers prove who they are.

    Attributes:
        place: "host:port".

    Raises:
        UnavailableError: there is none.
        PermissionDeniedError: it is a different host.
    """

    def __init__(self, host: str, anywhere: bool = False) -> None:
        if not anywhere and host != "localhost" and not is_loopback(host):
            raise PermissionDeniedError(
                f"{host} is not an address of this machine's loopback", expected=_LOOPBACK, actual=host
            )
        try:
            family, kind, protocol, _, sockaddr = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._socket: socket.socket | None = socket.socket(family, kind, protocol)
            weakref.finalize(self, self._socket.close).atexit = False
            self._inherited = Inherited([self._socket])
            self._socket.bind(sockaddr)
        except OSError as error:
            raise UnavailableError(f"no port of {host} is free: {error}") from error
        port = self._socket.getsockname()[1]
        self.place = join_host(host, port)
        _RESERVED[self.place] = self

    def take(self) -> socket.socket | None:
        """The socket, for one who listens at it; None where it has been taken already."""
        taken, self._socket = self._socket, None
        if taken is not None and os.name == "posix":
            # Not before: others could bind it too. Its connections have it as well, and what is left of those after a
            # crash does not keep the port from the process that is started again.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return taken


_RESERVED: Final[weakref.WeakValueDictionary[str, PortReservation]] = weakref.WeakValueDictionary()


def reserved_socket(place: str) -> socket.socket | None:
    """The socket of the reservation of "host:port", if there is one."""
    reservation = _RESERVED.pop(place, None)
    return None if reservation is None else reservation.take()


def is_loopback(host: str) -> bool:
    """Whether this is an address of the loopback; a name is none."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
