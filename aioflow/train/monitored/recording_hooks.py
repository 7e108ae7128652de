"""Hooks that record the training in files: summaries in event files, and timelines of the nodes of a run."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Final

from aioflow.concurrency.threads import in_thread
from aioflow.config import RunOptions, TraceLevel
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.formats.files import file_errors
from aioflow.formats.stores import is_url, joined, local_path, store_of
from aioflow.graph.default_graph import default_graph
from aioflow.observe.file_writer import FileWriter, FileWriterCache
from aioflow.observe.trace_events import chrome_trace
from aioflow.protos import message
from aioflow.runtime.stats import RunMetadata
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator
from aioflow.train.monitored.scaffold import Scaffold
from aioflow.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    called,
)
from aioflow.train.monitored.timers import SecondOrStepTimer, required_global_step

# ── summaries ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def writer_for(summary_writer: Any, folder: str | os.PathLike[str] | None) -> Any:
    """Return the given writer, or the shared writer of the folder, or None if neither is set."""
    return FileWriterCache.get(folder) if summary_writer is None and folder else summary_writer


async def add_number(writer: Any, tag: str, number: float, step: int) -> None:
    """Write a summary with one number. Wait while the writer's queue is full."""
    summary = message("Summary")()
    summary.value.add(tag=tag, simple_value=number)
    await called(writer.add_summary, summary, step)


async def add_status(writer: Any, status: str, step: int | None = None) -> None:
    """Write a session log entry with status "START" or "STOP"."""
    log = message("SessionLog")
    await called(writer.add_session_log, log(status=log.SessionStatus.Value(status)), step)


class SummarySaverHook(SessionRunHook):
    """A hook that runs summaries with the first run, then every given number of steps or seconds, and writes them.

    Args:
        save_steps, save_secs: Interval in steps or in seconds; exactly one must be given.
        output_dir: Folder of the event files, or the URL of a folder in a store.
        summary_writer: A `summary.FileWriter`, instead of the folder. Without either, nothing is written.
        scaffold: Scaffold whose `summary_op` is run, if set. Exactly one of `scaffold` and `summary_op` must be given.
        summary_op: The node to run, or a list of nodes.

    Raises:
        InvalidArgumentError: both or neither of two exclusive arguments are given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: Any = None,
        scaffold: Scaffold | None = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise InvalidArgumentError(
                "it is not clear which summaries to write",
                expected="scaffold or summary_op",
                actual="neither" if scaffold is None else "both",
            )
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._folder = output_dir
        self._writer = summary_writer
        self._scaffold = scaffold
        self._summary_op = summary_op

    def begin(self) -> None:
        """Find the global step and the writer."""
        self._writer = writer_for(self._writer, self._folder)
        self._step = required_global_step(self)
        self._next_step: int | None = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Reset the timer for a new session.

        The first write then logs START. If the session has restored an older step, TensorBoard drops later events.
        """
        # A new session may continue at an older step, at which the old trigger would fire late.
        self._timer.reset()
        self._next_step = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the summaries when they are due."""
        # The first run is always due: it decides when the next ones are.
        due = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
        return SessionRunArgs([self._step, *self._summaries()] if due else self._step)

    async def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the summaries, unless a concurrent run has written them."""
        if not isinstance(run_values.results, list):
            self._next_step = int(run_values.results) + 2  # the fetched step precedes this run's update
            return
        # Read again: the fetched step may be from before this run's update or after it.
        step = int(await run_context.session.run(self._step))
        # A concurrent run has written the summaries of this interval.
        if not self._timer.should_trigger_for_step(step):
            return
        first = self._timer.last_triggered_step() is None
        self._timer.update_last_triggered_step(step)
        self._next_step = step + 1
        if self._writer is not None:
            if first:
                await add_status(self._writer, "START", step)
            for summary in run_values.results[1:]:
                await called(self._writer.add_summary, summary, step)

    async def end(self, session: Session) -> None:
        """Wait until everything is written. Raise the error of a failed write."""
        if self._writer is not None:
            await called(self._writer.flush)

    def _summaries(self) -> list[Any]:
        chosen = self._summary_op if self._scaffold is None else self._scaffold.summary_op
        return [] if chosen is None else list(chosen) if isinstance(chosen, list | tuple) else [chosen]


# ── timelines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
