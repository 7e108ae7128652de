"""Execution of prepared steps: inline if they are short, otherwise by their plan. Tracks the steps in flight."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

from aioflow.config import RunOptions, SessionConfig, TraceLevel
from aioflow.errors import CancelledError, ClosedSessionError, OpError
from aioflow.memory.values import Value
from aioflow.runtime.cluster import Cluster
from aioflow.runtime.spans import Spans, process_spans, tell_of_spans
from aioflow.runtime.stats import FiniteProbe, RunMetadata, TraceProbe
from aioflow.runtime.step import Probe, Step
from aioflow.session.fetches import small_copies
from aioflow.session.planner import Planner
from aioflow.session.prepared import PreparedStep, StepCache
from aioflow.session.time_limit import TimeLimit


class SessionSteps:
    """Runs the steps of one session.

    Attributes:
        steps: Steps in flight, each with its event loop.
        is_over: Whether the session is closed. A step that was prepared meanwhile is not started.
        spans: Receiver of spans for this session; None for that of the process, if any.
    """

    def __init__(self, cluster: Cluster, planner: Planner, cache: StepCache, config: SessionConfig) -> None:
        self.steps: dict[Step, asyncio.AbstractEventLoop] = {}
        self.is_over = False
        self.spans: Spans | None = None
        self._cluster = cluster
        self._planner = planner
        self._cache = cache
        self._config = config
        self._debt = 0.0  # seconds of loop time since steps last yielded

    async def at_once(self, prepared: PreparedStep, values: list[Value]) -> Value:
        """Run a step without options: inline if it is expected to be short, otherwise by its plan."""
        if self._debt > self._config.yield_every:
            values = small_copies(values)
            await self._let_others_run()
        if self.is_over:
            raise ClosedSessionError.refusing()
        started = perf_counter()
        try:
            done = prepared.run_inline(values)
        except OpError as error:
            error.may_have_been_applied = prepared.changes
            raise
        # Not expected to be short: nothing has run yet.
        if done is None:
            return await self.step(prepared, small_copies(values))
        # `Unfinished`: the step is done, but handing over the fetches takes long.
        if not isinstance(done, list):
            done = await done.finish()
        self._debt += perf_counter() - started
        if prepared.single:
            return done[0]
        return await prepared.give(done) if prepared.take is None else prepared.take(done)

    async def _let_others_run(self) -> None:
        """Yield to other tasks, after steps that never waited have used `yield_every` seconds of the loop's time."""
        # Callers yield before a step: a caller that is cancelled while yielding after one would lose its result.
        self._debt = 0.0
        await asyncio.sleep(0)

    async def step(
        self,
        prepared: PreparedStep,
        values: list[Value],
        limit: TimeLimit | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Value:
        """Run a step by its plan and return the fetched values in the structure of the fetches. Raises OpError.

        Elements that the step has dequeued only to deliver them are put back if they are not delivered.

        If the caller is cancelled while the session is closing, raises `asyncio.CancelledError`, because an enclosing
        TaskGroup or `asyncio.timeout` waits for it.
        """
        if self._debt > self._config.yield_every:
            await self._let_others_run()
        if run_metadata is not None:
            run_metadata.record()  # drops the records of the previous run
        asked = options is not None and options.trace_level is not TraceLevel.NO_TRACE
        trace = TraceProbe() if prepared.sampling.begin() or asked else None
        step = Step(self.probe(trace), self._cluster.next_step(), prepared.describe)
        self.begin(step)
        if limit is not None:
            limit.step = step
            step.deadline = limit.until
        started = perf_counter()
        step.spans = self.spans or process_spans()
        task = asyncio.current_task()
        # Cancellations that arrive during the step are told apart from earlier ones by this count.
        cancelled_before = 0 if task is None else task.cancelling()
        try:
            given = await self._watched(step, prepared, values, trace)
            self._debt += perf_counter() - started
            if options is not None and run_metadata is not None:
                stats = trace.stats() if trace is not None and asked else ()
                run_metadata.record(stats, prepared.made, options.output_partition_graphs)
            return given
        except BaseException as error:
            await step.unwind(error)
            step.account(error)
            if isinstance(error, asyncio.CancelledError):
                error.add_note(f"aioflow: {step.describe()} was cancelled after {step.seconds:.3f} s{step.state()}")
            elif isinstance(error, CancelledError) and task is not None and task.cancelling() > cancelled_before:
                # Python 3.13 cancels a task again that leaves a TaskGroup by an error: receive that here.
                await asyncio.sleep(0)
                raise asyncio.CancelledError from error
            raise
        finally:
            del self.steps[step]
            step.finish()

    async def _watched(
        self, step: Step, prepared: PreparedStep, values: list[Value], trace: TraceProbe | None
    ) -> Value:
        """Run a step and feed its measured times to the planner."""
        with _reported(step, prepared):
            result = await prepared.registered.run(values, step)
        given = await prepared.give(result) if prepared.take is None else prepared.take(result)
        if trace is not None:
            self._planner.observe(trace.stats())
        if prepared.sampling.is_due():
            await self._cache.place_again(prepared)
        return given

    def begin(self, step: Step) -> None:
        """Add a step to those in flight; `finish` must follow.

        Raises:
            ClosedSessionError: the session is closed.
        """
        # Register first, then check: if another thread closes the session now, either it finds the step and stops it,
        # or the step is rejected here.
        self.steps[step] = asyncio.get_running_loop()
        if self.is_over:
            del self.steps[step]
            raise ClosedSessionError.refusing()

    def probe(self, trace: TraceProbe | None) -> Probe | None:
        """Return the probe for a step: `trace`, with a check for finite values if the settings request it."""
        return FiniteProbe(trace) if self._config.check_finite else trace


def _reported(step: Step, prepared: PreparedStep) -> AbstractContextManager[None]:
    """Return the context manager that reports the step as a span; it does nothing if spans are off."""
    if step.spans is None:
        return nullcontext()
    asked = prepared.request
    names = [tensor.name for tensor in asked.fetches] + [op.name for op in asked.targets]
    return step.spans.step(names, [device for device, _ in prepared.made.by_device()])


# ── the switch between the fast and the instrumented path ─────────────────────────────────────────────────────────────
#
# `Reporting` caches whether steps are reported or checked, so that the fast path tests one flag.


class Reporting:
    """Mixin with the interface that `observe.instrument` uses."""

    _running: SessionSteps
    _spans: Spans | None = None
    _watched = False  # requested by the settings
    _special = False  # whether steps take the instrumented path

    def _watch(self, watched: bool) -> None:
        """Set whether the settings require the instrumented path. Call after each replacement of `_running`."""
        self._watched = watched
        self._running.spans = self._spans
        tell_of_spans(self)
        self.spans_changed()

    def report_spans(self, spans: Spans | None) -> None:
        """Report steps to `spans` from now on; with None, only if the whole process is instrumented."""
        self._spans = self._running.spans = spans
        self.spans_changed()

    def spans_changed(self) -> None:
        """Recompute whether steps take the instrumented path."""
        self._special = self._watched or self._spans is not None or process_spans() is not None
