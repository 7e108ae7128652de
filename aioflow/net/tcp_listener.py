"""TCP listeners. Unauthenticated clients are limited in number and time, separately from authenticated peers."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

from aioflow.errors import AlreadyExistsError, UnavailableError
from aioflow.net.accepting import Connections
from aioflow.net.addresses import reserved_socket, resolved, split_host
from aioflow.net.arriving import Arrivals
from aioflow.net.comm import CommOptions, Handler
from aioflow.net.inherited import Inherited
from aioflow.net.proving import ConnectionEnd
from aioflow.net.tcp import TcpComm, tcp_address, tls_times

_WAITING: Final = 100  # backlog of connections to be accepted
_PAUSE: Final = 0.1  # seconds


class TcpListener:
    """The address of a listening socket."""

    def __init__(self, address: str) -> None:
        self.address = address


class _Acceptor:
    """Makes a comm of each connection, and passes authenticated ones to the handler.

    If there are too many unauthenticated clients, the oldest is dropped: an honest peer authenticates within a moment.
    """

    def __init__(self, connections: Connections, options: CommOptions) -> None:
        self.connections = connections
        self._options = options
        self._arrivals = Arrivals(options.limits.all_arriving_bytes)
        self._unauthenticated: dict[TcpComm, None] = {}  # the oldest first
        self._refused: set[TcpComm] = set()  # until they are closed

    def accept(self) -> TcpComm:
        """Return the protocol for a new connection."""
        comm = TcpComm(ConnectionEnd.LISTENING, self._options, arrivals=self._arrivals)
        if len(self._unauthenticated) >= self._options.unauthenticated:
            oldest = next(iter(self._unauthenticated))
            # Not left to `_greeted`, which runs only in the next turn of the event loop, after further connections
            # perhaps.
            del self._unauthenticated[oldest]
            oldest.abort("there are too many unauthenticated connections")
        self._unauthenticated[comm] = None
        comm.greeted.add_done_callback(lambda _: self._greeted(comm))
        return comm

    def _greeted(self, comm: TcpComm) -> None:
        self._unauthenticated.pop(comm, None)
        if comm.closed:
            return
        try:
            self.connections.admit(comm)
        except UnavailableError as error:
            comm.close_with(error)
            self._refused.add(comm)
            comm.lost.add_done_callback(lambda _: self._refused.discard(comm))

    def close(self) -> None:
        """Drop the unauthenticated and refused connections."""
        for comm in (*self._unauthenticated, *self._refused):
            comm.abort("the listener has closed")


@asynccontextmanager
async def listen_tcp(place: str, handler: Handler, options: CommOptions) -> AsyncIterator[TcpListener]:
    """Accept connections for as long as the block runs.

    Raises:
        PermissionDeniedError: the address is beyond the loopback, and this process has no credentials.
        AlreadyExistsError: the address is in use.
        UnavailableError: the address does not belong to this machine.
    """
    host, port = await resolved(*split_host(place), anywhere=options.credentials.prove)
    serve = _serve_tcp if options.credentials.tls is None else _serve_tls
    async with Connections(handler, options) as connections:
        acceptor = _Acceptor(connections, options)
        async with serve(acceptor, options, (host, port), reserved_socket(place)) as sock:
            # Keep a reference: while it lives, forked children detach from the socket.
            _inherited = Inherited([sock])
            try:
                yield TcpListener(tcp_address(*sock.getsockname()[:2]))
            finally:
                acceptor.close()


@asynccontextmanager
async def _serve_tcp(
    acceptor: _Acceptor, options: CommOptions, where: tuple[str, int], reserved: socket.socket | None
) -> AsyncIterator[Any]:
    loop = asyncio.get_running_loop()
    with _listening_at(where):
        if reserved is None:
            server = await loop.create_server(acceptor.accept, *where, start_serving=False)
        else:
            server = await loop.create_server(acceptor.accept, sock=reserved, start_serving=False)
    try:
        with _listening_at(where):
            # Not in `create_server`, which leaves the socket open if it is cancelled.
            await server.start_serving()
        yield server.sockets[0]
    finally:
        # Not followed by `wait_closed`: since Python 3.12 it waits for the connections, which the caller closes later.
        server.close()


@asynccontextmanager
async def _serve_tls(
    acceptor: _Acceptor, options: CommOptions, where: tuple[str, int], reserved: socket.socket | None
) -> AsyncIterator[socket.socket]:
    """Accept connections and begin TLS on each of them."""
    # Not with `create_server`: an event loop does not report connections on which the TLS handshake fails.
    with _listening_at(where):
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        sock = reserved or socket.create_server(where, family=family)
    with sock:
        with _listening_at(where):
            sock.listen(_WAITING)
        sock.setblocking(False)
        accepting = acceptor.connections.run(_accept_tls(sock, acceptor, options))
        try:
            yield sock
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])  # must end before the socket is closed


@contextmanager
def _listening_at(where: tuple[str, int]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Not UnavailableError for an address in use: monitored sessions would retry, and reach the other process.
        kind = AlreadyExistsError if error.errno == errno.EADDRINUSE else UnavailableError
        raise kind(f"cannot listen at {tcp_address(*where)}: {error}") from error


async def _accept_tls(sock: socket.socket, acceptor: _Acceptor, options: CommOptions) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, _ = await loop.sock_accept(sock)
        # Without a free file descriptor, `accept` fails again at once: the pause keeps this loop from spinning.
        except OSError:  # the connection is closed already, or too many files are open
            await asyncio.sleep(_PAUSE)
        else:
            comm = acceptor.accept()
            beginning = acceptor.connections.run(_begin_tls(comm, accepted, options))
            beginning.add_done_callback(partial(_begun, comm, accepted))
            comm.greeted.add_done_callback(partial(_given_up, comm, beginning))


def _begun(comm: TcpComm, accepted: socket.socket, _: asyncio.Task[None]) -> None:
    if comm.closed:  # there may be no transport yet that would close the socket
        accepted.close()


def _given_up(comm: TcpComm, beginning: asyncio.Task[None], _: asyncio.Future[None]) -> None:
    # The comm may have been dropped as the oldest unauthenticated one, in the middle of its TLS handshake.
    if comm.closed:
        beginning.cancel()


async def _begin_tls(comm: TcpComm, accepted: socket.socket, options: CommOptions) -> None:
    tls, loop = options.credentials.tls, asyncio.get_running_loop()
    if tls is None or comm.closed:
        comm.abort("it is no longer needed")
        return
    try:
        async with asyncio.timeout(options.handshake_timeout):
            await loop.connect_accepted_socket(lambda: comm, accepted, ssl=tls.listening(), **tls_times(options))
    except OSError as error:  # concerns this connection only
        comm.abort(f"the TLS handshake failed: {error}")
