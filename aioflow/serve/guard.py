"""Access control of the service: the token; with HTTP, also the host name and the origin of requests."""

from __future__ import annotations

import hmac
import re
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
        token: The token of callers; None if calls require none.
        admin_token: The token that all requests accept, and changes of the models require; None if the other suffices.

    Raises:
        InvalidArgumentError: a token is empty, so a request without a token would pass, or both are the same.
    """

    def __init__(self, token: str | None, admin_token: str | None = None) -> None:
        if "" in (token, admin_token):
            raise InvalidArgumentError("the token is empty", expected="a token, or None for nothing", actual="''")
        if token is not None and token == admin_token:
            raise InvalidArgumentError("both tokens are the same", expected="another token for the administrator")
        self._token = None if token is None else token.encode()
        self._admin_token = None if admin_token is None else admin_token.encode()

    def check(self, authorization: bytes, is_change: bool = False) -> None:
        """Raise an error unless `authorization` is `Bearer` and a token that suffices. Compares in constant time.

        Args:
            authorization: The value of the header.
            is_change: Whether the request changes the models.

        Raises:
            UnauthenticatedError: there is no token, or it is unknown.
            PermissionDeniedError: the token is that of callers, and the request requires the administrator's.
        """
        is_admin_only = is_change and self._admin_token is not None
        if self._token is None and not is_admin_only:
            return
        # The name of a scheme is case-insensitive (RFC 7235); the token is not.
        scheme, _, token = authorization.partition(b" ")
        is_bearer = scheme.lower() == _SCHEME
        # RFC 7235 allows several spaces before the token.
        given = token.strip(b" ") if is_bearer else b""
        if self._admin_token is not None and hmac.compare_digest(given, self._admin_token):
            return
        if self._token is None or not hmac.compare_digest(given, self._token):
            said = "this is not the token" if is_bearer else "a token is needed"
            raise UnauthenticatedError(said, expected="Authorization: Bearer TOKEN")
        if is_admin_only:
            raise PermissionDeniedError(
                "this token may not load or unload models", expected="the administrator's token"
            )


# ── access to the HTTP service ────────────────────────────────────────────────────────────────────────────────────────


# The paths of requests that change the models: load and unload.
CHANGE: Final = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")


class RequestGuard:
    """A check that requests pass before they are answered.

    A page of another site can make a browser send requests to this machine. The browser puts the page's site into
    `Origin`, and such a request is refused. A page can also make its own host name resolve to this machine (DNS
    rebinding). `Host` then has that name, and the request is refused unless the name is one of `hosts`.
    """

    def __init__(
        self,
        token: str | None = None,
        hosts: Collection[str] | None = None,
        is_open: Collection[str] = (),
        admin_token: str | None = None,
    ) -> None:
        # Paths without secrets: probes, and the files of the status page.
        self._open = is_open
        self._hosts = None if hosts is None else frozenset(host.lower().encode() for host in hosts)
        self._bearer = Bearer(token, admin_token)

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
            raise PermissionDeniedError(
                "the host name of the request is not allowed",
                expected="a name that --allow-host (hosts= in Python) allows",
                actual=repr(_without_port(host).decode("latin-1")),
            )
        if not is_open:
            self._bearer.check(header(scope, b"authorization"), CHANGE.fullmatch(path_of(scope)) is not None)


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    # An IPv6 address in brackets also contains colons, but ends with "]" if it has no port.
    return name if colon and port.isdigit() else host
