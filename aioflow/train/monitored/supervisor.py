"""`Supervisor`: an older form of monitored training, with background services instead of hooks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aioflow.arguments import check_callable, check_number
from aioflow.concurrency.threads import in_thread
from aioflow.config import RunOptions, SessionConfig
from aioflow.errors import FailedPreconditionError, OpError
from aioflow.formats.stores import joined
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, GraphKeys, Tensor
from aioflow.graph.tensor_like import NodeLike
from aioflow.observe.file_writer import FileWriter
from aioflow.ops.summary import merge_all
from aioflow.ops.variables.collections import (
    global_variables,
    global_variables_initializer,
    report_uninitialized_variables,
)
from aioflow.ops.variables.variable import Variable
from aioflow.runtime.worker import Worker
from aioflow.session.fetches import Feeds
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator
from aioflow.train.graph_io import write_graph
from aioflow.train.monitored.recording_hooks import add_number, add_status
from aioflow.train.monitored.scaffold import ModelNodes, Scaffold
from aioflow.train.monitored.session_creation import SessionManager
from aioflow.train.monitored.session_run_hook import called
from aioflow.train.queue_runner import QueueRunner
from aioflow.train.saver import Saver
from aioflow.train.step import get_global_step

# ── services in the background ────────────────────────────────────────────────────────────────────────────────────────


_LOGGER: Final = logging.getLogger("aioflow.train")


class Speed:
    """A service that logs steps per second and, if there is a writer, writes them as a summary."""

    def __init__(self, session: Session, global_step: Any, writer: Any) -> None:
        self._session = session
        self._global_step = global_step
        self._writer = writer
        self._last: tuple[float, int] | None = None

    async def tell(self) -> None:
        """Log the speed since the last call. The first call only records the starting point."""
        step, now = int(await self._session.run(self._global_step)), asyncio.get_running_loop().time()
        if self._last is not None and now > self._last[0]:
            speed = (step - self._last[1]) / (now - self._last[0])
            tag = f"{self._global_step.op.name}/sec"
            _LOGGER.info("%s: %g", tag, speed)
            if self._writer is not None:
                await add_number(self._writer, tag, speed, step)
        self._last = now, step


class Summaries:
    """A service that runs the summaries of a graph, without feeds, and writes the results."""

    def __init__(self, session: Session, summary_op: Any, global_step: Any, writer: Any) -> None:
        self._session = session
        self._fetches = [summary_op] if global_step is None else [summary_op, global_step]
        self._writer = writer

    async def write(self) -> None:
        """Run the summaries once and write the result."""
        summary, *step = await self._session.run(self._fetches)
        await called(self._writer.add_summary, summary, int(step[0]) if step else None)


async def begin_summaries(writer: Any, graph: Graph, session: Session, global_step: Any) -> None:
    """Open the writer, which an earlier session may have closed, and write the graph.

    If `global_step` is set, also log the START of a session at that step.
    """
    await called(writer.reopen)
    await called(writer.add_graph, graph)
    if global_step is not None:
        await add_status(writer, "START", int(await session.run(global_step)))


# ── the supervisor ────────────────────────────────────────────────────────────────────────────────────────────────────


class Supervisor(ModelNodes):
    """A manager of training that initializes or restores a model, runs background services, and stops them together.

    Args:
        graph: The graph, which is finalized; None for the default graph.
        ready_op, init_op, local_init_op: As in `Scaffold`; USE_DEFAULT for the entry of the standard collection, or a
            new one.
        ready_for_local_init_op: As in `Scaffold`; USE_DEFAULT for the entry of the standard collection, or None.
        init_feed_dict: Feeds of `init_op`.
        init_fn: `init_fn(session)`, called after `init_op`; may be a coroutine function.
        is_chief: Whether to initialize and save the variables; otherwise wait until the chief has initialized them.
        logdir: Folder of the chief's checkpoints and event files; without it there are no files and no services.
        saver: USE_DEFAULT for the entry of the standard collection, or a saver of all variables; None for no
            checkpoints.
        global_step: USE_DEFAULT for that of the graph; None to write checkpoints without a step number.
        save_summaries_secs: Interval of summaries and of logging the speed, in seconds; 0 to disable.
        save_model_secs: Interval of checkpoints, in seconds; 0 to disable.
        recovery_wait_secs, local_init_run_options: As in `SessionManager`.
        stop_grace_secs: Seconds that tasks have to end on their own.
        checkpoint_basename: Checkpoints are named "BASENAME-STEP".
        session_manager: Creates the sessions.
        summary_op: Computes the summaries, without feeds; USE_DEFAULT for the entry of the standard collection, or a
            merge of the collection of summaries.
        summary_writer: USE_DEFAULT for a `summary.FileWriter` of `logdir`; None for no writer.

    Use it as `async with supervisor.managed_session() as sess: while not supervisor.should_stop(): ...`.
    """

    USE_DEFAULT: Final = 0

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Tensor | int | None = USE_DEFAULT,
        ready_for_local_init_op: Tensor | int | None = USE_DEFAULT,
        is_chief: bool = True,
        init_op: NodeLike | int | None = USE_DEFAULT,
        init_feed_dict: Feeds | None = None,
        local_init_op: NodeLike | int | None = USE_DEFAULT,
        logdir: str | Path | None = None,
        summary_op: Tensor | int | None = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Variable | int | None = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: SessionManager | None = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Session], object] | None = None,
        local_init_run_options: RunOptions | None = None,
    ) -> None:
        for seconds in (save_summaries_secs, save_model_secs, stop_grace_secs):
            check_number(seconds, "a duration of a supervisor", "a number of seconds")
        self._graph = default_graph() if graph is None else graph
        keys = GraphKeys
        with self._graph.as_default():
            self._ready_op = self._given(ready_op, keys.READY_OP, report_uninitialized_variables)
            self._ready_for_local_init_op = self._given(
                ready_for_local_init_op, keys.READY_FOR_LOCAL_INIT_OP, lambda: None
            )
            self._init_op = self._given(init_op, keys.INIT_OP, global_variables_initializer)
            self._local_init_op = self._given(local_init_op, keys.LOCAL_INIT_OP, Scaffold.default_local_init_op)
            self._saver = self._given(saver, keys.SAVERS, lambda: Saver() if global_variables() else None)
            self._summary_op = self._given(summary_op, keys.SUMMARY_OP, merge_all)
            self._global_step = get_global_step() if global_step is self.USE_DEFAULT else global_step
        self._is_chief = is_chief
        self._init_feed_dict = init_feed_dict
        self._init_fn = init_fn
        self._coord = Coordinator()
        self._block = AsyncExitStack()  # holds the coordinator's block if the caller has not entered it
        self._stop_grace_secs = stop_grace_secs
        self._logdir = logdir or None if is_chief else None  # "" means no folder, too
        self._save_path = None if self._logdir is None else joined(self._logdir, checkpoint_basename)
        if summary_writer is self.USE_DEFAULT:
            summary_writer = None if self._logdir is None else FileWriter(self._logdir)
        self._summary_writer = summary_writer if is_chief else None
        self._stopped = True  # False while the event file has a START entry without its STOP
        self._save_model_secs = save_model_secs if is_chief else None  # only the chief saves
        self._save_summaries_secs = save_summaries_secs if is_chief else None
        self._session_manager = session_manager or SessionManager(
            local_init_op=self._local_init_op,
            ready_op=self._ready_op,
            ready_for_local_init_op=self._ready_for_local_init_op,
            graph=self._graph,
            recovery_wait_secs=recovery_wait_secs,
            local_init_run_options=local_init_run_options,
        )
        self._graph.finalize()  # last: the defaults above add nodes

    def _given(self, value: object, key: str, default: Callable[[], object]) -> Any:
        """Return `value` unless it is USE_DEFAULT, else the first entry of a collection, or add a default to it."""
        if value is not self.USE_DEFAULT:
            return value
        found = self._graph.get_collection(key)
        # As in TensorFlow, the first of several entries; `Scaffold` rejects several.
        if found:
            return found[0]
        made = default()
        if made is not None:
            self._graph.add_to_collection(key, made)
        return made

    # -- the session --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def managed_session(
        self,
        master: str | Worker = "",
        config: SessionConfig | None = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> AsyncIterator[Session]:
        """Open a session that is ready. At the end of the block, stop the tasks and close the session.

        Raises:
            Exception: the error of the block or of a task. OutOfRangeError ends the block without an error.
        """
        # A supervisor may manage several sessions one after the other.
        self._coord.clear_stop()
        async with self._coord:
            session = await self.prepare_or_wait_for_session(
                master, config, start_standard_services=start_standard_services
            )
            try:
                yield session
            except Exception as error:
                # `stop` raises the error, unless the coordinator takes it for a clean end.
                self.request_stop(error)
            finally:
                try:
                    # The services end before the session that they use is closed.
                    await self.stop(close_summary_writer=close_summary_writer)
                finally:
                    await _close(session)

    async def prepare_or_wait_for_session(
        self,
        master: str | Worker = "",
        config: SessionConfig | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Session:
        """Return a session that is ready. The caller closes it.

        With `start_standard_services`, start the services (on the chief) and the queue runners as tasks of `coord`,
        which `stop` ends. This works outside of `async with supervisor.coord:`, too. `max_wait_secs` limits the wait
        for a checkpoint, or for the chief. Raises as `SessionManager.prepare_session` does on the chief, and as
        `wait_for_session` does elsewhere.
        """
        self._coord.clear_stop()
        if not self._is_chief:
            session = await self._session_manager.wait_for_session(master, config, max_wait_secs)
        else:
            session = await self._session_manager.prepare_session(
                master,
                init_op=self._init_op,
                saver=self._saver,
                checkpoint_dir=self._logdir,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_secs,
                config=config,
                init_feed_dict=self._init_feed_dict,
                init_fn=self._init_fn,
            )
        try:
            if self._logdir is not None:
                await in_thread(write_graph, self._graph, self._logdir, "graph.pbtxt")
            if self._summary_writer is not None:
                self._stopped = False
                starts = start_standard_services and self._logdir is not None
                await begin_summaries(self._summary_writer, self._graph, session, self._global_step if starts else None)
            if start_standard_services:
                # Outside of a managed session the coordinator's block is not open yet, and tasks need one.
                if not self._coord.entered:
                    await self._block.enter_async_context(self._coord)
                if self._is_chief:
                    self.start_standard_services(session)
                self.start_queue_runners(session)
        except BaseException as error:
            # The session is closed and the block is left: the caller has nothing yet to close.
            try:
                await _close(session)
            finally:
                await self._block.__aexit__(type(error), error, error.__traceback__)
            raise
        return session

    # -- services -----------------------------------------------------------------------------------------------------

    def start_standard_services(self, sess: Any) -> list[asyncio.Task[None]]:
        """Start the services that write summaries, log the speed and write checkpoints, and return their tasks.

        Raises:
            FailedPreconditionError: this is not the chief, or `coord` is not entered.
        """
        if not self._is_chief:
            raise FailedPreconditionError("only the chief runs services", expected="is_chief=True", actual=False)
        if self._logdir is None:
            _LOGGER.warning("services are not started: no logdir")
            return []
        tasks = []
        writer = self._summary_writer
        if self._save_summaries_secs and self._summary_op is not None and writer is not None:
            summaries = Summaries(sess, self._summary_op, self._global_step, writer)
            tasks.append(self.loop(self._save_summaries_secs, summaries.write))
        if self._save_summaries_secs and self._global_step is not None:
            tasks.append(self.loop(self._save_summaries_secs, Speed(sess, self._global_step, writer).tell))
        if self._saver is not None and self._save_model_secs:
            tasks.append(self.loop(self._save_model_secs, self._save, [sess]))
        return tasks

    async def _save(self, session: Session) -> None:
        await self._saver.save(session, self._save_path, self._global_step)

    def start_queue_runners(
        self, sess: Session, queue_runners: Iterable[QueueRunner] | None = None
    ) -> list[asyncio.Task[None]]:
        """Start queue runners, by default those of the graph, and return their tasks."""
        runners = self._graph.get_collection(GraphKeys.QUEUE_RUNNERS) if queue_runners is None else queue_runners
        return [task for runner in runners for task in runner.create_threads(sess, self._coord)]

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., object],
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> asyncio.Task[None]:
        """Call a plain or coroutine function now and at an interval until a stop is requested.

        Args:
            timer_interval_secs: Seconds from one call to the next; None to call again at once.
            target: The function.
            args: Positional arguments.
            kwargs: Keyword arguments.

        Returns:
            The task, which `coord` owns. If the function raises, all tasks stop.
        """
        if timer_interval_secs is not None:
            check_number(timer_interval_secs, "timer_interval_secs", "a number of seconds, or None")
        check_callable(target, "the function to call in a loop")
        # Arguments are bound now; a coroutine function makes a new coroutine in each round.
        return self._coord.start(self._looping(timer_interval_secs, lambda: target(*args or (), **kwargs or {})))

    async def _looping(self, interval: float | None, call: Callable[[], object]) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while not await self._coord.wait_for_stop(max(0.0, due - clock())):
            # The next time follows from the last due time, not from the end of the call, so intervals don't drift.
            due = clock() if interval is None else due + interval
            await called(call)

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(
        self,
        threads: Iterable[asyncio.Future[Any]] | None = None,
        close_summary_writer: bool = True,
        ignore_live_threads: bool = False,
    ) -> None:
        """Stop the services and wait for them. The session stays open.

        Args:
            threads: Tasks to wait for besides those of `coord`.
            close_summary_writer: Whether to close the writer once everything is written.
            ignore_live_threads: Leave late tasks running instead of cancelling them.

        Raises:
            Exception: the error of a task, or of a failed write.
        """
        self._coord.request_stop()
        try:
            # Leaves the coordinator's block, if `prepare_or_wait_for_session` has opened it.
            async with self._block:
                await self._coord.join(threads, self._stop_grace_secs, ignore_live_threads)
        finally:
            if close_summary_writer and self._summary_writer is not None:
                if not self._stopped:
                    await add_status(self._summary_writer, "STOP")
                self._stopped = True
                await called(self._summary_writer.close)

    def request_stop(self, ex: BaseException | Sequence[Any] | None = None) -> None:
        """Request all tasks to stop. See `Coordinator.request_stop`."""
        self._coord.request_stop(ex)

    def should_stop(self) -> bool:
        """Return whether a stop has been requested."""
        return self._coord.should_stop()

    def stop_on_exception(self) -> AbstractContextManager[None]:
        """Return a context manager that requests a stop if its block raises, and suppresses the exception."""
        return self._coord.stop_on_exception()

    async def wait_for_stop(self) -> None:
        """Wait until a stop is requested."""
        await self._coord.wait_for_stop()

    async def summary_computed(self, sess: Any, summary: object, global_step: int | None = None) -> None:
        """Write a summary that a step has computed.

        `global_step` is the step of the summary; by default the current one in `sess`.

        Raises:
            FailedPreconditionError: there is no writer.
        """
        if self._summary_writer is None:
            raise FailedPreconditionError(
                "a summary needs a writer", expected="logdir or summary_writer", actual="none"
            )
        if global_step is None and self._global_step is not None:
            global_step = int(await sess.run(self._global_step))
        await called(self._summary_writer.add_summary, summary, global_step)

    # -- properties ---------------------------------------------------------------------------------------------------

    @property
    def is_chief(self) -> bool:
        """True if this supervisor initializes and saves the variables."""
        return self._is_chief

    @property
    def session_manager(self) -> SessionManager:
        """The factory of the sessions."""
        return self._session_manager

    @property
    def coord(self) -> Coordinator:
        """The owner of the tasks."""
        return self._coord

    @property
    def summary_writer(self) -> Any:
        """The writer of the event files; None if there are no event files."""
        return self._summary_writer

    @property
    def save_summaries_secs(self) -> float | None:
        """Interval of summaries and of logging the speed, in seconds; None if this is not the chief."""
        return self._save_summaries_secs

    @property
    def global_step(self) -> Any:
        """The step variable that numbers the checkpoints, or None."""
        return self._global_step

    @property
    def save_model_secs(self) -> float | None:
        """Interval of checkpoints, in seconds; None if this is not the chief."""
        return self._save_model_secs

    @property
    def save_path(self) -> str | None:
        """Prefix of the checkpoints, without the step; None without a `logdir`, and on a worker."""
        return self._save_path

    # TensorFlow's older names.
    PrepareSession = prepare_or_wait_for_session
    StartQueueRunners = start_queue_runners
    StartStandardServices = start_standard_services
    Stop = stop
    RequestStop = request_stop
    Loop = loop
    ShouldStop = should_stop
    StopOnException = stop_on_exception
    WaitForStop = wait_for_stop
    SummaryComputed = summary_computed


async def _close(session: Session) -> None:
    try:
        await session.close()
    except OpError as error:  # an error of the block or of a task matters more
        _LOGGER.warning("closing the session failed: %s", error)
