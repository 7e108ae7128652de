"""`Session`: runs parts of a graph by `await session.run(...)`.

A run is looked up by its signature (fetches and feed keys). A known signature costs a dictionary lookup, the conversion
of the feeds and one call of generated code; a new one goes through the compiler once, however many callers wait for it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Final

import aioflow
from aioflow.compiler.delegate import Delegation
from aioflow.compiler.ir import Plan
from aioflow.compiler.prune import StepRequest
from aioflow.config import RunOptions, SessionConfig
from aioflow.errors import (
    ClosedSessionError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
)
from aioflow.graph.argument_kinds import check_kind, check_list
from aioflow.graph.default_graph import default_graph
from aioflow.graph.default_session import SESSIONS
from aioflow.graph.graph import Graph
from aioflow.graph.scopes import GRAPHS
from aioflow.runtime.cluster import Cluster, LocalCluster
from aioflow.runtime.delegates import PREPARATIONS
from aioflow.runtime.stats import RunMetadata
from aioflow.runtime.step import Step, StuckStep
from aioflow.runtime.sync_runner import SyncRunner, loop_runs_here
from aioflow.runtime.worker import Worker, WorkerState
from aioflow.session import signatures as session_signatures
from aioflow.session.batching import Batching
from aioflow.session.blocking import Blocking
from aioflow.session.fetches import FetchMapper, fed_tensors, feed_parts, fetch_key, flat_feeds, small_copies
from aioflow.session.partial_run import PartialRuns
from aioflow.session.planner import Planner
from aioflow.session.prepared import PreparedStep, StepCache
from aioflow.session.reporting import Reporting
from aioflow.session.running import Running
from aioflow.session.streaming import FeedSource, Stream
from aioflow.session.time_limit import TimeLimit
from aioflow.work.context_stack import Entry
from aioflow.work.forking import check_process, generation, not_forked, renew_in_child
from aioflow.work.stopping import Elsewhere

if TYPE_CHECKING:
    from aioflow.net.loop_thread import LoopThread

__all__ = ["Session"]

_IDS: Final = itertools.count(1)
_TARGETS: Final = "'', aioflow://host:port or a worker; a graph goes as Session(graph=graph)"
_SETTINGS: Final = "an aioflow.SessionConfig: Session(config=aioflow.SessionConfig(threads=2))"
_REMOTE: Final = ("aioflow", "inproc")  # schemes of targets that are servers


class Session(Blocking, Batching, Reporting):
    """Runs steps of one graph on one worker.

    Args:
        target: "" for a worker of the session's own, another worker, to share its variables, or "aioflow://host:port"
            for the cluster of the `train.Server` at that address.
        graph: The graph; the default one without it.
        config: Settings. Those at their default give way to those of the target's server, once that is connected to.
        credentials: As of `train.Server`, for the connections to the cluster.

    Use it as `async with Session() as session:`; inside, it is the default session of the task. Any number of tasks may
    call `run` at once. Where several tasks or blocks enter it, the last to leave closes it; it may be another task than
    those that entered.
    """

    def __init__(
        self,
        target: str | Worker = "",
        graph: Graph | None = None,
        config: SessionConfig | None = None,
        *,
        credentials: aioflow.distributed.Credentials | None = None,
    ) -> None:
        _check_arguments(target, graph, config)
        self.graph = graph if graph is not None else default_graph()
        self._id = next(_IDS)
        self._process = generation()
        self._closed = False
        self._target = target
        self._cluster, self._sync_runner = _reach(target, config or SessionConfig(), credentials)
        self._remote = not isinstance(self._cluster, LocalCluster)
        self._blocks: dict[Entry[Any], Entry[Graph]] = {}  # those that were entered, and not left
        self._background = self._cluster.background(self._id)
        self._use(config or SessionConfig())
        renew_in_child(self)

    def __repr__(self) -> str:
        return f"<aioflow.Session {self._target!r}, {'closed' if self._closed else 'open'}, of {self.graph!r}>"

    def _use(self, config: SessionConfig) -> None:
        """Work by these settings. No step may have been prepared before."""
        self.config = config
        self._planner = Planner(self._cluster, config)
        samples = config.replace_after > 0 and not self._remote and self._planner.chooses
        self._cache = StepCache(self.graph, self._cluster, self._planner, self._id, config)
        self._running = Running(self._cluster, self._planner, self._cache, config)
        self._watch(config.check_finite or config.operation_timeout is not None or samples)
        self._steps = self._running.steps
        self._partial_runs = PartialRuns(self._cluster, self._planner, self._id, config, self._background, self._steps)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        await self._cluster.connect()
        self._check_open()  # again: else settings that come now would make a `Running` that takes steps
        if self._cluster.settings is not None:
            config, self._cluster.settings = self.config.over(self._cluster.settings), None
            self._use(config)

    async def __aenter__(self) -> Session:
        self._check_open()
        await self._connect()
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._leave():
            with _noted_on(error):
                if isinstance(error, GeneratorExit) and not loop_runs_here():
                    self._close_now()  # a coroutine that was dropped may not await
                else:
                    await self.close()

    def __enter__(self) -> Session:
        self._check_open()
        self._blocks[SESSIONS.enter(self)] = GRAPHS.enter(self.graph)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._leave():
            with _noted_on(error):
                self._close_now()

    def _leave(self) -> bool:
        """Leave the innermost block that this context is in, or else the oldest; whether that was the last."""
        entry = SESSIONS.innermost_of(self._blocks) or next(iter(self._blocks), None)
        if entry is not None:
            SESSIONS.leave(entry)
            graph_entry = self._blocks.pop(entry, None)
            if graph_entry is not None:  # else another thread was quicker
                GRAPHS.leave(graph_entry)
        return not self._blocks

    @contextmanager
    def as_default(self) -> Iterator[Session]:
        """Make this the default session inside a `with` block, and leave it open at the end."""
        with SESSIONS.inside(self), self.graph.as_default():
            yield self

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    async def close(self) -> None:
        """Stop running steps (they raise `errors.CancelledError`), wait for their end, and refuse new ones. In a child
        of the process that made the session, only refuse.
        """
        if not self._refuse_steps():
            return
        here = asyncio.get_running_loop()
        try:
            for step in [s for s, loop in list(self._steps.items()) if loop is here]:
                await step.finished()
        finally:
            try:
                await self._finish()
            finally:
                if self._sync_runner.refuse():  # in another thread: no loop may run where its loop closes
                    await asyncio.to_thread(self._sync_runner.close, self._finish())

    async def _finish(self) -> None:
        try:
            await self._background.close()
        finally:
            await self._cluster.close()

    def _close_now(self) -> None:
        if not self._refuse_steps():
            return
        try:
            self._sync_runner.close(self._finish())
        finally:
            self._cluster.stop()

    def after_fork(self) -> None:
        """In a child no step is known any more, so that each run comes to `_check_open`."""
        self._cache.steps.clear()

    def _refuse_steps(self) -> bool:
        """Whether there is anything left to close: in a child it is all the parent's."""
        self._closed = self._running.is_over = True
        if self._process != generation():
            return False
        for step, loop in list(self._steps.items()):
            with suppress(RuntimeError):  # a loop that was closed in the middle of a step
                loop.call_soon_threadsafe(step.stop_for_close)
        self._cache.close()
        self._background.stop()
        self._cluster.forget(self._id)
        return True

    def _check_open(self) -> None:
        check_process(self._process, "the session")
        if self._closed:
            raise ClosedSessionError.refusing()

    def list_devices(self) -> list[str]:
        """Full names of the devices that the session can use; of a cluster, once the session is entered or used."""
        return list(self._cluster.devices)

    @property
    def engine(self) -> str | None:
        """The name of the engine that computes parts of steps (`SessionConfig.delegate`), such as "onnxruntime"; None
        where all is computed by kernels.
        """
        return self._planner.engine

    async def prepared(self) -> None:
        """Wait until all is ready that steps have made for later steps in this process, such as parts of them for
        another engine (`SessionConfig.delegate`). Whoever measures, or serves the first request, waits for that.
        """
        await PREPARATIONS.ended()

    async def health(self, timeout: float = 1.0) -> Mapping[str, WorkerState | OpError]:
        """For each task how its worker is, or why that is not known after `timeout` seconds; all are asked at once."""
        self._check_open()
        return await self._cluster.health(timeout)

    def reset(self, containers: Sequence[str] | None = None) -> None:
        """Drop the variables and other resources of the containers, or of all; of a local session, see `clear`."""
        check_process(self._process, "the session")
        self.worker.reset(containers)

    async def clear(self, containers: Sequence[str] | None = None) -> None:
        """Drop the variables and other resources of the containers, or of all, on all workers of the session."""
        check_process(self._process, "the session")
        await self._cluster.reset(containers)

    @property
    def worker(self) -> Worker:
        """The worker of a local session. Raises UnimplementedError for others."""
        return self._cluster.worker

    # -- running ------------------------------------------------------------------------------------------------------

    @session_signatures.run
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
                computed from is not run on its account. Arrays up to 64 KiB may be changed as soon as the call waits;
                larger ones are not copied, and must stay as they are until it returns.
            timeout: Seconds, after which the step is stopped.
            options, run_metadata: With `RunOptions(trace_level=FULL)`, `run_metadata` gets the time of every node, and
                loses those of the run before.

        Raises:
            InvalidArgumentError, NotFoundError, …: the request is wrong, or a kernel refused its input; the error names
                the node and the user's line that made it.
            DeadlineExceededError: `timeout` ran out.
            ClosedSessionError: the session is closed.

        Cancelling the task stops the step at the next kernel boundary; the session stays usable. An element that the
        step has taken from a queue, only to fetch it or what is computed from it, is in the queue again where the call
        is cancelled or late; `may_have_been_applied` of an error is False where nothing else was changed. A worker of a
        cluster puts an element back for two seconds after its part of the step has ended, and not later.
        """
        feeds = feed_dict or {}
        if type(feeds) is not dict:
            feeds = _mapping(feeds)
        if timeout is None and options is None and run_metadata is None and not self._special:
            prepared = self._cache.steps.get((fetch_key(fetches), *feeds))
            if prepared is None or prepared.mutations != self.graph.mutations:
                feeds = _kept(feeds)  # steps are known by plain tensors: one fed a sparse tensor is looked up here
                prepared = await self._prepare(fetches, feeds)
            if not self._special:  # which the settings of a server may have made of it
                try:
                    values = [c(value) for c, value in zip(prepared.converters, feeds.values(), strict=True)]
                except Elsewhere:
                    values = await prepared.convert_in_thread(list(feeds.values()))
                return await self._running.at_once(prepared, values)
        given, _ = await self._run_specially(
            fetches, feeds, timeout, RunOptions() if options is None else options, run_metadata
        )
        return given

    async def _run_ahead(
        self, fetches: Any, feeds: Mapping[Any, Any] | None, *, timeout: float | None
    ) -> tuple[Any, Step | None]:
        """Run a step whose result may not be delivered: the step, returned as well, can then put back what it took."""
        return await self._run_specially(fetches, _mapping(feeds or {}), timeout, RunOptions(), None)

    async def _prepare(self, fetches: Any, feeds: Mapping[Any, Any]) -> PreparedStep:
        """The compiled step; `feeds` are plain."""
        self._check_open()
        await self._connect()
        return await self._cache.prepare(fetches, feeds)

    async def _run_specially(
        self, fetches: Any, feeds: Mapping[Any, Any], timeout: float | None, options: Any, run_metadata: Any
    ) -> tuple[Any, Step | None]:
        """Run with a time limit, or with a probe. Returns the fetched values, and the step that has ended."""
        _check_options(options, run_metadata)
        feeds = _kept(feeds)
        own = timeout if timeout is not None else options.timeout
        if own is None:
            self._check_open()
            await self._connect()  # which has a limit of its own, and may bring the settings of a server
        async with TimeLimit(own if own is not None else self.config.operation_timeout) as limit:
            prepared = self._cache.steps.get((fetch_key(fetches), *feeds))
            if prepared is None or prepared.mutations != self.graph.mutations:
                prepared = await self._prepare(fetches, feeds)
            limit.doing = "waiting for its feeds to be converted"
            values = await prepared.convert(list(feeds.values()))
            given = await self._running.step(prepared, values, limit, options, run_metadata)
        return given, limit.step

    def plan(self, fetches: Any, feeds: Sequence[Any] = ()) -> Plan:
        """How `run` would do it, by the keys of its feeds: the nodes, optimized, their devices, what goes between."""
        return self._planner.plan(_asked(self.graph, fetches, feeds))

    def delegation(self, fetches: Any, feeds: Sequence[Any] = ()) -> Delegation:
        """Return the nodes of `run` that the engine of `SessionConfig.delegate` computes, part by part, and why the
        others stay. `feeds` are the keys of its feeds. Raises as `plan`.
        """
        return self._planner.delegation(_asked(self.graph, fetches, feeds))

    async def stuck_report(self) -> list[StuckStep]:
        """The steps that are running now, longest first, with the async nodes that each waits for, and why.
        Printed, it has one line per node: for how long it has waited, and for what. Each worker of a cluster is asked.
        """
        return sorted([await step.inquire() for step in list(self._steps)], key=lambda s: -s.seconds)

    @session_signatures.make_callable
    def make_callable(self, fetches: Any, feed_list: Sequence[Any] | None = None) -> Callable[..., Awaitable[Any]]:
        """A coroutine function that runs `fetches` with its arguments fed for `feed_list`. Raises as `run`."""
        FetchMapper(self.graph, fetches)
        check_list(feed_list or [], "the feeds of a callable")
        keys = list(feed_list or [])
        fed_tensors(self.graph, [part for feed in keys for part in feed_parts(feed)])
        key = (fetch_key(fetches), *keys)

        async def call(*values: Any) -> Any:
            if len(values) != len(keys):
                raise DTypeError("wrong number of feeds", expected=len(keys), actual=len(values))
            prepared = self._cache.steps.get(key)
            if prepared is not None and prepared.mutations == self.graph.mutations and not self._special:
                try:
                    fed = [convert(value) for convert, value in zip(prepared.converters, values, strict=True)]
                except Elsewhere:
                    fed = await prepared.convert_in_thread(values)
                return await self._running.at_once(prepared, fed)
            return await self.run(fetches, dict(zip(keys, values, strict=True)))

        return call

    @session_signatures.run_sync
    def run_sync(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, **kwargs: Any) -> Any:
        """Run a step and block until it is done: `run` for scripts and notebooks, with the same arguments.

        Where an event loop is running in this thread already (a notebook), the step runs on a loop in another thread.
        """
        self._check_open()
        return self._sync_runner.run(self.run(fetches, feed_dict, **kwargs))

    @session_signatures.stream
    def stream(
        self, fetches: Any, feeds: FeedSource = None, *, prefetch: int = 0, timeout: float | None = None
    ) -> Stream[Any]:
        """Step after step: an async iterator over what `run(fetches)` gives each time, until the data ends.

            async with session.stream(train_op) as steps:
                async for result in steps: ...

        A step that raises OutOfRangeError ends the loop, as the end of `feeds` does; any other error is raised.
        Args:
            feeds: None, one feed dictionary for every step, or an iterable or async iterable of them, one per step.
            prefetch: How many steps may be in flight besides the one whose result is due. They run at the same time,
                and their results come in order. With 0, a step begins when its result is asked for.
            timeout: Seconds for each step.

        Leaving the `async with` block cancels what is in flight and waits for it. Without the block, leaving the loop
        early cancels it too, and closing the session waits for it. An element that a step has taken from a queue, only
        to fetch it, is in the queue again where its result is not delivered; in a cluster as `run` says.
        """
        self._check_open()
        run = self._run_ahead if prefetch else self.run
        return Stream(run, self._background, fetches, feeds, prefetch, timeout)

    async def partial_run_setup(self, fetches: Any, feeds: Sequence[Any] | None = None) -> str:
        """Begin a step that is fed and fetched bit by bit, by `partial_run`; returns its handle. Each node runs once in
        the whole step, as soon as what it needs is there.

        Args:
            fetches: All that will be fetched; operations among them are run.
            feeds: All that will be fed.

        Raises:
            InvalidArgumentError, NotFoundError, …: the request is wrong.
            ClosedSessionError: the session is closed.
        """
        self._check_open()
        await self._connect()
        request = _asked(self.graph, fetches, [part for key in feeds or () for part in feed_parts(key)])
        return await self._partial_runs.begin(request, self.graph.mutations, self._running.probe(None))

    @session_signatures.partial_run
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
        mapper, fed = FetchMapper(self.graph, fetches), fed_tensors(self.graph, feeds)
        _require_tensors(mapper)
        limit = timeout if timeout is not None else self.config.operation_timeout
        return await self._partial_runs.advance(handle, mapper, dict(zip(fed, feeds.values(), strict=True)), limit)


def keep_checkpoints_in(folder: str | os.PathLike[str], session: Session) -> None:
    """The program keeps its checkpoints there, in a folder or at the URL of one. If the target of the session is a
    server of this program, that may open them from now on, for whoever can reach it.
    """
    session._cluster.keep_checkpoints_in(folder)


def _check_arguments(target: Any, graph: Any, config: Any) -> None:
    check_kind(target, (str, Worker), "the target of a session", _TARGETS)
    check_kind(graph, (Graph, NoneType), "the graph of a session", "an aioflow.Graph: Session(graph=graph)")
    check_kind(config, (SessionConfig, NoneType), "the settings of a session", _SETTINGS)


def _check_options(options: Any, run_metadata: Any) -> None:
    check_kind(options, RunOptions, "the options of a run", "an aioflow.RunOptions")
    check_kind(run_metadata, (RunMetadata, NoneType), "run_metadata", "an aioflow.RunMetadata")


def _reach(
    target: str | Worker, config: SessionConfig, credentials: aioflow.distributed.Credentials | None
) -> tuple[Cluster, SyncRunner | LoopThread]:
    """The workers that a target names, and who runs coroutines on them for callers that have no event loop."""
    if isinstance(target, Worker):
        check_process(target.process, "the worker")
        return LocalCluster(target), SyncRunner()
    if not target:
        return LocalCluster(Worker(config)), SyncRunner()
    if target.partition("://")[0] not in _REMOTE:
        raise NotFoundError("no such session target", expected="'' or aioflow://host:port", actual=target)
    with not_forked():
        from aioflow.net.loop_thread import LoopThread  # of `import aioflow`, all of `net` would be a tenth
        from aioflow.net.remote_cluster import RemoteCluster

    return RemoteCluster(target, credentials=credentials), LoopThread()


def _mapping(feeds: Any) -> Mapping[Any, Any]:
    if not isinstance(feeds, Mapping):
        raise DTypeError("feeds must be a mapping", expected="{tensor: value}", actual=repr(feeds))
    return feeds


def _kept(feeds: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the feeds by plain tensors, small ones copied: the caller may change them while a step is prepared."""
    flat = flat_feeds(feeds)
    return dict(zip(flat, small_copies(flat.values()), strict=True))


def _asked(graph: Graph, fetches: Any, feeds: Sequence[Any]) -> StepRequest:
    wanted, fed = FetchMapper(graph, fetches), fed_tensors(graph, feeds)
    return StepRequest(tuple(fed), tuple(wanted.tensors), tuple(wanted.targets))


def _require_tensors(mapper: FetchMapper) -> None:
    if mapper.targets:
        raise InvalidArgumentError(
            "a partial run fetches tensors; operations belong in the set-up",
            expected="tensors",
            actual=[op.name for op in mapper.targets],
        )


@contextmanager
def _noted_on(error: BaseException | None) -> Iterator[None]:
    """What fails in closing a session is a note on the error on whose account the block is left, if there is one."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"The session has not been closed properly either: {failure!r}")
