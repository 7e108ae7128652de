"""The status page of a server: HTTP at a port of the loopback, for probes and metrics collectors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, cast

from aioflow.net.status import RunningStep, ServerStatus

# ── responses without I/O: status as text and as Prometheus metrics ───────────────────────────────────────────────────

_MOST_LETTERS: Final = 200  # of a name chosen by a client


class _Metric(NamedTuple):
    name: str
    kind: str
    help: str
    value: Callable[[ServerStatus], float]


_METRICS: Final = (
    _Metric("aioflow_ready", "gauge", "1 if the server accepts steps.", lambda s: int(s.is_ready)),
    _Metric("aioflow_uptime_seconds", "gauge", "Seconds since the server was created.", lambda s: round(s.seconds, 3)),
    _Metric("aioflow_devices", "gauge", "Devices of the task.", lambda s: len(s.devices)),
    _Metric("aioflow_connections", "gauge", "Connections from clients and tasks.", lambda s: s.activity.connections),
    _Metric("aioflow_parts", "gauge", "Registered parts of plans.", lambda s: s.activity.parts),
    _Metric("aioflow_steps_running", "gauge", "Running steps.", lambda s: s.activity.running),
    _Metric("aioflow_steps_begun_total", "counter", "Steps started.", lambda s: s.activity.begun),
    _Metric("aioflow_steps_failed_total", "counter", "Steps that failed or were stopped.", lambda s: s.activity.failed),
    _Metric("aioflow_steps_refused_total", "counter", "Steps refused during shutdown.", lambda s: s.activity.refused),
    _Metric(
        "aioflow_early_bytes",
        "gauge",
        "Bytes of received values that no node has read yet.",
        lambda s: s.activity.early_bytes,
    ),
    _Metric("aioflow_peak_memory_bytes", "gauge", "Peak memory of the process, in bytes.", lambda s: s.activity.memory),
)


def as_metrics(status: ServerStatus) -> str:
    """Return the metrics, each with the label `task`."""
    # The escapes that Prometheus' format requires in the value of a label.
    task = status.task.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines: list[str] = []
    for metric in _METRICS:
        lines += [
            f"# HELP {metric.name} {metric.help}",
            f"# TYPE {metric.name} {metric.kind}",
            f'{metric.name}{{task="{task}"}} {metric.value(status)}',
        ]
    return "\n".join(lines) + "\n"


def as_text(status: ServerStatus) -> str:
    """Return the status as lines of text."""
    activity = status.activity
    steps = [line for step in activity.steps for line in _lines(step)]
    more = activity.running - len(activity.steps)
    lines = [
        f"task         {status.task}",
        f"target       {status.target}",
        f"state        {status.state}, up {status.seconds:.1f} s",
        f"devices      {', '.join(status.devices)}",
        f"connections  {activity.connections}",
        f"parts        {activity.parts}",
        f"steps        {activity.running} running, {activity.begun} begun, {activity.failed} failed, "
        f"{activity.refused} refused",
        *steps,
        *([f"  and {more} more"] if more > 0 else []),
        *(queue[:_MOST_LETTERS] for queue in activity.queues),
    ]
    return "\n".join(map(printable, lines)) + "\n"


def _lines(step: RunningStep) -> list[str]:
    name = f"step {step.id}" if step.id else "a step on this task only"
    return [
        f"  {name} has been running for {step.seconds:.3f} s",
        *(f"    waits for {waiting[:_MOST_LETTERS]}" for waiting in step.waiting),
    ]


def printable(line: str) -> str:
    """Replace the characters that a terminal would interpret; clients choose the names of nodes."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


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
    # Latin-1 decodes any bytes; the pattern then admits only ASCII.
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


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A connection serves one request. Its time and size are limited to a few seconds and KiB, and so is the number of
# connections.


_HOST: Final = "127.0.0.1"
_SECONDS: Final = 5.0  # per connection
_MOST: Final = 32  # connections at a time


@asynccontextmanager
async def serve_status(
    status: Callable[[], ServerStatus], port: int = 0, seconds: float = _SECONDS, most: int = _MOST
) -> AsyncIterator[str]:
    """Serve `/`, `/health` and `/metrics` during the block, which receives the URL.

    Args:
        status: Returns the status of the server.
        port: Port on the loopback; 0 for a free one.
        seconds: Maximum duration of a connection.
        most: Maximum number of connections; further ones are closed at once.

    Raises:
        OSError: the port is in use.
    """
    loop = asyncio.get_running_loop()
    connections: set[asyncio.Transport] = set()
    listener = await loop.create_server(
        lambda: _Connection(status, connections, seconds, most), _HOST, port, start_serving=False
    )
    try:
        # Not in `create_server`, which leaves the socket open if it is cancelled.
        await listener.start_serving()
        yield f"http://{_HOST}:{listener.sockets[0].getsockname()[1]}/"
    finally:
        listener.close()
        for transport in list(connections):
            transport.abort()
        await listener.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(
        self, status: Callable[[], ServerStatus], connections: set[asyncio.Transport], seconds: float, most: int
    ) -> None:
        self._status = status
        self._connections = connections
        self._seconds = seconds
        self._most = most
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._connections) >= self._most:
            self._transport.abort()
            return
        self._connections.add(self._transport)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._answered or self._transport is None:
            return  # one request per connection
        self._received += data
        found = answer(self._received, self._status)
        if found is not None:
            self._answered = True
            self._received.clear()
            self._transport.write(found)
            # Leave it to the peer to close: closing with unread input would reset the connection and lose the answer.
            self._transport.write_eof()

    def eof_received(self) -> None:
        """Let the transport close once all has been written."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._connections.discard(self._transport)
