"""`Session`: runs parts of a graph by `await session.run(...)`.

A run is looked up by its signature (fetches and feed keys). A known signature costs a dictionary lookup, the conversion
of the feeds and one call of generated code; a new one goes through the compiler once, however many callers wait for it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token, copy_context
from time import perf_counter
from typing import Any, Final

from aioflow.compiler.ir import Plan
from aioflow.compiler.prune import StepRequest
from aioflow.config import RunOptions, SessionConfig, TraceLevel
from aioflow.errors import (
    CancelledError,
    ClosedSessionError,
    DeadlineExceededError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
)
from aioflow.fetches import FetchPlan, fed_tensors, feed_converter, feed_parts, fetch_key, flat_feeds
from aioflow.graph.default_graph import default_graph
from aioflow.graph.default_session import pop_session, push_session
from aioflow.graph.graph import Graph
from aioflow.net.loop_thread import LoopThread
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.partial_run import PartialRuns
from aioflow.planner import Planner
from aioflow.prepared import PreparedStep, StepCache
from aioflow.runtime.cluster import Cluster, LocalCluster
from aioflow.runtime.stats import FiniteProbe, RunMetadata, TraceProbe
from aioflow.runtime.step import Probe, Step, StuckStep
from aioflow.runtime.worker import Worker
from aioflow.streaming import FeedSource, Stream

__all__ = ["Session"]

_IDS: Final = itertools.count(1)
_REMOTE: Final = ("aioflow", "inproc")  # schemes of targets that are servers


class Session:
    """Runs steps of one graph on one worker.

    Args:
        target: "" for a worker of the session's own, another worker, to share its variables, or "aioflow://host:port"
            for the cluster of the `train.Server` at that address.
        graph: The graph; the default one without it.
        config: Settings.

    Use it as `async with Session() as session:`; inside, it is the default session of the task. Any number of tasks may
    call `run` at once.
    """

    def __init__(
        self, target: str | Worker = "", graph: Graph | None = None, config: SessionConfig | None = None
    ) -> None:
        self.graph = graph if graph is not None else default_graph()
        self.config = config or SessionConfig()
        self._id = next(_IDS)
        self._closed = False
        self._cluster = _cluster_of(target, self.config)
        self._loop_thread = LoopThread() if isinstance(self._cluster, RemoteCluster) else None
        self._planner = Planner(self._cluster, self.config)
        samples = self.config.replace_after > 0 and self._loop_thread is None and self._planner.chooses
        self._special = self.config.check_finite or self.config.operation_timeout is not None or samples
        self._cache = StepCache(self.graph, self._cluster, self._planner, self._id, self.config)
        self._steps: dict[Step, asyncio.AbstractEventLoop] = {}
        self._debt = 0.0
        self._tokens: list[tuple[Token[Any], Any]] = []
        self._runner: asyncio.Runner | None = None
        self._runner_lock = threading.Lock()  # for one thread at a time
        self._background = self._cluster.background(self._id)
        self._partial_runs = PartialRuns(
            self._cluster, self._planner, self._id, self.config, self._background, self._steps
        )

    # -- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Session:
        await self._cluster.connect()
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self._leave()
        await self.close()

    def __enter__(self) -> Session:
        self._check_open()
        scope = self.graph.as_default()
        scope.__enter__()
        self._tokens.append((push_session(self), scope))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave()
        self._close_now()

    def _leave(self) -> None:
        token, scope = self._tokens.pop()
        pop_session(token)
        scope.__exit__(None, None, None)

    @contextmanager
    def as_default(self) -> Iterator[Session]:
        """Make this the default session inside a `with` block, and leave it open at the end."""
        token = push_session(self)
        try:
            with self.graph.as_default():
                yield self
        finally:
            pop_session(token)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    async def close(self) -> None:
        """Stop the steps that are running (they raise `errors.CancelledError`), close what reads ahead for them, and
        refuse new ones.
        """
        self._refuse_steps()
        here = asyncio.get_running_loop()
        for step in [s for s, loop in self._steps.items() if loop is here]:
            await step.finished()
        await self._finish()
        await asyncio.to_thread(self._close_runner)  # of `run_sync` in another thread: no loop may run where it closes

    async def _finish(self) -> None:
        await self._background.close()
        await self._cluster.close()

    def _close_now(self) -> None:
        self._refuse_steps()
        self._close_runner()
        self._cluster.stop()

    def _refuse_steps(self) -> None:
        self._closed = True
        for step, loop in list(self._steps.items()):
            loop.call_soon_threadsafe(step.stop, CancelledError("the session was closed while the step ran"))
        self._cache.steps.clear()
        self._background.stop()
        self._cluster.forget(self._id)

    def _close_runner(self) -> None:
        if self._loop_thread is not None:
            self._loop_thread.close(self._finish())
        with self._runner_lock:
            if self._runner is not None:
                self._runner.run(self._background.close())
                self._runner.close()
                self._runner = None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedSessionError("attempted to use a closed Session", expected="an open session", actual="closed")

    def list_devices(self) -> list[str]:
        """Full names of the devices that the session can use; of a cluster, once the session is entered or used."""
        return list(self._cluster.devices)

    def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the variables and other resources of the containers, or of all; of a local session, see `clear`."""
        self.worker.reset(containers)

    async def clear(self, containers: Sequence[str] | None = None) -> None:
        """Drop the variables and other resources of the containers, or of all, on all workers of the session."""
        await self._cluster.reset(containers)

    @property
    def worker(self) -> Worker:
        """The worker of a local session. Raises UnimplementedError for others."""
        return self._cluster.worker

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        *,
        timeout: float | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Run what `fetches` need and return their values in the same structure.

        Args:
            fetches: A tensor, variable, operation or name of one, or nested lists, tuples, dicts and named tuples of
                them. An operation gives None, a `SparseTensor` a `SparseTensorValue`.
            feed_dict: Values for tensors (for a `SparseTensor` its three parts). Whatever a fed tensor would be
                computed from is not run on its account.
            timeout: Seconds, after which the step is stopped.
            options, run_metadata: With `RunOptions(trace_level=FULL)`, `run_metadata` gets the time of every node.

        Raises:
            InvalidArgumentError, NotFoundError, …: the request is wrong, or a kernel refused its input; the error names
                the node and the user's line that made it.
            DeadlineExceededError: `timeout` ran out.
            ClosedSessionError: the session is closed.

        Cancelling the task stops the step at the next kernel boundary; the session stays usable.
        """
        feeds = feed_dict or {}
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            raise DTypeError("feeds must be a mapping", expected="{tensor: value}", actual=repr(feeds))
        prepared = self._cache.steps.get((fetch_key(fetches), *feeds))
        if prepared is None or prepared.mutations != self.graph.mutations:
            self._check_open()
            feeds = flat_feeds(feeds)  # steps are known by plain tensors: one fed a sparse tensor is looked up here
            await self._cluster.connect()
            prepared = await self._cache.prepare(fetches, feeds)
        values = [convert(value) for convert, value in zip(prepared.converters, feeds.values(), strict=True)]
        if timeout is None and options is None:
            return await self._execute(prepared, values)
        return prepared.take(await self._run_step(prepared, values, timeout, options, run_metadata))

    async def _execute(self, prepared: PreparedStep, values: list[Any]) -> Any:
        """Run a step that asks for nothing special: right here, if it is expected to be short."""
        if not self._special:
            started = perf_counter()
            done = prepared.run_inline(values)
            if done is not None:
                await self._share(started)
                return done[0] if prepared.single else prepared.take(done)
        return prepared.take(await self._run_step(prepared, values, None, None, None))

    async def _share(self, started: float) -> None:
        """Let others run once the steps that never waited have taken `yield_every` of the loop's time."""
        self._debt += perf_counter() - started
        if self._debt > self.config.yield_every:
            self._debt = 0.0
            await asyncio.sleep(0)

    async def _run_step(
        self,
        prepared: PreparedStep,
        values: list[Any],
        timeout: float | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> list[Any]:
        limit = timeout if timeout is not None else options.timeout if options is not None else None
        limit = limit if limit is not None else self.config.operation_timeout
        asked = options is not None and options.trace_level is TraceLevel.FULL
        trace = TraceProbe() if prepared.sampling.begin() or asked else None
        step = Step(self._probe(trace), self._cluster.next_step())
        self._steps[step] = asyncio.get_running_loop()
        started = perf_counter()
        try:
            async with asyncio.timeout(limit) as deadline:
                result = await prepared.plan.run(values, step)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            waiting = f"; waiting for {', '.join(step.waits)}" if step.waiting else ""
            raise DeadlineExceededError(
                f"the step did not finish in time{waiting}", expected=f"at most {limit} s", actual="stopped"
            ) from error
        finally:
            del self._steps[step]
            step.finish()
        await self._share(started)
        if trace is not None:
            self._planner.observe(trace.stats())
            if asked and run_metadata is not None:
                run_metadata.step_stats.extend(trace.stats())
        if prepared.sampling.is_due():
            await self._cache.place_again(prepared)
        return result

    def plan(self, fetches: Any, feeds: Sequence[Any] = ()) -> Plan:
        """How a step would be run: which nodes, optimized, on which device, and what goes between devices.

        Args:
            fetches, feeds: As the fetches and the keys of the feeds of `run`.
        """
        wanted, fed = FetchPlan(self.graph, fetches), fed_tensors(self.graph, feeds)
        return self._planner.plan(StepRequest(tuple(fed), tuple(wanted.tensors), tuple(wanted.targets)))

    async def stuck_report(self) -> list[StuckStep]:
        """The steps that are running now, longest first, with the async nodes that each waits for, and why.

        Printed, each is a line a node: for how long it has waited, and for which queue, lock or coroutine.
        """
        return sorted((step.report() for step in list(self._steps)), key=lambda s: -s.seconds)

    def _probe(self, trace: TraceProbe | None) -> Probe | None:
        if not self.config.check_finite:
            return trace
        return FiniteProbe(trace)

    def make_callable(self, fetches: Any, feed_list: Sequence[Any] | None = None) -> Callable[..., Awaitable[Any]]:
        """A coroutine function that runs `fetches` with its arguments fed for `feed_list`, in order."""
        keys = list(feed_list or [])
        structure = fetch_key(fetches)
        key = (structure, *keys)

        async def call(*values: Any) -> Any:
            if len(values) != len(keys):
                raise InvalidArgumentError("wrong number of feeds", expected=len(keys), actual=len(values))
            prepared = self._cache.steps.get(key)
            if prepared is not None and prepared.mutations == self.graph.mutations:
                fed = [convert(value) for convert, value in zip(prepared.converters, values, strict=True)]
                return await self._execute(prepared, fed)
            return await self.run(fetches, dict(zip(keys, values, strict=True)))

        return call

    def run_sync(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, **kwargs: Any) -> Any:
        """`run` for scripts and notebooks: blocks until the step is done. Takes the arguments of `run`.

        Where an event loop is running in this thread already (a notebook), the step runs on a loop in another thread.
        """
        if self._loop_thread is not None:
            return self._loop_thread.run(self.run(fetches, feed_dict, **kwargs))
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with self._runner_lock:
                if self._runner is None:
                    self._check_open()
                    self._runner = asyncio.Runner()
                return self._runner.run(self.run(fetches, feed_dict, **kwargs))
        return _run_in_thread(self.run(fetches, feed_dict, **kwargs))

    def stream(
        self, fetches: Any, feeds: FeedSource = None, *, prefetch: int = 0, timeout: float | None = None
    ) -> Stream:
        """Step after step: an async iterator over what `run(fetches)` gives each time, until the data ends.

            async with session.stream(train_op) as steps:
                async for result in steps: ...

        A step that raises OutOfRangeError ends the loop, as the end of `feeds` does; any other error is raised.

        Args:
            feeds: None, one feed dictionary for every step, or an iterable or async iterable of them, one a step.
            prefetch: How many steps may be in flight besides the one whose result is due. They run at the same time,
                and their results come in order. With 0, a step begins when its result is asked for.
            timeout: Seconds for each step.

        Leaving the `async with` block cancels what is in flight and waits for it. Without the block, leaving the loop
        early cancels it too, and closing the session waits for it.
        """
        self._check_open()
        return Stream(self.run, self._background, fetches, feeds, prefetch, timeout)

    async def partial_run_setup(self, fetches: Any, feeds: Sequence[Any] | None = None) -> str:
        """Begin a step that is fed and fetched bit by bit, by `partial_run`; returns its handle.

        Args:
            fetches: All that will be fetched; operations among them are run.
            feeds: All that will be fed.

        Each node runs once in the whole step, as soon as what it needs is there.

        Raises:
            InvalidArgumentError, NotFoundError, …: the request is wrong.
            ClosedSessionError: the session is closed.
        """
        self._check_open()
        parts = [part for key in feeds or () for part in feed_parts(key)]
        plan, fed = FetchPlan(self.graph, fetches), fed_tensors(self.graph, parts)
        request = StepRequest(tuple(fed), tuple(plan.tensors), tuple(plan.targets))
        return await self._partial_runs.begin(request, self.graph.mutations, self._probe(None))

    async def partial_run(
        self, handle: str, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Feed a part of what was set up, and return a part of the fetches in their structure.

        Raises:
            InvalidArgumentError: there is no such partial run (it ends when all has been fed and fetched); a feed or
                fetch was not set up, has been given already, or cannot be computed yet. Nothing has been fed then.
            DeadlineExceededError: `timeout`, in seconds, ran out; the fetches may be asked for again.
            OpError: the step failed, and is over.
        """
        self._check_open()
        feeds = flat_feeds(feed_dict or {})
        plan, fed = FetchPlan(self.graph, fetches), fed_tensors(self.graph, feeds)
        if plan.targets:
            raise InvalidArgumentError(
                "a partial run fetches tensors; operations belong into the set-up",
                expected="tensors",
                actual=[op.name for op in plan.targets],
            )
        values = {t: feed_converter(t)(v) for t, v in zip(fed, feeds.values(), strict=True)}
        return plan.take(await self._partial_runs.advance(handle, plan.tensors, values, timeout))


def _cluster_of(target: str | Worker, config: SessionConfig) -> Cluster:
    if isinstance(target, Worker) or not target:
        return LocalCluster(target if isinstance(target, Worker) else Worker(config))
    if target.partition("://")[0] not in _REMOTE:
        raise NotFoundError("no such session target", expected="'' or aioflow://host:port", actual=target)
    return RemoteCluster(target)


def _run_in_thread(coroutine: Any) -> Any:
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.extend((True, asyncio.run(coroutine)))
        except BaseException as error:
            outcome.extend((False, error))

    thread = threading.Thread(target=copy_context().run, args=(work,), name="aioflow-run-sync")
    thread.start()
    thread.join()
    if not outcome[0]:
        raise outcome[1]
    return outcome[1]
