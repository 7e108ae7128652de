"""Where and for whom a service listens."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from aioflow.checks.numbers import check_seconds
from aioflow.errors import InvalidArgumentError
from aioflow.net.addresses import is_loopback

__all__ = ["ServerOptions"]

_LOG: Final = logging.getLogger("aioflow.serve")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where and for whom a service listens.

    Attributes:
        host, port: The address; port 0 takes a free one.
        grpc_port: The port for gRPC at that host; None for none.
        token, hosts: As of `create_app`. Without either, a service that listens on the loopback address is asked by the
            names of that, so that no page of a browser reaches it by another.
        tls_cert, tls_key: Files of a certificate chain and its key (PEM), for TLS. No other user may read the key.
        drain_seconds: How long requests that have begun may take, when the service is to end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    hosts: Collection[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    drain_seconds: float = 30.0
    grpc_port: int | None = None

    def __post_init__(self) -> None:
        check_seconds(self.drain_seconds, "ServerOptions.drain_seconds")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgumentError("a certificate and its key go together", expected="both, or neither")

    def warn_if_open(self, port: int) -> None:
        """Log a warning if the service listens beyond the loopback address and asks for no token."""
        if self.token is None and self.host not in _LOOPBACK and not is_loopback(self.host):
            _LOG.warning(
                "anyone who can reach %s port %d may use, load and unload the models, since there is no token: give one"
                " (--token-file, ServerOptions.token), or listen on 127.0.0.1 behind a proxy that asks for one",
                self.host,
                port,
            )

    def allowed(self) -> Collection[str] | None:
        """The names by which the service may be asked; None for any."""
        is_local = self.host in _LOOPBACK and self.token is None
        return _LOOPBACK if self.hosts is None and is_local else self.hosts
