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

from aioflow.arguments import check_kind, check_list, check_number
from aioflow.compiler.delegate import Delegation
from aioflow.compiler.ir import Plan
from aioflow.compiler.prune import StepRequest
from aioflow.concurrency.context_stack import EnteredBlock
from aioflow.concurrency.forking import check_process, generation, not_forked, renew_in_child
from aioflow.concurrency.stopping import OffloadToThread
from aioflow.concurrency.threads import is_loops_thread
from aioflow.config import RunOptions, SessionConfig
from aioflow.errors import (
    ClosedSessionError,
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnimplementedError,
)
from aioflow.graph.default_graph import default_graph
from aioflow.graph.default_session import SESSIONS, current_session
from aioflow.graph.graph import GRAPHS, Graph
from aioflow.memory.values import Value
from aioflow.protos.session_config import session_config
from aioflow.runtime.cluster import Cluster, LocalCluster
from aioflow.runtime.delegates import PREPARATIONS
from aioflow.runtime.stats import RunMetadata
from aioflow.runtime.step import Step, StuckStep
from aioflow.runtime.worker import Worker, WorkerState
from aioflow.session import signatures as session_signatures
from aioflow.session.batching import Batching
from aioflow.session.blocking import Blocking, LoopThread, SyncRunner
from aioflow.session.fetches import Feeds, FetchMapper, fed_tensors, feed_parts, fetch_key, flat_feeds, small_copies
from aioflow.session.handles import SessionHandles
from aioflow.session.partial_run import PartialRuns
from aioflow.session.planner import Planner
from aioflow.session.prepared import PreparedStep, StepCache
from aioflow.session.running import Reporting, SessionSteps
from aioflow.session.streaming import FeedSource, Stream
from aioflow.session.time_limit import TimeLimit

if TYPE_CHECKING:
    from aioflow.net.credentials import Credentials
else:
    Credentials = Any  # annotations stay resolvable without loading `net`, which only clusters need

_IDS: Final = itertools.count(1)
_TARGETS: Final = "'', aioflow://host:port or a worker; pass a graph as Session(graph=graph)"
_SECONDS: Final = "a number of seconds"
_REMOTE: Final = ("aioflow", "inproc")  # target schemes that denote servers


