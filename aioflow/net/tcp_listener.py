"""What accepts connections over TCP: strangers have few places, for a short time, and none of those of known peers."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aioflow.errors import AlreadyExistsError, UnavailableError
from aioflow.net.accepting import Connections
from aioflow.net.addresses import reserved_socket, resolved, split_host
from aioflow.net.comm import CommOptions, Handler
from aioflow.net.inherited import Inherited
from aioflow.net.proving import Role
from aioflow.net.tcp import TcpComm, tcp_address

__all__ = ["TcpListener", "listen_tcp"]

_FULL = "there are too many connections"


class TcpListener:
    """A listening socket."""

    def __init__(self, address: str) -> None:
        self.address = address


class _Door:
    """Makes a comm of each connection; those that have proved themselves go on to the handler.

    When there are too many strangers the oldest is dropped, since an honest peer needs the place for a moment only.
    """

    def __init__(self, connections: Connections, options: CommOptions) -> None:
        self._connections = connections
        self._options = options
        self._strangers: dict[TcpComm, None] = {}  # in the order in which they have come

    def accept(self) -> TcpComm:
        """The protocol of one more connection."""
        if len(self._strangers) >= self._options.strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort("there are too many that have not said who they are")
        refusal = _FULL if self._full else None
        comm = TcpComm(Role.LISTENING, self._options, refusal=refusal)
        self._strangers[comm] = None
        comm.greeted.add_done_callback(lambda _: self._greeted(comm))
        return comm

    @property
    def _full(self) -> bool:
        return self._connections.count >= self._options.connections

    def _greeted(self, comm: TcpComm) -> None:
        self._strangers.pop(comm, None)
        if comm.closed:
            return
        if self._full:
            comm.abort(_FULL)
        else:
            self._connections.start(comm)

    def close(self) -> None:
        """Drop those who have not said who they are."""
        for comm in list(self._strangers):
            comm.abort("nobody listens any more")


@asynccontextmanager
async def listen_tcp(place: str, handler: Handler, options: CommOptions) -> AsyncIterator[TcpListener]:
    """Accept connections for as long as the block runs.

    Raises:
        PermissionDeniedError: the address is not of the loopback, and this process has nothing to prove itself by.
        AlreadyExistsError: it is taken. (Not UnavailableError: who supervises a session would try again, and talk to
            the process that has taken it.)
        UnavailableError: it is not of this machine.
    """
    host, port = await resolved(*split_host(place), anywhere=options.credentials.prove)
    async with Connections(handler) as connections:
        door = _Door(connections, options)
        try:
            loop, reserved = asyncio.get_running_loop(), reserved_socket(place)
            if reserved is None:
                server = await loop.create_server(door.accept, host, port)
            else:
                server = await loop.create_server(door.accept, sock=reserved)
        except OSError as error:
            kind = AlreadyExistsError if error.errno == errno.EADDRINUSE else UnavailableError
            raise kind(f"cannot listen at {tcp_address(host, port)}: {error}") from error
        _inherited = Inherited(server.sockets)  # for as long as they listen
        try:
            yield TcpListener(tcp_address(*server.sockets[0].getsockname()[:2]))
        finally:
            server.close()
            door.close()
