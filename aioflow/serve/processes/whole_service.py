"""Requests that concern the whole service: forwarded to the supervisor, which queries every process.

So each endpoint is written once, for one process. The readiness of the service is read from the board.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aioflow.errors import OpError
from aioflow.net.remote_step import outcomes
from aioflow.serve.endpoints import Endpoint
from aioflow.serve.guard import CHANGE, RequestGuard
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.metrics import CONTENT_TYPE
from aioflow.serve.processes.board import Board
from aioflow.serve.processes.channel import ProcessChannel
from aioflow.serve.processes.child import Child
from aioflow.serve.protocol import Limits
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.requests import answer, answer_json, path_of, read_body

# ── aggregation of the counters of several processes: Prometheus metrics and statistics of models ─────────────────────

_LEAST: Final = ("aioflow_model_ready",)  # minimum instead of sum: true for the service only if true in every process
_STATES: Final = ("gauge", "unknown")  # metrics of these types are dropped when their process ends
_KEYS: Final = ("name", "version", "batch_size")  # of statistics: identify the counted item
_LATEST: Final = ("last_inference",)


class SummedMetrics(Collector):
    """The metrics of all processes. Counters of ended processes are kept, so that no sum decreases."""

    def __init__(self) -> None:
        self._running: dict[int, list[Metric]] = {}  # the last report of each process
        self._ended: list[Metric] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def update(self, pid: int, text: str) -> None:
        """Store the report of a process."""
        self._running[pid] = list(text_string_to_metric_families(text))

    def end(self, pid: int) -> None:
        """Move the counters of an ended process to the totals."""
        # A gauge describes a live process; counters and histograms must never decrease.
        counted = [metric for metric in self._running.pop(pid, []) if metric.type not in _STATES]
        self._ended = _sums([*self._ended, *counted])

    def text(self) -> bytes:
        """Return the sums in Prometheus' format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Return the sums, for the registry."""
        return _sums([*self._ended, *(metric for metrics in self._running.values() for metric in metrics)])


def _sums(metrics: Iterable[Metric]) -> list[Metric]:
    sums: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for metric in metrics:
        sums.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        found = values.setdefault(metric.name, {})
        for sample in metric.samples:
            # A histogram's buckets have the bound as a label, so bucket by bucket is summed.
            key = sample.name, tuple(sample.labels.items())
            both = (found[key], sample.value) if key in found else (sample.value,)
            found[key] = min(both) if metric.name in _LEAST else sum(both)
    for name, found in values.items():
        for (sample_name, labels), value in found.items():
            sums[name].add_sample(sample_name, dict(labels), value)
    return list(sums.values())


def sum_of_statistics(documents: Iterable[str]) -> str:
    """Sum statistics of models, each a document in Triton's format, by model and version."""
    models = [model for document in documents for model in json.loads(document)["model_stats"]]
    return json.dumps({"model_stats": _merged_list(models)}, separators=(",", ":"))


def _merged_list(items: Iterable[JsonObject]) -> list[JsonObject]:
    found: dict[tuple[object, ...], JsonObject] = {}
    for item in items:
        key = tuple(item.get(name) for name in _KEYS)
        found[key] = _merged(found[key], item) if key in found else dict(item)
    return list(found.values())


def _merged(one: JsonObject, other: Mapping[str, Any]) -> JsonObject:
    found = dict(one)
    for name, value in other.items():
        if name not in found or name in _KEYS:
            # Identifying members are equal in both, since items are grouped by them.
            found.setdefault(name, value)
        elif isinstance(value, Mapping):
            found[name] = _merged(found[name], value)
        elif isinstance(value, list):
            found[name] = _merged_list([*found[name], *value])
        else:
            found[name] = max(found[name], value) if name in _LATEST else found[name] + value
    return found


# ── the application ───────────────────────────────────────────────────────────────────────────────────────────────────


_LOG: Final = logging.getLogger("aioflow.serve")
METRICS: Final = "/metrics"
_READY: Final = "/v2/health/ready"
_STATISTICS: Final = re.compile(r"/v2/models(/[^/]+(/versions/[^/]+)?)?/stats")
# A slower process counts in /metrics with its last report, and is left out of model statistics.
_TIMEOUT: Final = 2.0  # seconds
_OK: Final = 200
_NONE_READY: Final = {"status": 503, "kind": "application/json", "body": '{"error":"no process is ready"}'}


