"""Who may ask: whoever has the token, where there is one, and no page of another site in a browser."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope, Send

from aioflow.errors import OpError, PermissionDeniedError
from aioflow.serve.bearer import Bearer
from aioflow.serve.requests import answer_error, header, path_of

__all__ = ["Guard"]


class Guard:
    """Refuses whoever may not ask.

    A page of another site may have a browser send requests to this machine. Such a request says where it comes from, in
    `Origin`, and is refused if that is not this service. A page may also have the name of its own site stand for this
    machine; then `Host` has that name, and is refused where it is not one of `hosts`.
    """

    def __init__(
        self, token: str | None = None, hosts: Collection[str] | None = None, is_open: Collection[str] = ()
    ) -> None:
        self._open = is_open  # what has no secrets: probes, the files of the page
        self._hosts = None if hosts is None else frozenset(host.lower().encode() for host in hosts)
        self._bearer = Bearer(token)

    async def admits(self, scope: Scope, send: Send) -> bool:
        """Whether a request may go on; if not, it has been answered."""
        try:
            self._check(scope)
        except OpError as error:
            await answer_error(send, error, close=True)
            return False
        return True

    def _check(self, scope: Scope) -> None:
        origin = header(scope, b"origin")
        host = header(scope, b"host")
        if origin and origin.partition(b"://")[2] != host:
            raise PermissionDeniedError("a page of another site may not ask", expected="its own origin")
        is_open = path_of(scope) in self._open
        # A browser always says by which name it asks; a prober that speaks HTTP/1.0 need not.
        asks_without_name = is_open and not host
        if self._hosts is not None and not asks_without_name and _without_port(host).lower() not in self._hosts:
            raise PermissionDeniedError("this is no name of the service", expected="a host that it allows")
        if not is_open:
            self._bearer.check(header(scope, b"authorization"))


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host
