"""Access control of the service: the token; with HTTP, also the host name and the origin of requests."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import Final

from starlette.types import Scope, Send

from aioflow.errors import InvalidArgumentError, OpError, PermissionDeniedError, UnauthenticatedError
from aioflow.serve.requests import answer_error, header, path_of

# ── bearer tokens, for every transport ────────────────────────────────────────────────────────────────────────────────


_SCHEME: Final = b"bearer"


class Bearer:
    """A check of the token in requests.

    Args:
        token: The token; None if no authentication is required.

    Raises:
        InvalidArgumentError: the token is empty, so a request without a token would pass.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and not token:
            raise InvalidArgumentError("the token is empty", expected="a token, or None for nothing", actual="''")
        self._token = None if token is None else token.encode()

    def check(self, authorization: bytes) -> None:
        """Raise UnauthenticatedError unless `authorization` is `Bearer` and the token. Compares in constant time."""
        if self._token is None:
            return
        # The name of a scheme is case-insensitive (RFC 7235); the token is not.
        scheme, _, token = authorization.partition(b" ")
        is_bearer = scheme.lower() == _SCHEME
        # RFC 7235 allows several spaces before the token.
        if not hmac.compare_digest(token.strip(b" ") if is_bearer else b"", self._token):
            said = "this is not the token" if is_bearer else "a token is needed"
            raise UnauthenticatedError(said, expected="Authorization: Bearer TOKEN")


# ── access to the HTTP service ────────────────────────────────────────────────────────────────────────────────────────


class RequestGuard:
    """A check that requests pass before they are answered.

    A page of another site can make a browser send requests to this machine. The browser puts the page's site into
    `Origin`, and such a request is refused. A page can also make its own host name resolve to this machine (DNS
    rebinding). `Host` then has that name, and the request is refused unless the name is one of `hosts`.
    """

    def __init__(
        self, token: str | None = None, hosts: Collection[str] | None = None, is_open: Collection[str] = ()
    ) -> None:
        # Paths without secrets: probes, and the files of the status page.
        self._open = is_open
        self._hosts = None if hosts is None else frozenset(host.lower().encode() for host in hosts)
        self._bearer = Bearer(token)

    async def admits(self, scope: Scope, send: Send) -> bool:
        """Return True if the request may proceed. Otherwise an error has been sent."""
        try:
            self._check(scope)
        except OpError as error:
            await answer_error(send, error, close=True)
            return False
        return True

    def _check(self, scope: Scope) -> None:
        origin = header(scope, b"origin")
        host = header(scope, b"host")
        # Programs send no `Origin`; a browser sends it with every POST of a page.
        if origin and origin.partition(b"://")[2] != host:
            raise PermissionDeniedError("a page of another site may not ask", expected="its own origin")
        is_open = path_of(scope) in self._open
        # A browser always sends Host; an HTTP/1.0 prober may omit it.
        asks_without_name = is_open and not host
        if self._hosts is not None and not asks_without_name and _without_port(host).lower() not in self._hosts:
            raise PermissionDeniedError("this is no name of the service", expected="a host that it allows")
        if not is_open:
            self._bearer.check(header(scope, b"authorization"))


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    # An IPv6 address in brackets also contains colons, but ends with "]" if it has no port.
    return name if colon and port.isdigit() else host
