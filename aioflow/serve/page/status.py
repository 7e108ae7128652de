"""The data of the status page, as plain data: state and statistics of each model, recent and in total."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, NoReturn

from aioflow.release import RELEASE
from aioflow.serve.admission import Admission
from aioflow.serve.lag import LAG_BOUNDS, LoopLag
from aioflow.serve.metadata import tensors_of
from aioflow.serve.models import ServedModel
from aioflow.serve.page.history import History, quantile
from aioflow.serve.protocol.json_text import Document
from aioflow.serve.repository import Entry, Repository, State
from aioflow.serve.tally import BOUNDS, OUTCOMES

_LAG: Final = "lag"
_STATM: Final = "/proc/self/statm"


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system has no /proc/self/statm."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class Status:
    """The state of a service.

    Args:
        repository: The models.
        admission: The memory of requests.
        lag: The event loop's lag.
        clock: Returns the time in seconds; by default the event loop's clock.
    """

    def __init__(
        self, repository: Repository, admission: Admission, lag: LoopLag, clock: Callable[[], float] | None = None
    ) -> None:
        self._repository = repository
        self._admission = admission
        self._lag = lag
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._start: float | None = None
        self._history: History | None = None

    async def watch(self) -> NoReturn:
        """Sample the counters periodically until cancelled, so that the page can show recent values at any time."""
        while True:  # each turn sleeps
            history = self._noted()
            await asyncio.sleep(history.interval)

    def _noted(self) -> History:
        now = self._clock()
        if self._history is None:
            self._history = History(now)
            self._start = now
        counters: dict[Hashable, tuple[int, ...]] = {_LAG: tuple(self._lag.histogram)}
        for each in self._repository.served():
            counters[each.name, each.version] = _counts(each)
        self._history.note(now, counters)
        return self._history

    def document(self) -> Document:
        """Return all data of the page. Seconds, bytes and rows are plain numbers; unknown values are None."""
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
                for entry in self._repository.index()
            ],
        }

    def _line(self, entry: Entry, model: ServedModel | None, history: History) -> Document:
        is_ready = entry.state is State.READY and model is not None
        return {
            "name": entry.name,
            "version": entry.version,
            "state": entry.state.value,
            "reason": entry.reason,
            "served": self._served(model, history) if is_ready and model is not None else None,
        }

    def _served(self, model: ServedModel, history: History) -> Document:
        gained = history.gained((model.name, model.version), _counts(model))
        recent, latency = gained[: len(OUTCOMES)], gained[len(OUTCOMES) :]
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
            "outcomes": dict(model.tally.outcomes),
            "recent": {
                "outcomes": dict(zip(OUTCOMES, recent, strict=True)),
                "latency": list(latency),
                **_quantiles(BOUNDS, latency),
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


def _counts(model: ServedModel) -> tuple[int, ...]:
    return (*(model.tally.outcomes[outcome] for outcome in OUTCOMES), *model.tally.histogram)


def _quantiles(bounds: Sequence[float], counts: Sequence[int]) -> dict[str, float | None]:
    return {"p50_seconds": quantile(bounds, counts, 0.5), "p99_seconds": quantile(bounds, counts, 0.99)}


def _sizes(each: Sequence[Mapping[int, int]]) -> list[list[int]]:
    """Return pairs (rows of a step, number of such steps), sorted."""
    found: dict[int, int] = {}
    for sizes in each:
        for size, count in sizes.items():
            found[size] = found.get(size, 0) + count
    return [[size, count] for size, count in sorted(found.items())]
