"""Settings of a service's listening sockets: addresses, allowed hosts, TLS and draining."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from aioflow.arguments import check_seconds
from aioflow.errors import InvalidArgumentError
from aioflow.net.addresses import is_loopback

_LOG: Final = logging.getLogger("aioflow.serve")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings of a service's listening sockets.

    Attributes:
        host, port: Address to listen on; port 0 picks a free port.
        grpc_port: Port for gRPC on that host; None disables gRPC.
        token, hosts: See `create_app`. If neither is set and the service listens on a loopback address, it accepts only
            loopback host names. This prevents a web page from reaching it under another name (DNS rebinding).
        tls_cert, tls_key: Files with the certificate chain and its key (PEM), for TLS. The key file must not be
            readable by other users.
        drain_seconds: Seconds that running requests may take to finish when the service shuts down.

    Raises:
        InvalidArgumentError: a certificate is given without its key, or `drain_seconds` is out of range.
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
            raise InvalidArgumentError(
                "a TLS certificate needs its key, and a key its certificate", expected="both, or neither"
            )

    def warn_if_open(self, port: int) -> None:
        """Log a warning if the service listens beyond the loopback address and requires no token."""
        if self.token is None and self.host not in _LOOPBACK and not is_loopback(self.host):
            _LOG.warning(
                "anyone who can reach %s port %d may use, load and unload the models, since there is no token: give one"
                " (--token-file, ServerOptions.token), or listen on 127.0.0.1 behind a proxy that asks for one",
                self.host,
                port,
            )

    def allowed(self) -> Collection[str] | None:
        """Return the accepted host names, or None if any name is accepted."""
        # With a token, a page of another name could not authenticate anyway.
        is_local = self.host in _LOOPBACK and self.token is None
        return _LOOPBACK if self.hosts is None and is_local else self.hosts
