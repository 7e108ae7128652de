"""What several processes have counted, as if it were one: the metrics of Prometheus, and the statistics of models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

__all__ = ["Counters", "statistics_of_all"]

_OF_THE_LEAST: Final = ("aioflow_model_ready",)  # is so where it is so in every process
_ENDS: Final = ("gauge", "unknown")  # what such a metric says of a process ends with it
_KEYS: Final = ("name", "version", "batch_size")  # of statistics: they say what is counted
_LATEST: Final = ("last_inference",)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Counters:
    """The metrics of all processes, those of processes that have ended included, so that no counter goes back."""

    def __init__(self) -> None:
        self._known: dict[int, list[Metric]] = {}  # what each has last said
        self._ended: list[Metric] = []

    def hear(self, number: int, text: str) -> None:
        """What a process says of itself."""
        self._known[number] = list(text_string_to_metric_families(text))

    def end(self, number: int) -> None:
        """A process has ended."""
        counted = [metric for metric in self._known.pop(number, []) if metric.type not in _ENDS]
        self._ended = _summed([self._ended, counted])

    def text(self) -> bytes:
        """The sum, as Prometheus reads it."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Constant(_summed([*self._known.values(), self._ended])))
        return generate_latest(registry)


class _Constant(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _summed(each: Iterable[Iterable[Metric]]) -> list[Metric]:
    found: dict[str, Metric] = {}
    sums: dict[str, Samples] = {}
    for metrics in each:
        for metric in metrics:
            found.setdefault(metric.name, metric)
            samples = sums.setdefault(metric.name, {})
            for sample in metric.samples:
                key = sample.name, tuple(sample.labels.items())
                if key in samples:
                    both = samples[key], sample.value
                    samples[key] = min(both) if metric.name in _OF_THE_LEAST else sum(both)
                else:
                    samples[key] = sample.value
    return [_metric(metric, sums[name]) for name, metric in found.items()]


def _metric(like: Metric, samples: Samples) -> Metric:
    made = Metric(like.name, like.documentation, like.type)
    for (name, labels), value in samples.items():
        made.add_sample(name, dict(labels), value)
    return made


def statistics_of_all(bodies: Iterable[bytes]) -> bytes:
    """The statistics of models, each a document in Triton's form, summed by model and version."""
    stats = [model for body in bodies for model in json.loads(body)["model_stats"]]
    return json.dumps({"model_stats": _merged_list(stats)}, separators=(",", ":")).encode()


def _merged_list(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item in items:
        key = tuple(item.get(name) for name in _KEYS)
        found[key] = _merged(found[key], item) if key in found else dict(item)
    return list(found.values())


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
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
