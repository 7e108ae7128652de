"""The status page as ASGI applications: its files, pictures of graphs, and data about the models."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, NoReturn, TypeAlias

from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from aioflow.concurrency.threads import in_thread
from aioflow.errors import NotFoundError
from aioflow.graph.labelled import values_of
from aioflow.interop.model import Signature
from aioflow.observe.picture.outline import outline
from aioflow.observe.picture.svg import as_svg
from aioflow.release import RELEASE
from aioflow.serve.lag import LAG_BOUNDS, LoopLag
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.metadata import tensors_of
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.repository import IndexEntry, Repository, VersionState
from aioflow.serve.requests import answer, answer_json
from aioflow.serve.tally import BOUNDS, OUTCOMES

# ── the increase of counters over the last minutes, computed from periodic samples ────────────────────────────────────

CounterValues: TypeAlias = Mapping[Hashable, tuple[int, ...]]  # each counter only grows, or restarts at zero
_NOTHING: Final[CounterValues] = {}


class CounterHistory:
    """Samples of counters over a time window.

    Args:
        start: The time when all counters were zero. All times are on the same clock.
        seconds: Length of the window.
        interval: Seconds between two samples.
    """

    def __init__(self, start: float, seconds: float = 300.0, interval: float = 10.0) -> None:
        self._window = seconds
        self.interval = interval
        self._kept: deque[tuple[float, CounterValues]] = deque([(start, _NOTHING)])

    def note(self, now: float, counters: CounterValues) -> None:
        """Store a sample of the counters if the last one is at least `interval` old."""
        if now - self._kept[-1][0] < self.interval:
            return
        # A copy, since the caller may go on changing its mapping.
        self._kept.append((now, dict(counters)))
        # One sample from before the window stays, so that increases cover all of the window.
        while len(self._kept) > 1 and self._kept[1][0] <= now - self._window:
            self._kept.popleft()

    def seconds(self, now: float) -> float:
        """Return the age of the oldest sample, in seconds."""
        return now - self._kept[0][0]

    def gained(self, key: Hashable, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the increase of `counts` since the oldest sample."""
        return _increase(self._kept[0][1].get(key), counts)

    def intervals(self, key: Hashable, counts: tuple[int, ...], now: float) -> Iterator[CounterInterval]:
        """Yield the increase between each two samples, and, if it is not too short to tell a rate, since the last."""
        samples = [(time, counters.get(key)) for time, counters in self._kept]
        if now - samples[-1][0] >= self.interval / 2:
            samples.append((now, counts))
        for (begin, before), (end, after) in pairwise(samples):
            zeros = (0,) * len(counts)
            yield CounterInterval(now - end, end - begin, _increase(before, after) if after else zeros)


class CounterInterval(NamedTuple):
    """The increase of counters in an interval: the age of its end and its length, in seconds."""

    age: float
    seconds: float
    gained: tuple[int, ...]


def _increase(before: tuple[int, ...] | None, after: tuple[int, ...]) -> tuple[int, ...]:
    if before is None or any(new < old for new, old in zip(after, before, strict=True)):
        return after  # they restarted since
    return tuple(new - old for new, old in zip(after, before, strict=True))


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """Estimate a quantile of a histogram, like `histogram_quantile` of Prometheus.

    Values are assumed to be spread evenly within a bucket. The result is the last bound if the quantile lies beyond it,
    and None if the histogram is empty.

    Args:
        bounds: The upper bounds of all buckets but the last, which has none.
        counts: The number of values in each bucket.
        q: More than 0, at most 1.
    """
    total = list(accumulate(counts))
    if not total or not total[-1]:
        return None
    rank = q * total[-1]
    # The first bucket whose cumulative count reaches the rank.
    at = bisect_left(total, rank)
    if at >= len(bounds):
        return bounds[-1]
    below, low = (total[at - 1], bounds[at - 1]) if at else (0, 0.0)
    # Linear interpolation within the bucket: low + (high − low) · (rank − below) / count.
    return low + (bounds[at] - low) * (rank - below) / counts[at] if counts[at] else bounds[at]


# ── the data ──────────────────────────────────────────────────────────────────────────────────────────────────────────


