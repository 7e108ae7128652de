"""`ProfilerHook`: timelines of the nodes of a run, written to files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from aioflow.concurrency.threads import in_thread
from aioflow.config import RunOptions, TraceLevel
from aioflow.errors import UnimplementedError
from aioflow.formats.files import file_errors
from aioflow.formats.stores import is_url, joined, local_path, store_of
from aioflow.graph.default_graph import default_graph
from aioflow.observe.file_writer import FileWriter
from aioflow.observe.trace_events import chrome_trace
from aioflow.runtime.stats import RunMetadata
from aioflow.session.session import Session
from aioflow.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from aioflow.train.monitored.step_of_graph import required_global_step
from aioflow.train.monitored.timers import SecondOrStepTimer

_LOGGER: Final = logging.getLogger("aioflow.train")


class ProfilerHook(SessionRunHook):
    """A hook that traces a run at intervals and writes "timeline-STEP.json" for chrome://tracing or Perfetto.

    The trace also goes into an event file as "step_STEP", which TensorBoard shows with the graph.

    Args:
        save_steps, save_secs: Interval in steps or in seconds; exactly one must be given. The first run is not traced.
        output_dir: Folder of the files, or the URL of a folder in a store, as for checkpoints; created if missing.
        show_dataflow: Draw arrows from each node to its consumers.
        show_memory: Not supported: runs record the sizes of outputs, not their lifetimes.

    Raises:
        UnimplementedError: `show_memory` is set.
        InvalidArgumentError: both intervals are given, or neither.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | Path = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        if show_memory:
            raise UnimplementedError("the life of values is not recorded", expected="show_memory=False", actual=True)
        self._folder = output_dir
        self._show_dataflow = show_dataflow
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)

    def begin(self) -> None:
        """Find the global step and open the event file."""
        self._next_step: int | None = None
        self._writer = FileWriter(self._folder)
        self._in_events: set[int] = set()
        self._graph = default_graph()
        self._step = required_global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Request a trace when one is due."""
        due = self._next_step is not None and self._timer.should_trigger_for_step(self._next_step)
        return SessionRunArgs(self._step, options=RunOptions(TraceLevel.FULL) if due else None)

    async def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the trace."""
        # The fetched value may be from before this run's update.
        stale = int(run_values.results)
        step = stale + 1
        if self._next_step is None:
            self._timer.update_last_triggered_step(stale)
        elif run_values.run_metadata.step_stats:
            # Read again, since concurrent runs may have advanced the step since the fetch.
            step = int(await run_context.session.run(self._step))
            # Otherwise a concurrent run has already written the trace of this interval.
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                place = joined(self._folder, f"timeline-{step}.json")
                # In a thread: a timeline of thousands of nodes takes long to encode.
                await in_thread(self._write, place, run_values.run_metadata.step_stats)
                await self._add(step, run_values.run_metadata)
        self._next_step = step + 1

    async def end(self, session: Session) -> None:
        """Wait until everything is written. Raise the error of a failed write."""
        await self._writer.flush()

    async def _add(self, step: int, run_metadata: RunMetadata) -> None:
        # Once: the graph is final by now.
        if not self._in_events:
            self._writer.add_graph(self._graph)
        if step not in self._in_events:  # recovery from a lost peer may repeat a step
            self._in_events.add(step)
            await self._writer.add_run_metadata(run_metadata, f"step_{step}", step)

    def _write(self, place: str, step_stats: Any) -> None:
        trace = chrome_trace(step_stats, self._graph if self._show_dataflow else None)
        if not is_url(place):
            with file_errors(place):
                local_path(place).parent.mkdir(parents=True, exist_ok=True)
        store, name = store_of(place)
        store.put(name, json.dumps(trace, ensure_ascii=False).encode())
        _LOGGER.info("wrote the times of a step to %s", place)
