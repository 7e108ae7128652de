"""Prometheus metrics: the service's counters, converted when Prometheus requests them.

Each application has its own registry, so several in one process do not collide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aioflow.serve.lag import LAG_BOUNDS, LoopLag
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.models import ServedModel
from aioflow.serve.repository import Repository, VersionState
from aioflow.serve.tally import BOUNDS

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST.encode()
_LABELS: Final = ("model", "version")
_ROWS: Final = tuple(float(2**power) for power in range(13))


class ServiceMetrics(Collector):
    """The metrics of one service."""

    def __init__(self, repository: Repository, admission: RequestAdmission, lag: LoopLag) -> None:
        self._repository = repository
        self._admission = admission
        self._lag = lag
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; the registry calls this."""
        models = self._repository.served()
        yield from _of_requests(models)
        yield from _of_steps(models)
        yield from _of_caches(models)
        yield from _of_streams(models)
        ready = GaugeMetricFamily("aioflow_model_ready", "1 if the version is ready.", labels=_LABELS)
        for entry in self._repository.index():
            ready.add_metric((entry.name, entry.version), float(entry.state is VersionState.READY))
        yield ready
        failed = GaugeMetricFamily(
            "aioflow_model_failed", "1 if the last load of the model failed.", labels=("model", "reason")
        )
        for name, reason in self._repository.failures().items():
            failed.add_metric((name, reason), 1.0)
        yield failed
        yield GaugeMetricFamily(
            "aioflow_request_bytes", "Bytes of requests being read or answered.", self._admission.bytes
        )
        if self._repository.memory is not None:
            yield GaugeMetricFamily(
                "aioflow_weight_bytes", "Memory of the weights of all models, in bytes.", self._repository.memory.taken
            )
        lag = HistogramMetricFamily("aioflow_loop_lag_seconds", "Lag of the event loop, measured ten times a second.")
        lag.add_metric((), _buckets(LAG_BOUNDS, self._lag.histogram), self._lag.seconds)
        yield lag


def _of_requests(models: Sequence[ServedModel]) -> Iterator[Metric]:
    counts = CounterMetricFamily("aioflow_requests", "Requests by outcome.", labels=(*_LABELS, "outcome"))
    times = HistogramMetricFamily(
        "aioflow_request_seconds", "Time from reading a request to sending its response.", labels=_LABELS
    )
    pending = GaugeMetricFamily("aioflow_pending_requests", "Requests in progress.", labels=_LABELS)
    for model in models:
        labels = (model.name, str(model.version))
        for outcome, count in model.tally.outcomes.items():
            counts.add_metric((*labels, outcome), count)
        times.add_metric(labels, _buckets(BOUNDS, model.tally.histogram), model.tally.seconds["ok"])
        pending.add_metric(labels, model.users)
    yield from (counts, times, pending)


def _of_steps(models: Sequence[ServedModel]) -> Iterator[Metric]:
    rows = HistogramMetricFamily("aioflow_batch_rows", "Rows per step.", labels=_LABELS)
    waited = SummaryMetricFamily("aioflow_queue_seconds", "Time that requests waited for a step.", labels=_LABELS)
    computed = SummaryMetricFamily("aioflow_compute_seconds", "Duration of steps.", labels=_LABELS)
    waiting = GaugeMetricFamily("aioflow_waiting_rows", "Rows waiting for a step.", labels=_LABELS)
    for model in models:
        labels = (model.name, str(model.version))
        found = [call.statistics() for call in model.all_calls]
        sizes = [(size, count) for each in found for size, count in each.sizes.items()]
        histogram = [sum(count for size, count in sizes if low < size <= high) for low, high in _ranges()]
        # Sizes are counted exactly, and grouped into powers of two only here: Prometheus needs fixed buckets.
        rows.add_metric(labels, _buckets(_ROWS, histogram), float(sum(each.rows for each in found)))
        waited.add_metric(labels, sum(each.answered for each in found), sum(each.queue_seconds for each in found))
        computed.add_metric(labels, sum(each.batches for each in found), sum(each.compute_seconds for each in found))
        waiting.add_metric(labels, sum(each.waiting_rows for each in found))
    yield from (rows, waited, computed, waiting)


def _of_caches(models: Sequence[ServedModel]) -> Iterator[Metric]:
    lookups = CounterMetricFamily(
        "aioflow_cache_lookups", "Requests looked up in the response cache.", labels=(*_LABELS, "result")
    )
    used = GaugeMetricFamily("aioflow_cache_bytes", "Bytes of cached responses.", labels=_LABELS)
    caches = [(model, model.cache) for model in models if model.cache is not None]
    for model, cache in caches:
        labels = (model.name, str(model.version))
        lookups.add_metric((*labels, "hit"), cache.hits)
        lookups.add_metric((*labels, "miss"), cache.misses)
        used.add_metric(labels, cache.bytes)
    if caches:
        yield from (lookups, used)


def _of_streams(models: Sequence[ServedModel]) -> Iterator[Metric]:
    streams = GaugeMetricFamily("aioflow_token_streams", "Streams of tokens by state.", labels=(*_LABELS, "state"))
    slots = GaugeMetricFamily("aioflow_token_slots", "Streams that can be generated at once.", labels=_LABELS)
    # Tokens per second are the rate of the counter.
    tokens = CounterMetricFamily("aioflow_tokens", "Generated tokens.", labels=_LABELS)
    generating = [(model, model.streams) for model in models if model.streams is not None]
    for model, each in generating:
        labels, found = (model.name, str(model.version)), each.statistics()
        for state, count in (("writing", found.writing), ("reading", found.reading), ("waiting", found.waiting)):
            streams.add_metric((*labels, state), count)
        slots.add_metric(labels, found.writing + found.reading + found.free)
        tokens.add_metric(labels, found.made)
    if generating:
        yield from (streams, slots, tokens)


def _ranges() -> Iterable[tuple[float, float]]:
    return zip((0.0, *_ROWS), (*_ROWS, float("inf")), strict=True)


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    # Prometheus' buckets are cumulative: each counts all values up to its bound.
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return [(name, float(count)) for name, count in zip(names, accumulate(counts), strict=True)]