_LAG: Final = "lag"
_STATM: Final = "/proc/self/statm"


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system has no /proc/self/statm."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class ServiceStatus:
    """The state of a service.

    Args:
        repository: The models.
        admission: The memory of requests.
        lag: The event loop's lag.
        clock: Returns the time in seconds; by default the event loop's clock.
    """

    def __init__(
        self,
        repository: Repository,
        admission: RequestAdmission,
        lag: LoopLag,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._repository = repository
        self._admission = admission
        self._lag = lag
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._start: float | None = None
        self._history: CounterHistory | None = None

    async def watch(self) -> NoReturn:
        """Sample the counters periodically until cancelled, so that the page can show recent values at any time."""
        while True:  # each turn sleeps
            history = self._noted()
            await asyncio.sleep(history.interval)

    def _noted(self) -> CounterHistory:
        now = self._clock()
        if self._history is None:
            self._history = CounterHistory(now)
            self._start = now
        counters: dict[Hashable, tuple[int, ...]] = {_LAG: tuple(self._lag.histogram)}
        for each in self._repository.served():
            # Keys are tuples here and a string for the lag, so a model may be called "lag".
            counters[each.name, each.version] = _counts(each)
        self._history.note(now, counters)
        return self._history

    def document(self, name: str = "", version: str = "") -> JsonObject:
        """Return all data of the page. Seconds, bytes and rows are plain numbers; unknown values are None.

        Args:
            name: Name of the model whose history is included.
            version: Its version.
        """
        history, now = self._noted(), self._clock()
        served = {(each.name, str(each.version)): each for each in self._repository.served()}
        lag = _quantiles(LAG_BOUNDS, history.gained(_LAG, tuple(self._lag.histogram)))
        # The worst lag is exact, while quantiles are interpolated within a bucket and could exceed it.
        worst = self._lag.worst
        memory = self._repository.memory
        return {
            "server": {
                "version": RELEASE,
                "process": os.getpid(),
                "ready": self._repository.is_ready,
                "uptime_seconds": now - (now if self._start is None else self._start),
                "window_seconds": history.seconds(now),
            },
            "loop_lag": {
                **{name: None if value is None else min(value, worst) for name, value in lag.items()},
                "worst_seconds": worst,
            },
            "memory": {
                "resident_bytes": resident_bytes(),
                "request_bytes": self._admission.bytes,
                "weight_bytes": None if memory is None else memory.taken,
                "weight_limit": None if memory is None else memory.limit,
            },
            "latency_bounds": list(BOUNDS),
            "models": [
                self._line(entry, served.get((entry.name, entry.version)), history)
                for entry in _newest_first(self._repository.index())
            ],
            "history": self._series(history, now, served.get((name, version))),
        }

    def _lag_p99(self, counts: Sequence[int]) -> float | None:
        value = quantile(LAG_BOUNDS, counts, 0.99)
        # As in `document`.
        return None if value is None else min(value, self._lag.worst)

    def _series(self, history: CounterHistory, now: float, model: ServedModel | None) -> JsonObject:
        """Return a value for each interval, the oldest first; without a model, those of requests are empty."""
        lags = list(history.intervals(_LAG, tuple(self._lag.histogram), now))
        found = [] if model is None else list(history.intervals((model.name, model.version), _counts(model), now))
        parts = [_Counts.of(each.gained) for each in found]
        quantiles = [_quantiles(BOUNDS, each.latency) for each in parts]
        rates = [each.outcomes["ok"] / interval.seconds for each, interval in zip(parts, found, strict=True)]
        return {
            "age_seconds": [each.age for each in lags],
            "loop_lag_p99_seconds": [self._lag_p99(each.gained) for each in lags],
            "requests_per_second": rates,
            "p50_seconds": [each["p50_seconds"] for each in quantiles],
            "p99_seconds": [each["p99_seconds"] for each in quantiles],
            "rows_per_batch": [each.rows / each.batches if each.batches else None for each in parts],
        }

    def _line(self, entry: IndexEntry, model: ServedModel | None, history: CounterHistory) -> JsonObject:
        is_ready = entry.state is VersionState.READY and model is not None
        return {
            "name": entry.name,
            "version": entry.version,
            "state": entry.state.value,
            "reason": entry.reason,
            "served": self._served(model, history) if is_ready and model is not None else None,
        }

    def _served(self, model: ServedModel, history: CounterHistory) -> JsonObject:
        recent = _Counts.of(history.gained((model.name, model.version), _counts(model)))
        found = [call.statistics() for call in model.all_calls]
        return {
            "signatures": [
                {
                    "name": name,
                    "is_default": name == model.signature_name,
                    "is_batched": call.is_batched,
                    "inputs": tensors_of(model.model.signatures[name].inputs),
                    "outputs": tensors_of(model.model.signatures[name].outputs),
                }
                for name, call in model.calls.items()
            ],
            "pending_requests": model.users,
            "waiting_requests": sum(each.waiting_requests for each in found),
            "waiting_rows": sum(each.waiting_rows for each in found),
            "running_steps": sum(each.running_batches for each in found),
            "streams": None if model.streams is None else asdict(model.streams.statistics()),
            "outcomes": dict(model.tally.outcomes),
            "recent": {
                "outcomes": recent.outcomes,
                "latency": list(recent.latency),
                **_quantiles(BOUNDS, recent.latency),
            },
            "steps": {
                "count": sum(each.batches for each in found),
                "rows": sum(each.rows for each in found),
                "compute_seconds": sum(each.compute_seconds for each in found),
                "queue_seconds": sum(each.queue_seconds for each in found),
                "answered": sum(each.answered for each in found),
                "engine": model.session.engine,
                "sizes": _sizes([each.sizes for each in found]),
            },
        }


class _Counts(NamedTuple):
    """Counters of a model: requests by outcome and by duration, and batches with their rows."""

    outcomes: dict[str, int]
    latency: tuple[int, ...]
    batches: int
    rows: int

    @classmethod
    def of(cls, counts: tuple[int, ...]) -> _Counts:
        """Return the parts of `_counts`, or of increases of them."""
        (*requests, batches, rows), outcomes = counts, len(OUTCOMES)
        return cls(dict(zip(OUTCOMES, requests, strict=False)), tuple(requests[outcomes:]), batches, rows)


def _counts(model: ServedModel) -> tuple[int, ...]:
    calls = [call.statistics() for call in model.all_calls]
    requests = (*(model.tally.outcomes[outcome] for outcome in OUTCOMES), *model.tally.histogram)
    return (*requests, sum(each.batches for each in calls), sum(each.rows for each in calls))


def _newest_first(entries: Sequence[IndexEntry]) -> list[IndexEntry]:
    return sorted(entries, key=lambda entry: (entry.name, -int(entry.version or 0)))


def _quantiles(bounds: Sequence[float], counts: Sequence[int]) -> dict[str, float | None]:
    return {"p50_seconds": quantile(bounds, counts, 0.5), "p99_seconds": quantile(bounds, counts, 0.99)}


def _sizes(each: Sequence[Mapping[int, int]]) -> list[list[int]]:
    """Return pairs (rows of a step, number of such steps), sorted."""
    found: dict[int, int] = {}
    for sizes in each:
        for size, count in sizes.items():
            found[size] = found.get(size, 0) + count
    return [[size, count] for size, count in sorted(found.items())]


# ── ASGI applications ─────────────────────────────────────────────────────────────────────────────────────────────────


# The picture of a served model's graph, with its nodes on the devices where the plan of its step places them


async def draw(model: ServedModel, signature: str | None, opened: Collection[str]) -> str:
    """Return the SVG of a signature's step. Compiles and draws in a thread.

    Args:
        model: The model.
        signature: The signature; None for the default.
        opened: The scopes whose contents are drawn.

    Raises:
        NotFoundError: there is no such signature.
    """
    name = model.signature_name if signature is None else signature
    if name not in model.calls:
        raise NotFoundError("no such signature", expected=f"one of {sorted(model.calls)}", actual=repr(name)[:60])
    title = f"{model.name}, version {model.version}" + ("" if name == model.signature_name else f": {name}")
    return await in_thread(_drawn, model, model.model.signatures[name], title, opened, effects=False)


def _drawn(model: ServedModel, signature: Signature, title: str, opened: Collection[str]) -> str:
    inputs, named = list(signature.inputs.values()), {values_of(t): key for key, t in signature.outputs.items()}
    outputs = list(named)
    plan = model.session.plan(outputs, inputs)
    devices = {node.name: device for device, node in plan.placed_nodes()}
    return as_svg(
        outline(model.model.graph, inputs, outputs, None, devices, opened, named.items()), title, embedded=True
    )


_HTML: Final = "text/html; charset=utf-8"
_CSS: Final = "text/css; charset=utf-8"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_SVG: Final = b"image/svg+xml; charset=utf-8"
_TITLES: Final = {"index.html": "The status page", "docs.html": "The page of the HTTP API"}
_FILES: Final = {
    "index.html": ("/", _HTML),
    "docs.html": ("/docs", _HTML),
    "style.css": ("/page/style.css", _CSS),
    **{
        name: (f"/page/{name}", _SCRIPT)
        for name in (
            "page.js",
            "asking.js",
            "charts.js",
            "docs.js",
            "drawing.js",
            "entry.js",
            "formats.js",
            "models.js",
            "picture.js",
            "trying.js",
        )
    },
}
# The browser runs only the scripts of this service, even if data of a model contains markup.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_FILE_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
_NOW: Final = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),  # for a picture that is opened on its own
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page."""

    name: str
    path: str
    kind: str
    body: bytes

    @property
    def summary(self) -> str:
        """The description of the file in the OpenAPI document."""
        return _TITLES.get(self.name, f"A file of the pages: {self.name}")

    async def answer(self, scope: Scope, receive: Receive, to: Send) -> None:
        """Send the file."""
        await answer(to, 200, self.body, self.kind.encode(), _FILE_HEADERS)


class Page:
    """The status page of a service."""

    def __init__(self, repository: Repository, status: ServiceStatus) -> None:
        self._repository = repository
        self._status = status
        self._drawing = asyncio.Lock()  # one at a time: drawing takes memory for the whole model
        folder = files(__package__)
        self.files: Sequence[File] = [
            File(name, path, kind, folder.joinpath(name).read_bytes()) for name, (path, kind) in _FILES.items()
        ]

    async def status(self, scope: Scope, receive: Receive, to: Send) -> None:
        """Send the data of the page, with the history of the version that the query names."""
        query = QueryParams(scope["query_string"])
        await answer_json(to, self._status.document(query.get("model", ""), query.get("version", "")))

    async def graph(self, scope: Scope, receive: Receive, to: Send) -> None:
        """Send the placed graph of a version, as SVG."""
        path, query = scope["path_params"], QueryParams(scope["query_string"])
        # The version stays open while it is drawn: its session compiles the plan.
        with self._repository.used(path["model"], path["version"]) as model:
            async with self._drawing:
                picture = await draw(model, query.get("signature"), frozenset(query.getlist("open")))
        await answer(to, 200, picture.encode(), _SVG, _NOW)
