"""The responses of the status page, without I/O: HTTP/1.0, GET and HEAD, with a small limit on the request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from aioflow.net.status.server import ServerStatus
from aioflow.net.status.text import as_metrics, as_text

MOST_BYTES: Final = 8 << 10  # per request, including headers
_LINE: Final = re.compile(r"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.[01]")
_TEXT: Final = "text/plain; charset=utf-8"


class _Page(NamedTuple):
    code: int
    text: str
    type: str = _TEXT


_REASONS: Final[Mapping[int, str]] = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def _health(status: ServerStatus) -> _Page:
    return _Page(200 if status.is_ready else 503, f"{status.state}\n")


_PAGES: Final[Mapping[str, Callable[[ServerStatus], _Page]]] = {
    "/": lambda status: _Page(200, as_text(status)),
    "/health": _health,
    "/metrics": lambda status: _Page(200, as_metrics(status), "text/plain; version=0.0.4; charset=utf-8"),
}


def answer(received: bytes | bytearray, status: Callable[[], ServerStatus]) -> bytes | None:
    """Return the whole response to the bytes received so far, or None if the request is incomplete.

    Args:
        received: The bytes received so far.
        status: Returns the status of the server; called only for complete requests.
    """
    head = received[:MOST_BYTES]
    if b"\n\r\n" not in head and b"\n\n" not in head:
        return _bytes(_Page(431, "the request is too long\n")) if len(received) >= MOST_BYTES else None
    line = _LINE.fullmatch(head.partition(b"\n")[0].decode("latin-1").removesuffix("\r"))
    if line is None:
        return _bytes(_Page(400, "not a request\n"))
    method, target = line[1], line[2].partition("?")[0]
    if method not in ("GET", "HEAD"):
        return _bytes(_Page(405, "GET and HEAD only\n"))
    page = _PAGES.get(target)
    found = _Page(404, f"there is {', '.join(_PAGES)}\n") if page is None else page(status())
    return _bytes(found, with_body=method == "GET")


def _bytes(page: _Page, with_body: bool = True) -> bytes:
    body = page.text.encode()
    head = [
        f"HTTP/1.0 {page.code} {_REASONS[page.code]}",
        f"Content-Type: {page.type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(["Allow: GET, HEAD"] if page.code == 405 else []),
    ]
    return ("\r\n".join(head) + "\r\n\r\n").encode() + (body if with_body else b"")