class WholeService:
    """The ASGI application of one of several serving processes.

    Args:
        app: The application of this process, without a guard of its own.
        guard: The access check of requests.
        limits: As in `Server`.
        channel: The channel to the supervisor.
        board: The board with the ready processes.
        quorum: Number of processes that must be ready.
    """

    def __init__(
        self, app: ASGIApp, guard: RequestGuard, limits: Limits, channel: ProcessChannel, board: Board, quorum: int
    ) -> None:
        self._app = app
        self._guard = guard
        self._limits = limits
        self._channel = channel
        self._board = board
        self._quorum = quorum
        # Not the one of inference, so that a load or unload is accepted while many requests wait.
        self._admission = RequestAdmission(limits.json_bytes)
        self._endpoint = Endpoint(self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_http = scope["type"] == "http"
        if is_http and not await self._guard.admits(scope, send):
            return
        concerns_all = is_http and _concerns_all(scope["method"], path_of(scope))
        await (self._endpoint if concerns_all else self._app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], path_of(scope)
        if path == _READY:
            ready = self._board.ready()
            is_ready = ready >= self._quorum
            await answer_json(send, {"ready": is_ready, "processes": ready}, 200 if is_ready else 503)
            return
        with self._admission.holding() as held:
            body = await read_body(scope, receive, self._limits, held)
        found = await self._channel.call("request_all", method=method, path=path, body=bytes(body).decode("latin-1"))
        await answer(send, found["status"], found["body"].encode("latin-1"), found["kind"].encode("latin-1"))


def _concerns_all(method: str, path: str) -> bool:
    if method in ("GET", "HEAD"):
        return path in (_READY, METRICS) or _STATISTICS.fullmatch(path) is not None
    return method == "POST" and CHANGE.fullmatch(path) is not None


async def request_inside(app: ASGIApp, method: str, path: str, body: str = "") -> JsonObject:
    """Send a request to an application without a connection.

    Return the `status` of the response, its `body`, and its media type (`kind`). Bodies are bytes as latin-1 text.
    """
    # latin-1 maps each byte to one character, so that any body passes through the channel, whose messages are JSON.
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
    found: JsonObject = {"status": 500, "kind": "", "body": ""}

    async def receive() -> Message:
        return {"type": "http.request", "body": body.encode("latin-1"), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found["status"] = message["status"]
            found["kind"] = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
        else:
            found["body"] += message.get("body", b"").decode("latin-1")

    await app(scope, receive, send)
    return found


class ServiceRequests:
    """The supervisor's handler of requests that concern the whole service.

    Args:
        change: The lock that every change of the service holds.
        ready: Returns the processes that are ready.
        running: All processes, including those that answer their last requests.
        group: The group of the tasks that change models; they finish even if the client disconnects.

    Attributes:
        unloaded: Models that clients have unloaded.
    """

    def __init__(
        self,
        change: asyncio.Lock,
        ready: Callable[[], list[Child]],
        running: Collection[Child],
        group: asyncio.TaskGroup,
    ) -> None:
        self._change = change
        self._ready = ready
        self._running = running
        self._group = group
        self._counters = SummedMetrics()
        self.unloaded: set[str] = set()

    async def answer(self, method: str, path: str, body: str) -> JsonObject:
        """Return the response of the service to a request, in the form that `request_inside` returns."""
        if CHANGE.fullmatch(path):
            # The task goes on if the channel is closed: half of the processes must not be left unchanged.
            return await asyncio.shield(self._group.create_task(self._change_models(method, path, body)))
        # A process that has never been ready has no index, and could not answer.
        asked = [child for child in self._running if child.index]
        found = await outcomes(
            child.channel.call("request", _TIMEOUT, method=method, path=path, body=body) for child in asked
        )
        responses = [(child, each) for child, each in zip(asked, found, strict=True) if isinstance(each, dict)]
        if path == METRICS:
            for child, response in responses:
                if child in self._running:  # otherwise its counters are already among those of ended processes
                    self._counters.update(child.pid, response["body"])
            return {"status": _OK, "kind": CONTENT_TYPE.decode(), "body": self._counters.text().decode()}
        good = [response for _, response in responses if response["status"] == _OK]
        if not good:
            return responses[0][1] if responses else _NONE_READY
        return {**good[0], "body": sum_of_statistics(response["body"] for response in good)}

    async def _change_models(self, method: str, path: str, body: str) -> JsonObject:
        """Change one process after the other. Stop at the first failure, and return its response."""
        async with self._change:
            answer: JsonObject = _NONE_READY
            # In turn: if a model fails to load in one process, the rest keep theirs.
            for child in self._ready():
                try:
                    answer = await child.channel.call("request", method=method, path=path, body=body)
                except OpError:
                    # The process has ended. Its successor reads the current state of the models.
                    continue
                if answer["status"] != _OK:
                    break
            change = CHANGE.fullmatch(path)
            if change is not None and answer["status"] == _OK:
                name, what = change.groups()
                (self.unloaded.add if what == "unload" else self.unloaded.discard)(name)
                _LOG.info("model %s has been %sed in all processes", name, what)
            return answer

    def remove(self, child: Child) -> None:
        """Add the counters of an ended process to the totals."""
        if child.last_metrics:
            self._counters.update(child.pid, child.last_metrics)
        self._counters.end(child.pid)