class Session(Blocking, Batching, Reporting):
    """A client that runs steps of one graph on one worker or cluster.

    Args:
        target: "" for a new private worker, another worker to share its variables, or "aioflow://host:port" for the
            cluster of the `train.Server` at that address.
        graph: The graph; by default the current default graph.
        config: Settings, or TensorFlow's `ConfigProto`. After the session has connected to a server, the server's
            settings replace those left at their default.
        credentials: Credentials for the connections to the cluster, as for `train.Server`.
        connect_timeout: Seconds to wait for the server at the target's address, when the session is entered or first
            used. An attempt to connect that is under way then may take up to two more. Later, a worker that a step
            needs must be reachable within two seconds.

    Use it as `async with Session() as session:`. Inside the block it is the default session of the task. Any number of
    tasks may call `run` at once. If several tasks or blocks enter it, the last one to leave closes it, and this may be
    a task that did not enter it.
    """

    def __init__(
        self,
        target: str | Worker = "",
        graph: Graph | None = None,
        config: SessionConfig | None = None,
        *,
        credentials: Credentials | None = None,
        connect_timeout: float = 2.0,
    ) -> None:
        _check_arguments(target, graph)
        check_number(connect_timeout, "connect_timeout", _SECONDS, above=0)
        self.graph = graph if graph is not None else default_graph()
        self._id = next(_IDS)
        self._process = generation()
        self._closed = False
        self._target = target
        settings = session_config(config)
        self._cluster, self._sync_runner = _reach(target, settings, credentials, connect_timeout)
        self._remote = not isinstance(self._cluster, LocalCluster)
        self._blocks: dict[EnteredBlock[Session], EnteredBlock[Graph]] = {}  # entered and not yet left
        self._background = self._cluster.background(self._id)
        self._use(settings)
        renew_in_child(self)

    def __repr__(self) -> str:
        return f"<aioflow.Session {self._target!r}, {'closed' if self._closed else 'open'}, of {self.graph!r}>"

    def _use(self, config: SessionConfig) -> None:
        """Apply `config`. Must be called before any step is compiled."""
        self.config = config
        self._planner = Planner(self._cluster, config)
        samples = config.replace_after > 0 and not self._remote and self._planner.chooses
        self._cache = StepCache(self.graph, self._cluster, self._planner, self._id, config)
        self._running = SessionSteps(self._cluster, self._planner, self._cache, config)
        self._handles = SessionHandles(self._cluster, self._planner, self._id, config, self._running)
        self._cache.handles = self._handles
        # These settings need a probe or a time limit, which the fast path of `run` does not have.
        self._watch(config.check_finite or config.operation_timeout is not None or samples)
        self._steps = self._running.steps
        self._partial_runs = PartialRuns(self._cluster, self._planner, self._id, config, self._background, self._steps)

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    async def connect(self, *, wait: float | None = None) -> None:
        """Wait until all tasks of the cluster answer, and connect to them. Idempotent; returns at once if it is local.

        Use it if workers may not be up yet. Without it, entering the session or its first run connects, and waits only
        for the server at the target's address. A call that fails or is cancelled leaves the session usable.

        Args:
            wait: Maximum time in seconds, above 0, which infinity lifts; by default the session's `connect_timeout`.
                An attempt to connect that is under way at its end may take up to two more seconds.

        Raises:
            UnavailableError: a task does not answer in that time. The error names it, and has the last reason.
            UnauthenticatedError, PermissionDeniedError: a secret or certificate is missing or not accepted; raised at
                once.
            DataLossError, UnimplementedError: another program, or an incompatible version, answers at an address.
            FailedPreconditionError: another task answers at an address of the cluster, or the session has been used on
                another event loop.
            ClosedSessionError: the session is closed, perhaps during the call.
        """
        self._check_open()
        if wait is not None:
            check_number(wait, "wait", _SECONDS, above=0)
        try:
            await self._cluster.reach(wait)
        except OpError:
            self._check_open()
            raise
        await self._connect()

    async def _connect(self) -> None:
        await self._cluster.connect()
        # Check again: after a close, the server's settings would create a `SessionSteps` that accepts steps.
        self._check_open()
        if self._cluster.settings is not None:
            config, self._cluster.settings = self.config.over(self._cluster.settings), None
            self._use(config)
        await self._planner.prepare()

    async def __aenter__(self) -> Session:
        self._check_open()
        await self._connect()
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._leave():
            with _noted_on(error):
                if isinstance(error, GeneratorExit) and not is_loops_thread():
                    self._close_now()  # a coroutine that is being closed must not await
                else:
                    await self.close()

    def __enter__(self) -> Session:
        self._check_open()
        # Blocks may be left in any order and by other tasks, hence a table instead of a stack.
        self._blocks[SESSIONS.enter(self)] = GRAPHS.enter(self.graph)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._leave():
            with _noted_on(error):
                self._close_now()

    def _leave(self) -> bool:
        """Leave the innermost block of this context, or else the oldest block. Return True if it was the last."""
        entry = SESSIONS.innermost_of(self._blocks) or next(iter(self._blocks), None)
        if entry is not None:
            SESSIONS.leave(entry)
            graph_entry = self._blocks.pop(entry, None)
            if graph_entry is not None:  # otherwise another thread has left the block first
                GRAPHS.leave(graph_entry)
        return not self._blocks

    @contextmanager
    def as_default(self) -> Iterator[Session]:
        """Make this the default session inside a `with` block, without closing it at the end."""
        with SESSIONS.inside(self), self.graph.as_default():
            yield self

    @property
    def closed(self) -> bool:
        """True if `close` has been called."""
        return self._closed

    async def close(self) -> None:
        """Close the session: stop running steps and wait for their end. Idempotent.

        Stopped steps raise `errors.CancelledError`. In a forked child of the process that created the session, this
        only rejects new steps, because all else belongs to the parent.
        """
        if not self._refuse_steps():
            return
        here = asyncio.get_running_loop()
        try:
            # Steps on other event loops have been told to stop, but cannot be awaited here.
            for step in [s for s, loop in list(self._steps.items()) if loop is here]:
                await step.finished()
        finally:
            try:
                await self._finish()
            finally:
                if self._sync_runner.refuse():
                    # In a thread, because its loop cannot run to its end in a thread where a loop runs already.
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
        """Clear the step cache in a forked child, so that each run reaches `_check_open`."""
        self._cache.steps.clear()

    def _refuse_steps(self) -> bool:
        """Reject new steps and stop running ones. Return False in a forked child: the rest belongs to the parent."""
        # Before the running steps are told to stop: a step that begins after this line is rejected.
        self._closed = self._running.is_over = True
        if self._process != generation():
            return False
        for step, loop in list(self._steps.items()):
            with suppress(RuntimeError):  # the loop was closed while a step was running
                loop.call_soon_threadsafe(step.stop_for_close)
        self._cache.close()
        self._handles.close()
        self._background.stop()
        self._cluster.forget(self._id)
        return True

    def _check_open(self) -> None:
        check_process(self._process, "the session")
        if self._closed:
            raise ClosedSessionError.refusing()

    def list_devices(self) -> list[str]:
        """Return the full names of the session's devices. Those of a cluster are known once connected."""
        return list(self._cluster.devices)

    @property
    def engine(self) -> str | None:
        """The name of the engine that computes parts of steps (`SessionConfig.delegate`), such as "onnxruntime".

        None if kernels compute everything.
        """
        return self._planner.engine

    async def prepared(self) -> None:
        """Wait until all background preparation for later steps in this process is complete.

        Steps start such preparation for parts that another engine computes (`SessionConfig.delegate`). Wait for it
        before measuring or serving requests.
        """
        await PREPARATIONS.ended()

    async def health(self, timeout: float = 1.0) -> Mapping[str, WorkerState | OpError]:
        """Query all tasks at once. Return each worker's state, or an error if it is unknown after `timeout` seconds."""
        self._check_open()
        return await self._cluster.health(timeout)

    @staticmethod
    async def reset(
        target: str | Worker,
        containers: Sequence[str] | None = None,
        config: SessionConfig | None = None,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        """Drop the variables and other resources of a target's containers, or of all, without a session of its own.

        Sessions on the target stay open; to them, the variables are uninitialized. `clear` does it within a session.

        Args:
            target: A worker, or the address of a server, whose whole cluster is reset.
            containers: Names of containers; by default all.
            config: Settings, as for a session.
            credentials: Credentials for the connections to the cluster.

        Raises:
            UnimplementedError: the target is "", where each session has a worker of its own.
            UnavailableError: a task does not answer.
        """
        if not target:
            raise UnimplementedError(
                "sessions with the target '' share no resources", expected="a worker or an address", actual=target
            )
        async with Session(target, Graph(), config, credentials=credentials) as session:
            await session.clear(containers or None)

    async def clear(self, containers: Sequence[str] | None = None) -> None:
        """Drop the variables and other resources of the containers, or of all, on all workers of the session."""
        check_process(self._process, "the session")
        await self._cluster.reset(containers)

    @property
    def worker(self) -> Worker:
        """The worker of a local session. Raises UnimplementedError for other sessions."""
        return self._cluster.worker

    # -- running ------------------------------------------------------------------------------------------------------

    @session_signatures.run
    async def run(
        self,
        fetches: object,
        feed_dict: Feeds | None = None,
        *,
        timeout: float | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Value:
        """Run the nodes that `fetches` need and return their values in the same structure.

        Args:
            fetches: A tensor, variable, operation or name of one, or nested lists, tuples, dicts and named tuples of
                them. An operation yields None, and a `SparseTensor` a `SparseTensorValue`.
            feed_dict: Values for tensors (for a `SparseTensor`, its three parts). Feeding a tensor skips the nodes that
                would compute it. The caller may change arrays up to 64 KiB as soon as the call waits; larger ones are
                not copied and must stay unchanged until it returns.
            timeout: Time limit in seconds, after which the step is stopped. By default `RunOptions.timeout`, or else
                `SessionConfig.operation_timeout`.
            options: Options of this run.
            run_metadata: With `RunOptions(trace_level=FULL)`, receives the time of every node, in place of the previous
                run's times.

        Raises:
            InvalidArgumentError, NotFoundError, …: the request is wrong, or a kernel rejected its input. The error
                names the node and the line of user code that created it.
            DeadlineExceededError: the time limit expired.
            ClosedSessionError: the session is closed.

        Cancelling the task stops the step at the next kernel boundary; the session stays usable.

        If the call is cancelled or late, elements that the step has dequeued only to fetch them, or to fetch values
        computed from them, are put back into the queue. A worker of a cluster does so only within two seconds after its
        part of the step has ended. `may_have_been_applied` of an error is False if nothing else was changed.
        """
        feeds = feed_dict or {}
        # The fast path: for plain dictionaries and no options, a known step costs one lookup.
        if type(feeds) is not dict:
            feeds = _mapping(feeds)
        if timeout is None and options is None and run_metadata is None and not self._special:
            prepared = self._cache.steps.get((fetch_key(fetches), *feeds))
            if prepared is None or prepared.mutations != self.graph.mutations:
                # The cache is keyed by plain tensors, so a step that is fed a sparse tensor is looked up in here.
                feeds = _copied_feeds(feeds)
                prepared = await self._prepare(fetches, feeds)
            if not self._special:  # connecting in `_prepare` may have applied a server's settings
                try:
                    values = [c(value) for c, value in zip(prepared.converters, feeds.values(), strict=True)]
                except OffloadToThread:
                    values = await prepared.convert_in_thread(list(feeds.values()))
                return await self._running.at_once(prepared, values)
        given, _ = await self._run_specially(
            fetches, feeds, timeout, RunOptions() if options is None else options, run_metadata
        )
        return given

    async def _run_ahead(
        self, fetches: object, feeds: Feeds | None, *, timeout: float | None
    ) -> tuple[Value, Step | None]:
        """Run a step and return its result and the step itself.

        The result may not be delivered; the step can then put back the elements that it has dequeued.
        """
        return await self._run_specially(fetches, _mapping(feeds or {}), timeout, RunOptions(), None)

    async def _prepare(self, fetches: object, feeds: Feeds) -> PreparedStep:
        """Return the compiled step, after connecting. The keys of `feeds` are plain tensors."""
        self._check_open()
        await self._connect()
        return await self._cache.prepare(fetches, feeds)

    async def _run_specially(
        self,
        fetches: object,
        feeds: Feeds,
        timeout: float | None,
        options: RunOptions,
        run_metadata: RunMetadata | None,
    ) -> tuple[Value, Step | None]:
        """Run with a timeout, tracing or checks enabled. Return the fetched values, and the step, which has ended."""
        _check_options(options, run_metadata)
        feeds = _copied_feeds(feeds)
        own = timeout if timeout is not None else options.timeout
        if own is None:
            self._check_open()
            # Outside the operation timeout: it has its own limit, and may apply a server's `operation_timeout`.
            await self._connect()
        async with TimeLimit(own if own is not None else self.config.operation_timeout) as limit:
            prepared = self._cache.steps.get((fetch_key(fetches), *feeds))
            if prepared is None or prepared.mutations != self.graph.mutations:
                prepared = await self._prepare(fetches, feeds)
            limit.doing = "waiting for its feeds to be converted"
            values = await prepared.convert(list(feeds.values()))
            given = await self._running.step(prepared, values, limit, options, run_metadata)
        return given, limit.step

    def plan(self, fetches: object, feeds: Sequence[object] = ()) -> Plan:
        """Return the plan of a run: optimized nodes, devices, transfers. `feeds` are keys of a feed dictionary."""
        return self._planner.plan(_step_request(self.graph, fetches, feeds))

    def delegation(self, fetches: object, feeds: Sequence[object] = ()) -> Delegation:
        """Return the nodes of a run that the engine of `SessionConfig.delegate` computes, and why the others stay.

        `feeds` are keys of a feed dictionary. Raises as `plan`.
        """
        return self._planner.delegation(_step_request(self.graph, fetches, feeds))

    async def stuck_report(self) -> list[StuckStep]:
        """Return the running steps, longest first, with the async nodes that each waits for, and the reason.

        A printed report has one line per node, with the time and reason of its wait. Every worker of a cluster is
        queried.
        """
        return sorted([await step.inquire() for step in list(self._steps)], key=lambda s: -s.seconds)

    @session_signatures.make_callable
    def make_callable(self, fetches: Any, feed_list: Sequence[object] | None = None) -> Callable[..., Awaitable[Any]]:
        """Return a coroutine function that feeds its arguments for `feed_list` and runs `fetches`. Raises as `run`."""
        # Only for the checks: an invalid fetch or feed is reported here, not by the first call.
        FetchMapper(self.graph, fetches)
        check_list(feed_list or [], "the feeds of a callable")
        keys = list(feed_list or [])
        fed_tensors(self.graph, [part for feed in keys for part in feed_parts(feed)])
        key = (fetch_key(fetches), *keys)

        async def call(*values: object) -> Value:
            if len(values) != len(keys):
                raise DTypeError("wrong number of feeds", expected=len(keys), actual=len(values))
            prepared = self._cache.steps.get(key)
            if prepared is not None and prepared.mutations == self.graph.mutations and not self._special:
                try:
                    fed = [convert(value) for convert, value in zip(prepared.converters, values, strict=True)]
                except OffloadToThread:
                    fed = await prepared.convert_in_thread(values)
                return await self._running.at_once(prepared, fed)
            # `run` compiles the step and enters it in the cache, where the next call finds it by `key`.
            return await self.run(fetches, dict(zip(keys, values, strict=True)))

        return call

    @session_signatures.run_sync
    def run_sync(self, fetches: Any, feed_dict: Feeds | None = None, **kwargs: Any) -> Value:
        """Run a step and block until it is done. Accepts the arguments of `run`; meant for scripts and notebooks.

        If an event loop already runs in this thread (a notebook), the step runs on a loop in another thread.
        """
        self._check_open()
        return self._sync_runner.run(self.run(fetches, feed_dict, **kwargs))

    @session_signatures.stream
    def stream(
        self, fetches: object, feeds: FeedSource = None, *, prefetch: int = 0, timeout: float | None = None
    ) -> Stream[Any]:
        """Return an async iterator that runs step after step and yields each result, until the data ends.

            async with session.stream(train_op) as steps:
                async for result in steps: ...

        The loop ends when a step raises OutOfRangeError or `feeds` is exhausted. Any other error is raised.

        Leaving the `async with` block cancels the steps in flight and waits for them. Without the block, leaving the
        loop early cancels them too, and closing the session waits for them. Elements that a step has dequeued only to
        fetch them are put back if its result is not delivered; for clusters see `run`.

        Args:
            fetches: Fetches as for `run`.
            feeds: None, one feed dictionary for every step, or an iterable or async iterable of them, one per step.
            prefetch: Number of steps that run ahead of the step being awaited. They run concurrently, and their
                results are in order. With 0, a step starts when its result is requested.
            timeout: Time limit of each step, in seconds.
        """
        self._check_open()
        # Only a step that runs ahead may have to put elements back later, and so is returned with its result.
        run = self._run_ahead if prefetch else self.run
        return Stream(run, self._background, fetches, feeds, prefetch, timeout)

    def keep_checkpoints_in(self, folder: str | os.PathLike[str]) -> None:
        """Announce the folder, or URL of a folder, where the program keeps its checkpoints.

        If the target is a server of this program, the server's clients may open files in that folder from now on.
        """
        self._cluster.keep_checkpoints_in(folder)

    async def partial_run_setup(self, fetches: object, feeds: Sequence[object] | None = None) -> str:
        """Start a step that `partial_run` feeds and fetches in several calls, and return its handle.

        Each node runs once in the whole step, as soon as its inputs are available.

        Args:
            fetches: All tensors that will be fetched, and operations to run.
            feeds: All tensors that will be fed.

        Raises:
            InvalidArgumentError, NotFoundError, …: the request is wrong.
            ClosedSessionError: the session is closed.
        """
        self._check_open()
        await self._connect()
        request = _step_request(self.graph, fetches, [part for key in feeds or () for part in feed_parts(key)])
        return await self._partial_runs.begin(request, self.graph.mutations, self._running.probe(None))

    @session_signatures.partial_run
    async def partial_run(
        self, handle: str, fetches: object, feed_dict: Feeds | None = None, *, timeout: float | None = None
    ) -> Value:
        """Feed some of the tensors of a partial run, and return some of its fetches in their structure.

        Raises:
            InvalidArgumentError: the partial run does not exist (it ends when everything has been fed and fetched), or
                a feed or fetch was not set up, was already used, or cannot be computed yet. Nothing has been fed then.
                Or a fetch has no value, because it is on a branch that was not taken.
            DeadlineExceededError: `timeout`, in seconds, expired; the fetches may be requested again. Or the partial
                run has expired (`SessionConfig.partial_run_timeout`).
            FailedPreconditionError: the partial run was set up on another event loop.
            OpError: the step failed and has ended.
        """
        self._check_open()
        feeds = flat_feeds(feed_dict or {})
        mapper, fed = FetchMapper(self.graph, fetches), fed_tensors(self.graph, feeds)
        _require_tensors(mapper)
        limit = timeout if timeout is not None else self.config.operation_timeout
        return await self._partial_runs.advance(handle, mapper, dict(zip(fed, feeds.values(), strict=True)), limit)


def get_default_session(graph: Graph | None = None) -> Session | None:
    """Return the innermost open session, of `graph` if given, or None. Closed sessions are skipped."""
    session: Session | None = current_session(graph)
    return session


def _check_arguments(target: object, graph: object) -> None:
    check_kind(target, (str, Worker), "the target of a session", _TARGETS)
    check_kind(graph, (Graph, NoneType), "the graph of a session", "an aioflow.Graph: Session(graph=graph)")


def _check_options(options: object, run_metadata: object) -> None:
    check_kind(options, RunOptions, "the options of a run", "an aioflow.RunOptions")
    check_kind(run_metadata, (RunMetadata, NoneType), "run_metadata", "an aioflow.RunMetadata")


def _reach(
    target: str | Worker, config: SessionConfig, credentials: Credentials | None, connect_timeout: float
) -> tuple[Cluster, SyncRunner | LoopThread]:
    """Return the workers that a target denotes, and the runner of coroutines for callers without an event loop."""
    if isinstance(target, Worker):
        check_process(target.process, "the worker")
        return LocalCluster(target), SyncRunner()
    if not target:
        return LocalCluster(Worker(config)), SyncRunner()
    if target.partition("://")[0] not in _REMOTE:
        raise NotFoundError("no such session target", expected="'' or aioflow://host:port", actual=target)
    with not_forked():
        # Imported late: all of `net` would take a tenth of the time of `import aioflow`.
        from aioflow.net.remote_cluster import RemoteCluster

    return RemoteCluster(target, connect_timeout=connect_timeout, credentials=credentials), LoopThread()


def _mapping(feeds: object) -> Feeds:
    if not isinstance(feeds, Mapping):
        raise DTypeError("feeds must be a mapping", expected="{tensor: value}", actual=repr(feeds))
    return feeds


def _copied_feeds(feeds: Feeds) -> Feeds:
    """Return the feeds by plain tensors, small ones copied: the caller may change them while a step is prepared."""
    flat = flat_feeds(feeds)
    return dict(zip(flat, small_copies(flat.values()), strict=True))


def _step_request(graph: Graph, fetches: object, feeds: Sequence[object]) -> StepRequest:
    wanted, fed = FetchMapper(graph, fetches), fed_tensors(graph, feeds)
    return StepRequest(tuple(fed), tuple(wanted.tensors), tuple(wanted.targets))


def _require_tensors(mapper: FetchMapper) -> None:
    if mapper.targets:
        raise InvalidArgumentError(
            "a partial run can fetch only tensors; pass operations to partial_run_setup",
            expected="tensors",
            actual=[op.name for op in mapper.targets],
        )


@contextmanager
def _noted_on(error: BaseException | None) -> Iterator[None]:
    """Attach an error in closing the session to the error that ended the block; or raise it."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"Closing the session failed, too: {failure!r}")
