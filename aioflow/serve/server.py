"""The service with its own HTTP server: uvicorn in the caller's event loop. The caller keeps its signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Generator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette

from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError
from aioflow.formats.files import check_private
from aioflow.serve.access import IdentifiedRequests
from aioflow.serve.app import create_app
from aioflow.serve.embedded import EmbeddedServer, EmbeddedSettings
from aioflow.serve.options import ModelOptions, ServerOptions
from aioflow.serve.protocol import Limits
from aioflow.serve.repository import IndexEntry, Repository
from aioflow.serve.running import running
from aioflow.serve.sources import ModelSource

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from aioflow.serve.grpc.server import GrpcServer

_BACKLOG: Final = 2048


class Server:
    """A service that listens inside its block.

        async with aioflow.serve.Server({"digits": "models/digits"}) as server:
            await server.ready()  # every model is loaded
            print(server.url)
            await server.stopped()

    With `ServerOptions.grpc_port`, the same models are also served over gRPC at `grpc_address`.

    Leaving the block answers pending requests, refuses others, and closes the models.

    Args:
        models: As in `create_app`.
        options: As in `Repository`.
        where: Address, token and TLS settings.
        limits: As in `create_app`.
        memory_budget: As in `Repository`.
        sockets: Listening sockets to use instead of the address in `where`.

    Attributes:
        app: The ASGI application.
        repository: The models.
        url: URL of the service; "" before the block.
        grpc_address: Address of the gRPC service, "host:port"; "" before the block, or without gRPC.

    Raises:
        OSError: on entering the block, the address is in use or not permitted.
        InvalidArgumentError: on entering the block, the host name is unknown, or the certificate or its key unusable.
    """

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str] | ModelSource],
        options: ModelOptions | Mapping[str | None, ModelOptions] | None = None,
        where: ServerOptions | None = None,
        *,
        limits: Limits | None = None,
        memory_budget: int | None = None,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        self._where = where or ServerOptions()
        self.repository = Repository(
            models,
            options,
            memory_budget=memory_budget,
            drain_seconds=self._where.drain_seconds,
            readiness=self._where.readiness,
        )
        self.app: Starlette = create_app(
            self.repository,
            limits=limits,
            token=self._where.token,
            admin_token=self._where.admin_token,
            hosts=self._where.allowed(),
        )
        self._sockets = sockets
        self._stack = contextlib.AsyncExitStack()
        self._end = asyncio.Event()
        self.url = ""
        self.grpc_address = ""
        self._grpc = None if self._where.grpc_port is None else self._over_grpc(limits)

    async def __aenter__(self) -> Server:
        async with contextlib.AsyncExitStack() as stack:
            sockets = self._sockets or [stack.enter_context(listening(self._where))]
            for each in sockets:
                stack.callback(each.close)
            # In a thread, because uvicorn imports its protocol and reads the certificate.
            server = await in_thread(web_server, self.app, self._where, effects=False)
            await stack.enter_async_context(self.repository)
            group = await stack.enter_async_context(running())
            # The repository is entered before this task and left after it, so no request meets a closed model.
            serving = group.create_task(server.serve(sockets=sockets))
            watch = group.create_task(self.app.state.watch.run())
            stack.callback(watch.cancel)
            stack.callback(self._leave, server)
            if self._grpc is not None:
                self.grpc_address = (await self._grpc.__aenter__()).address
                stack.push_async_exit(partial(_leave_grpc, self._grpc, serving))
                stack.callback(self._leave, server)  # so that both transports finish their requests concurrently
            self.url = url_of(sockets[0], self._where)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    def _over_grpc(self, limits: Limits | None) -> GrpcServer:
        from aioflow.serve.grpc import GrpcServer

        return GrpcServer(self.repository, self._where, limits=limits, admission=self.app.state.admission)

    def _leave(self, server: EmbeddedServer) -> None:
        self.repository.drain()
        server.should_exit = True

    def stop(self) -> None:
        """End `stopped`. May be called from a signal handler of the event loop."""
        self._end.set()

    async def stopped(self) -> None:
        """Wait for `stop`."""
        await self._end.wait()

    def index(self) -> list[IndexEntry]:
        """Return the models and versions with their states."""
        return self.repository.index()

    async def ready(self) -> None:
        """Load every model.

        Raises the error of the first model that fails to load; without `ServerOptions.strict`, only if none is loaded.
        """
        await self.repository.load_all(strict=self._where.strict)


async def _leave_grpc(server: GrpcServer, serving: asyncio.Task[None], *raised: Any) -> None:
    """Leave the block of `server`. If that is cancelled, end HTTP at once, too."""
    try:
        await server.__aexit__(*raised)
    except asyncio.CancelledError:
        serving.cancel()
        raise


def web_server(app: ASGIApp, where: ServerOptions) -> EmbeddedServer:
    """Return the HTTP server for an application.

    Raises:
        InvalidArgumentError: the certificate cannot be read, or other users may read the key.
    """
    tls: dict[str, Any] = {}
    if where.tls_cert is not None:
        tls = {"ssl_certfile": os.fspath(where.tls_cert), "ssl_keyfile": where.tls_key}
    settings = EmbeddedSettings(
        app,
        access_log=False,
        lifespan="off",
        # uvicorn's annotation is int, but it accepts a float; 0.5 rounded down would be no time at all.
        timeout_graceful_shutdown=where.drain_seconds,  # type: ignore[arg-type]
        server_header=False,
        proxy_headers=False,
        ws="none",
        **tls,
    )
    loaded = _loaded(settings)
    # Outside of what `EmbeddedSettings` adds, so that requests that are cut off are logged.
    loaded.loaded_app = IdentifiedRequests(loaded.loaded_app, where.access_log)
    if where.tls_key is not None:
        check_private(where.tls_key)
    return EmbeddedServer(loaded)


def _loaded(settings: EmbeddedSettings) -> EmbeddedSettings:
    """Return the settings with the certificate loaded. Raises InvalidArgumentError if it cannot be read."""
    try:
        settings.load()
    except OSError as error:
        raise InvalidArgumentError(
            "the certificate or its key cannot be read",
            expected="two PEM files that belong together",
            actual=str(error),
        ) from error
    return settings


@contextlib.contextmanager
def listening(where: ServerOptions) -> Generator[socket.socket, None, None]:
    """Yield a listening socket at an address, and close it afterwards.

    Raises:
        OSError: the address is in use or not permitted.
        InvalidArgumentError: the host name is unknown.
    """
    host, port = where.host, where.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise InvalidArgumentError(f"there is no address {host!r}", expected="a name or an address") from error
    # The protocol is explicit because asyncio disables Nagle's algorithm only if the socket reports TCP.
    with socket.socket(family, kind, protocol or socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
        where.warn_if_open(listener.getsockname()[1])
        yield listener


def url_of(listener: socket.socket, where: ServerOptions) -> str:
    """Return the URL of a service that listens there."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if where.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
