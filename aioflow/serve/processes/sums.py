"""Aggregation of the counters of several processes: Prometheus metrics and statistics of models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from aioflow.serve.protocol.json_text import Document

_LEAST: Final = ("aioflow_model_ready",)  # minimum instead of sum: true for the service only if true in every process
_STATES: Final = ("gauge", "unknown")  # metrics of these types are dropped when their process ends
_KEYS: Final = ("name", "version", "batch_size")  # of statistics: identify the counted item
_LATEST: Final = ("last_inference",)


class Counters(Collector):
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


def _merged_list(items: Iterable[Document]) -> list[Document]:
    found: dict[tuple[object, ...], Document] = {}
    for item in items:
        key = tuple(item.get(name) for name in _KEYS)
        found[key] = _merged(found[key], item) if key in found else dict(item)
    return list(found.values())


def _merged(one: Document, other: Mapping[str, Any]) -> Document:
    found = dict(one)
    for name, value in other.items():
        if name not in found or name in _KEYS:
            found.setdefault(name, value)
        elif isinstance(value, Mapping):
            found[name] = _merged(found[name], value)
        elif isinstance(value, list):
            found[name] = _merged_list([*found[name], *value])
        else:
            found[name] = max(found[name], value) if name in _LATEST else found[name] + value
    return found
