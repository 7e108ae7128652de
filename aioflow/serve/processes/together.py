"""What concerns the whole service, asked of one of its processes: the supervisor asks each of them the same.

So there is one set of answers, and this is a layer around the application which gives them. Whether the service is
ready is on the board, and nobody is asked.
"""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from aioflow.serve.admission import Admission
from aioflow.serve.endpoints import Endpoint
from aioflow.serve.guard import Guard
from aioflow.serve.processes.board import Board
from aioflow.serve.processes.line import Line
from aioflow.serve.protocol import Limits
from aioflow.serve.requests import answer, answer_json, path_of, read_body

__all__ = ["CHANGE", "METRICS", "Together", "asked_inside"]

METRICS: Final = "/metrics"
_READY: Final = "/v2/health/ready"
CHANGE: Final = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
_STATISTICS: Final = re.compile(r"/v2/models(/[^/]+(/versions/[^/]+)?)?/stats")


class Together:
    """The application of one process among several.

    Args:
        app: What it answers by itself, without a guard of its own.
        guard: Who may ask.
        line: To the supervisor.
        quorum: How many processes must be ready.
    """

    def __init__(self, app: ASGIApp, guard: Guard, limits: Limits, line: Line, board: Board, quorum: int) -> None:
        self._app = app
        self._guard = guard
        self._limits = limits
        self._line = line
        self._board = board
        self._quorum = quorum
        self._admission = Admission(limits.json_bytes)
        self._of_all = Endpoint(self._ask_all)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI."""
        if scope["type"] == "http":
            if not await self._guard.admits(scope, send):
                return
            if _concerns_all(scope["method"], path_of(scope)):
                await self._of_all(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _ask_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope)
        if path == _READY:
            ready = self._board.ready()
            is_ready = ready >= self._quorum
            await answer_json(send, {"ready": is_ready, "processes": ready}, 200 if is_ready else 503)
            return
        with self._admission.holding() as held:
            body = await read_body(scope, receive, self._limits, held)
        found = await self._line.ask(
            "all",
            method=scope["method"],
            path=path,
            body=body.decode("latin-1"),
        )
        await answer(send, found["status"], found["body"].encode("latin-1"), found["kind"].encode("latin-1"))


def _concerns_all(method: str, path: str) -> bool:
    if method == "GET":
        return path in (_READY, METRICS) or _STATISTICS.fullmatch(path) is not None
    return method == "POST" and CHANGE.fullmatch(path) is not None


async def asked_inside(app: ASGIApp, method: str, path: str, body: str = "") -> dict[str, Any]:
    """What an application answers to a request that comes by no connection: its status, body and type."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
    }
    found: dict[str, Any] = {"status": 500, "kind": "", "body": ""}
    pieces: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body.encode("latin-1"), "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found["status"] = message["status"]
            found["kind"] = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
        else:
            pieces.append(message.get("body", b""))

    await app(scope, receive, send)
    return {**found, "body": b"".join(pieces).decode("latin-1")}
