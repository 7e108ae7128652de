"""What a client asks of the whole service: the same of each process, and one answer out of theirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from aioflow.errors import OpError, UnavailableError
from aioflow.net.remote_step import outcomes
from aioflow.serve.metrics import CONTENT_TYPE
from aioflow.serve.processes.starting import Process
from aioflow.serve.processes.sums import Counters, statistics_of_all
from aioflow.serve.processes.together import CHANGE, METRICS

__all__ = ["Asking"]

_LOG: Final = logging.getLogger("aioflow.serve")
_SECONDS: Final = 2.0  # in which a process must say what it has counted; else it is what it has said last
_OK: Final = 200


class Asking:
    """Asks all processes.

    Args:
        change: The lock of whatever changes the service.
        serving: The processes that are ready.
        running: All that there are, those included that are to end and answer what they have begun.
        group: Whose tasks change models: to the end, whether or not whoever asked is still there.

    Attributes:
        unloaded: Models that were taken away.
    """

    def __init__(
        self,
        change: asyncio.Lock,
        serving: Callable[[], list[Process]],
        running: Collection[Process],
        group: asyncio.TaskGroup,
    ) -> None:
        self._change = change
        self._serving = serving
        self._running = running
        self._group = group
        self._counters = Counters()
        self.unloaded: set[str] = set()

    async def all(self, method: str, path: str, body: str) -> dict[str, Any]:
        """The answer of all of them to a request."""
        if CHANGE.fullmatch(path):
            changing = self._group.create_task(self._changed(method, path, body))
            return await asyncio.shield(changing)
        asked = await self._asked(method, path, body)
        if path == METRICS:
            for process, found in asked:
                self._counters.hear(process.pid, found["body"])
            text = self._counters.text().decode()
            return {"status": _OK, "kind": CONTENT_TYPE.decode(), "body": text}
        good = [found for _, found in asked if found["status"] == _OK]
        if not good:
            return asked[0][1] if asked else _nobody()
        merged = statistics_of_all(found["body"].encode("latin-1") for found in good)
        return {**good[0], "body": merged.decode("latin-1")}

    async def _asked(self, method: str, path: str, body: str) -> list[tuple[Process, dict[str, Any]]]:
        """The answers of those that answer."""
        processes = [process for process in self._running if process.index]
        found = await outcomes(
            process.line.ask("request", _SECONDS, method=method, path=path, body=body) for process in processes
        )
        pairs = zip(processes, found, strict=True)
        return [(process, answer) for process, answer in pairs if not isinstance(answer, BaseException)]

    async def _changed(self, method: str, path: str, body: str) -> dict[str, Any]:
        """One process after the other; the first that cannot do so ends it, and what it says is the answer."""
        async with self._change:
            answer: dict[str, Any] = _nobody()
            for process in self._serving():
                try:
                    answer = await process.line.ask("request", method=method, path=path, body=body)
                except OpError:  # it has ended; the one that follows it finds the models as they are now
                    continue
                if answer["status"] != _OK:
                    break
            found = CHANGE.fullmatch(path)
            if found is not None and answer["status"] == _OK:
                name, what = found.groups()
                (self.unloaded.add if what == "unload" else self.unloaded.discard)(name)
                _LOG.info("model %s has been %sed in all processes", name, what)
            return answer

    def ended(self, process: Process) -> None:
        """A process is no more: what it has counted stays."""
        if process.last_metrics:
            self._counters.hear(process.pid, process.last_metrics)
        self._counters.end(process.pid)


def _nobody() -> dict[str, Any]:
    error = UnavailableError("no process is ready")
    return {"status": 503, "kind": "application/json", "body": f'{{"error":"{error.message}"}}'}
