"""The gRPC server: grpcio's own, in the caller's event loop.

All methods are registered as streams of bytes; on the wire a unary call looks the same. So the server reads a message
only after the call is authenticated, and within the limits, and an answer counts as held memory until it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import unquote

import grpc

from aioflow.concurrency.threads import although_cancelled, to_its_end
from aioflow.errors import ClientDisconnectedError, DeadlineExceededError, InvalidArgumentError, OpError
from aioflow.formats.files import check_private, file_errors
from aioflow.observe.logs import REQUEST_ID, REQUEST_ID_HEADER, TRACEPARENT, AccessEntry, log_access, request_id
from aioflow.serve.grpc.calls import Method
from aioflow.serve.grpc.methods import CHANGES, OPEN, Methods
from aioflow.serve.guard import Bearer
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.options import ServerOptions
from aioflow.serve.protocol import Limits, code_of, message_of, retry_after, status_of
from aioflow.serve.repository import Repository

_LOG: Final = logging.getLogger("aioflow.serve")
_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}
_SAID: Final = 1000  # characters: all headers of an answer together are limited to 8 KiB
_OK: Final = 200
_GONE: Final = 499  # as `status_of` has it for a client that disconnects
_IDENTITY: Final = 1  # the compression bit set with identity only


class GrpcServer:
    """A gRPC service that listens inside an `async with` block.

        async with aioflow.serve.GrpcServer(repository, ServerOptions(grpc_port=8001)) as server:
            print(server.address)

    Leaving the block refuses new calls, answers pending ones, and ends streaming calls. Calls that are still pending
    after `ServerOptions.drain_seconds` are cancelled. Entering the block raises OSError if the address is not
    available, and OpError if the certificate or its key cannot be used.

    Args:
        repository: The models; the caller opens and closes it.
        where: Address, token and TLS settings.
        limits: Limits for a single request.
        admission: The limit on the memory of all requests, shared with other transports.
    """

    def __init__(
        self,
        repository: Repository,
        where: ServerOptions | None = None,
        *,
        limits: Limits | None = None,
        admission: RequestAdmission | None = None,
    ) -> None:
        self._where = where or ServerOptions()
        self._limits = limits or Limits()
        self._methods = Methods(repository, self._limits, admission or RequestAdmission(self._limits.pending_bytes))
        self._bearer = Bearer(self._where.token, self._where.admin_token)
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> GrpcServer:
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", self._limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 16 << 10),
                ("grpc.so_reuseport", 0),  # do not share a port with another process
                # Without compression, because the receive limit would apply to the compressed size.
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY),
            )
        )
        for service, table in self._methods.services.items():
            handlers = {
                name: grpc.stream_stream_rpc_method_handler(self._handler(service, name, method))
                for name, method in table.items()
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        # Bound before the start: grpcio reports a port that is in use only here.
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
            # Streams have no end of their own, so `stop` would wait for them until the drain time is over.
            self._methods.end()
            await _stop(server, self._where.drain_seconds)

    def _listen(self, server: grpc.aio.Server) -> str:
        host = f"[{self._where.host}]" if ":" in self._where.host else self._where.host
        wanted = f"{host}:{self._where.grpc_port or 0}"
        credentials = self._credentials()
        try:
            if credentials is None:
                port = server.add_insecure_port(wanted)
            else:
                port = server.add_secure_port(wanted, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC at {wanted}; see the log of grpc for the cause") from error
        self._where.warn_if_open(port)
        return f"{host}:{port}"

    def _credentials(self) -> grpc.ServerCredentials | None:
        if self._where.tls_cert is None or self._where.tls_key is None:
            return None
        key, chain = _read(self._where.tls_key), _read(self._where.tls_cert)
        if b"-----BEGIN" not in key or b"-----BEGIN" not in chain:
            raise InvalidArgumentError("the certificate or its key cannot be read", expected="two PEM files")
        check_private(self._where.tls_key)
        return grpc.ssl_server_credentials([(key, chain)])

    def _handler(
        self, service: str, name: str, method: Method
    ) -> Callable[[object, grpc.aio.ServicerContext], Awaitable[None]]:
        """Return the handler of a method for grpcio. It converts errors to gRPC statuses."""

        async def handle(_: object, context: grpc.aio.ServicerContext) -> None:
            begun, status = time.perf_counter(), _GONE  # unless set below: the call was cancelled
            # Not reset: each call has a task of its own.
            REQUEST_ID.set(number := request_id(_metadata(context, TRACEPARENT)))
            context.set_trailing_metadata(((REQUEST_ID_HEADER, number),))
            exchange = _Exchange(context, self._limits)
            try:
                if name not in OPEN:
                    self._bearer.check(_metadata(context, "authorization").encode(), name in CHANGES)
                await method(exchange)
                status = _OK
            except Exception as error:
                if not isinstance(error, OpError):
                    _LOG.exception("%s failed", name)
                status = status_of(error)
                await _end(context, error, number)
            finally:
                if self._where.access_log:
                    seconds = time.perf_counter() - begun
                    log_access(_entry(context, f"/{service}/{name}", status, exchange.sent, seconds, number))

        return handle


async def _stop(server: grpc.aio.Server, seconds: float | None) -> None:
    """Stop a grpcio server within `seconds`, or at once if this is cancelled."""
    # `stop` runs in a separate task: cancelling it would leave the server half stopped.
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


def _metadata(context: grpc.aio.ServicerContext, name: str) -> str:
    """Return the value of a header. Several values are joined, so they never equal the token, or a valid id."""
    return ", ".join([value for key, value in context.invocation_metadata() or () if key == name])


def _entry(
    context: grpc.aio.ServicerContext, path: str, status: int, size: int, seconds: float, number: str
) -> AccessEntry:
    # The peer is "ipv4:127.0.0.1:50000", or "ipv6:[::1]:50000", with escaped brackets.
    client = unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")
    return AccessEntry(time.time(), client or "-", "POST", path, "gRPC", status, size, seconds, number)


async def _end(context: grpc.aio.ServicerContext, error: Exception, number: str) -> None:
    """End a call with the status of an error."""
    after = retry_after(error)
    trailing = () if after is None else (("retry-after", str(after)),)
    context.set_trailing_metadata(((REQUEST_ID_HEADER, number), *trailing))
    context.set_code(_STATUS[code_of(error)])
    context.set_details(message_of(error)[:_SAID])


class _Exchange:
    """A call, on top of grpcio's context."""

    def __init__(self, context: grpc.aio.ServicerContext, limits: Limits) -> None:
        self.sent = 0  # bytes of answers
        self._context = context
        self._limits = limits

    async def read(self, *, is_idle: bool = False) -> bytes:
        """Return the next message of the client; if `is_idle`, without a time limit.

        Raises:
            DeadlineExceededError: the message does not arrive in time.
            ClientDisconnectedError: there is no further message, or it was too large; grpcio tells the client.
        """
        seconds = None if is_idle else self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                data = await self._context.read()
        except TimeoutError as error:
            raise DeadlineExceededError(
                "the request message did not arrive in time", expected=f"the whole message within {seconds} s"
            ) from error
        if data is grpc.aio.EOF:
            raise ClientDisconnectedError("the call has no request message")
        return bytes(data)

    async def write(self, data: bytes) -> None:
        """Send an answer."""
        await self._context.write(data)
        self.sent += len(data)

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, or None."""
        seconds: float | None = self._context.time_remaining()
        return seconds
