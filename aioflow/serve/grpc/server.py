"""The server for gRPC: grpcio's own, in the event loop of whoever runs it.

All methods are taken as streams of bytes, which on the wire are what calls of one message are: so a message is read
only when whoever sends it may ask, and only so long as the limits say, and an answer counts until it has been taken.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import grpc

from aioflow.errors import ClientDisconnectedError, DeadlineExceededError, InvalidArgumentError, OpError
from aioflow.formats.files import check_private, file_errors
from aioflow.serve.admission import Admission
from aioflow.serve.bearer import Bearer
from aioflow.serve.grpc.methods import OPEN, Method, Methods
from aioflow.serve.protocol import Limits, code_of, retry_after, said_of
from aioflow.serve.repository import Repository
from aioflow.serve.where import ServerOptions
from aioflow.work.threads import although_cancelled, to_its_end

__all__ = ["GrpcServer"]

_LOG: Final = logging.getLogger("aioflow.serve")
_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}
_SAID: Final = 1000  # characters: all headers of an answer together are 8 KiB at most
_IDENTITY: Final = 1  # the set of compressions that has only none


class GrpcServer:
    """A service over gRPC that listens while its block runs.

        async with aioflow.serve.GrpcServer(repository, ServerOptions(grpc_port=8001)) as server:
            print(server.address)

    Leaving the block refuses new calls, answers those that have begun, and ends those that only listen.

    Args:
        repository: The models; it is open for longer.
        where: Where it listens, and for whom.
        limits: What one request may ask for.
        admission: What is held by all requests, of this transport and of others.
    """

    def __init__(
        self,
        repository: Repository,
        where: ServerOptions | None = None,
        *,
        limits: Limits | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._where = where or ServerOptions()
        self._limits = limits or Limits()
        self._methods = Methods(repository, self._limits, admission or Admission(self._limits.pending_bytes))
        self._bearer = Bearer(self._where.token)
        self._server: Any = None
        self.address = ""

    async def __aenter__(self) -> GrpcServer:
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", self._limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 16 << 10),
                ("grpc.so_reuseport", 0),  # a port that somebody has is not shared with him
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY),  # the limit is for what is sent
            )
        )
        for service, table in self._methods.services.items():
            handlers = {
                name: grpc.stream_stream_rpc_method_handler(self._handler(name, method))
                for name, method in table.items()
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        address = self._listen(server)
        try:
            await to_its_end(server.start())
        except BaseException:
            await _stop(server, None)
            raise
        self._server, self.address = server, address
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._methods.end()
            await _stop(server, self._where.drain_seconds)

    def _listen(self, server: Any) -> str:
        host = f"[{self._where.host}]" if ":" in self._where.host else self._where.host
        wanted = f"{host}:{self._where.grpc_port or 0}"
        credentials = self._credentials()
        try:
            if credentials is None:
                port = server.add_insecure_port(wanted)
            else:
                port = server.add_secure_port(wanted, credentials)
        except RuntimeError as error:
            raise OSError(f"nothing can listen for gRPC at {wanted}: the log of grpc says why") from error
        self._where.warn_if_open(port)
        return f"{host}:{port}"

    def _credentials(self) -> Any:
        if self._where.tls_cert is None or self._where.tls_key is None:
            return None
        key, chain = _read(self._where.tls_key), _read(self._where.tls_cert)
        if b"-----BEGIN" not in key or b"-----BEGIN" not in chain:
            raise InvalidArgumentError("the certificate or its key cannot be read", expected="two PEM files")
        check_private(self._where.tls_key)
        return grpc.ssl_server_credentials([(key, chain)])

    def _handler(self, name: str, method: Method) -> Callable[[Any, Any], Awaitable[None]]:
        """What grpcio calls for a method: errors become its statuses in one place."""

        async def handle(_: Any, context: Any) -> None:
            try:
                if name not in OPEN:
                    self._bearer.check(_authorization(context))
                await method(_Exchange(context, self._limits))
            except Exception as error:
                if not isinstance(error, OpError):
                    _LOG.exception("%s failed", name)
                await _end(context, error)

        return handle


async def _stop(server: Any, seconds: float | None) -> None:
    """Stop a server of grpcio's within `seconds`, or at once if this is cancelled.

    Its coroutines run in tasks of their own: one that is cancelled leaves the server half stopped.
    """
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(server.stop(seconds))
        try:
            await asyncio.wait([stopping])
        except asyncio.CancelledError:
            await although_cancelled(group.create_task(server.stop(None)))
            await although_cancelled(stopping)
            raise


def _read(path: str | os.PathLike[str]) -> bytes:
    with file_errors(path):
        return Path(path).read_bytes()


def _authorization(context: Any) -> bytes:
    """The value of that header; of several, all, which is no token."""
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return ", ".join(found).encode()


async def _end(context: Any, error: Exception) -> None:
    """End a call with what was wrong."""
    after = retry_after(error)
    trailing = () if after is None else (("retry-after", str(after)),)
    context.set_trailing_metadata(trailing)
    context.set_code(_STATUS[code_of(error)])
    context.set_details(said_of(error)[:_SAID])


class _Exchange:
    """A call, as grpcio has it."""

    def __init__(self, context: Any, limits: Limits) -> None:
        self._context = context
        self._limits = limits

    async def read(self) -> bytes:
        """The message, or the next.

        Raises:
            DeadlineExceededError: it does not come.
            ClientDisconnectedError: the call has no further message, or it was too large, of which the client is told.
        """
        seconds = self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                data = await self._context.read()
        except TimeoutError as error:
            raise DeadlineExceededError("the message does not come", expected=f"all in {seconds} s") from error
        if data is grpc.aio.EOF:
            raise ClientDisconnectedError("the call has no message")
        return bytes(data)

    async def write(self, data: bytes) -> None:
        """Send an answer."""
        await self._context.write(data)

    def remaining(self) -> float | None:
        """Seconds until the deadline."""
        seconds: float | None = self._context.time_remaining()
        return seconds
