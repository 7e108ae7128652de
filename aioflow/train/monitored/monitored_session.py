"""`MonitoredSession`: runs with hooks in a session that is recreated when a peer is lost."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from aioflow.arguments import check_number
from aioflow.config import RunOptions, SessionConfig
from aioflow.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    UnavailableError,
)
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph
from aioflow.runtime.stats import RunMetadata
from aioflow.runtime.worker import Worker
from aioflow.session.fetches import Feeds
from aioflow.session.session import Session
from aioflow.train.monitored.patience import Patience
from aioflow.train.monitored.scaffold import Scaffold
from aioflow.train.monitored.session_creation import ChiefSessionCreator, SessionCreator
from aioflow.train.monitored.session_instance import SessionInstance
from aioflow.train.monitored.session_run_hook import SessionRunHook, called, hooks_of

_LOGGER: Final = logging.getLogger("aioflow.train")
_LOST: Final = (AbortedError, UnavailableError)
_END: Final = (OutOfRangeError, StopIteration, StopAsyncIteration)


class StepContext:
    """The argument of the function that `run_step_fn` calls.

    Args:
        session: The current session; runs in it bypass the hooks.
        run_with_hooks_fn: Function that runs a step with hooks.
    """

    def __init__(self, session: Session, run_with_hooks_fn: Callable[..., Awaitable[object]]) -> None:
        self._session = session
        self._run = run_with_hooks_fn

    @property
    def session(self) -> Any:
        """The session; runs in it bypass the hooks."""
        return self._session

    async def run_with_hooks(self, *args: object, **kwargs: object) -> Any:
        """Call `MonitoredSession.run`. If a peer is lost, the function ends and is called again."""
        return await self._run(*args, **kwargs)

    def request_stop(self) -> None:
        """End the training by raising StopAsyncIteration, which ends the monitored session's block without an error.

        It is not StopIteration, because a coroutine cannot raise that.
        """
        raise StopAsyncIteration("step_fn requested a stop")


class _Monitored:
    """Common base of the two kinds of monitored session."""

    StepContext = StepContext
    starts_queue_runners = True  # read by `train.start_queue_runners`

    def __init__(
        self,
        session_creator: SessionCreator | None,
        hooks: Iterable[SessionRunHook] | None,
        stop_grace_period_secs: float,
        max_recovery_secs: float | None,
        at_most_once: bool = False,
    ) -> None:
        check_number(stop_grace_period_secs, "stop_grace_period_secs")
        self._graph = default_graph()
        self._creator = session_creator
        self._hooks = hooks_of(hooks, "hooks")
        self._grace = stop_grace_period_secs
        # Without a limit there is no recovery at all, as in `SingularMonitoredSession`.
        self._patience = None if max_recovery_secs is None else Patience(max_recovery_secs)
        self._at_most_once = at_most_once
        # A graph that the user has finalized must stay so afterwards.
        self._was_final = self._graph.finalized
        self._task_group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._life: SessionInstance | None = None  # None until a run needs a new instance
        self._last: SessionInstance | None = None
        self._lost: Exception | None = None
        self._closed = False

    def __enter__(self) -> NoReturn:
        raise TypeError("a monitored session is an asynchronous context manager: use `async with`, not `with`")

    def __exit__(self, *_: object) -> None:
        """Do nothing; never called. The `with` statement looks it up before it calls `__enter__`."""

    async def __aenter__(self) -> Self:
        if self._task_group is not None or self._closed:
            raise FailedPreconditionError(
                "a monitored session can be entered only once", expected="a new session", actual="already entered"
            )
        # Entered by hand: the group lives from the entry to the exit of this object's own block.
        self._task_group = await asyncio.TaskGroup().__aenter__()
        try:
            with self._graph.as_default():
                for hook in self._hooks:
                    # Before the session creator finalizes the graph: `begin` may still add nodes.
                    await called(hook.begin)
                self._creator = self._creator or ChiefSessionCreator()
            await self._open()
        except BaseException:
            # `__aexit__` is not called if `__aenter__` fails, so everything is released here.
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # The end of the input is the normal end of a training.
        clean = error is None or isinstance(error, _END)
        try:
            await self._close(clean)
        finally:
            await self._leave()
        return clean

    async def close(self) -> None:
        """End the training: call the hooks, stop the tasks, close the session. The end of the block does the same.

        Raises:
            FailedPreconditionError: the block has not been entered.
            Exception: the error of a queue runner, of another task of the coordinator, or of a hook's `end`.
        """
        await self._close(clean=True)

    async def _close(self, clean: bool) -> None:
        if self._closed:
            return
        try:
            if clean:
                # Hooks end in a working session, so one is created if the last was lost.
                session = (await self._open()).session
                with self._graph.as_default():
                    for hook in self._hooks:
                        await called(hook.end, session)
        finally:
            # Also after an error of a hook: a second close must not call the hooks again.
            self._closed = True
            last = self._last
            if last is not None:
                last.end()
                # The session may still be in creation, for example waiting for the chief: do not wait for that.
                if not last.opened.done():
                    self._cancel_tasks()
                await asyncio.wait([last.ended])
        # After `ended`: the failure of a task is known only when all tasks have ended.
        if last is not None and last.failure is not None:
            raise last.failure

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _leave(self) -> None:
        """Release everything: graph finalization, tasks and the task group."""
        self._closed = True
        self._life = None
        if not self._was_final:
            self._graph.unfinalize()
        group, self._task_group = self._task_group, None
        # The task of an instance that has ended is done, and cancelling it does nothing.
        self._cancel_tasks()
        if group is not None:
            await group.__aexit__(None, None, None)

    # -- session instances --------------------------------------------------------------------------------------------

    async def _open(self) -> SessionInstance:
        """Return the current session instance once it is usable. If there is no instance, start one for all callers."""
        # Each pass waits for one instance. Failed ones are replaced until the patience is over.
        while True:
            if self._closed or self._task_group is None:
                raise FailedPreconditionError(
                    "the monitored session is not open",
                    expected="inside its `async with` block",
                    actual="closed" if self._closed else "not entered",
                )
            life = self._life or self._begin_instance(self._task_group)
            # `wait` rather than `await life.opened`: cancelling this caller must not cancel the future of all callers.
            await asyncio.wait([life.opened])
            if life.opened.cancelled():
                # A cancelled instance says nothing about the servers, so the next one starts without a delay.
                self._lose(life, asyncio.CancelledError())
                continue
            error = life.opened.exception()
            if error is None:
                return life
            self._lose(life, error)
            if not self._recovers_from(error):
                raise error

    def _begin_instance(self, group: asyncio.TaskGroup) -> SessionInstance:
        delay = 0.0
        if self._lost is not None and self._patience is not None:
            # Consumed, so that one failure is counted once, whichever caller starts the next instance.
            error, self._lost = self._lost, None
            now = asyncio.get_running_loop().time()
            delay = self._patience.failed(now, error, "a working session")
            _LOGGER.warning("creating a new session in %.2f s after: %s", delay, error)
        if self._creator is None:
            raise FailedPreconditionError(
                "there is no session creator", expected="an entered `async with` block", actual="none"
            )
        life = SessionInstance(self._creator, self._hooks, self._graph, self._grace)
        # The last instance is passed on: its session must be closed before the new one is created.
        task = group.create_task(life.live(self._last, delay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._life = self._last = life
        return life

    def _lose(self, life: SessionInstance, error: BaseException) -> None:
        """Retire an instance, so that the next run starts another. If several runs fail together, the first counts."""
        life.retired = True
        life.end()
        # Another run may have retired it already and started the next instance.
        if self._life is life:
            self._life = None
            self._lost = error if isinstance(error, Exception) and self._recovers_from(error) else None

    def _recovers_from(self, error: BaseException | None) -> bool:
        return self._patience is not None and isinstance(error, _LOST)

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph | None:
        """The graph; None once the session is closed."""
        return None if self._closed else self._graph

    def should_stop(self) -> bool:
        """Return whether to end the training: a stop was requested, a task failed, or the session is closed."""
        if self._closed:
            return True
        life = self._life
        # While a session is created, the training goes on.
        if life is None or not life.opened.done():
            return False
        failure = life.task_failure()
        # A queue runner that lost its peer fails before any step does; the next run gets a new session.
        if failure is not None and self._recovers_from(failure):
            self._lose(life, failure)
            return False
        return life.should_stop()

    async def run(
        self,
        fetches: object,
        feed_dict: Feeds | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Run a step with hooks, and repeat it in a new session if a peer was lost.

        Arguments are as in `Session.run`. `timeout` limits each attempt of the step, in seconds; it covers neither
        hooks nor the creation of a new session. Several tasks may call this concurrently: of runs that fail together,
        one creates the new session for all.

        Raises:
            FailedPreconditionError: the session is closed, or a stop has been requested.
            DeadlineExceededError: no working session could be created in time.
            OpError, …: as `Session.run`, and the errors of hooks.
        """
        if timeout is not None:
            options = replace(options or RunOptions(), timeout=timeout)
        return await self._again(lambda life: life.run(fetches, feed_dict, options, run_metadata))

    async def run_step_fn(self, step_fn: Callable[..., object]) -> Any:
        """Return the result of `step_fn(step_context)`, a plain or coroutine function that uses the session directly.

        Raises:
            StopAsyncIteration: it has called `step_context.request_stop()`.
            InvalidArgumentError: its parameters are not exactly `step_context`.
            Exception: as `run`, and the errors of `step_fn`.
        """
        names = tuple(inspect.signature(step_fn).parameters)
        if names != ("step_context",):
            raise InvalidArgumentError(
                "wrong parameters of step_fn", expected="one parameter, step_context", actual=", ".join(names) or "none"
            )

        async def step(life: SessionInstance) -> object:
            try:
                # Called inside this coroutine, a plain function may raise StopIteration, which is translated below.
                made = step_fn(StepContext(life.session, life.run))
                return await made if inspect.isawaitable(made) else made
            except StopIteration as stop:
                raise StopAsyncIteration(*stop.args) from stop

        return await self._again(step)

    async def _again(self, step: Callable[[SessionInstance], Awaitable[object]]) -> object:
        """Run the step, in new session instances as often as needed, and return its result."""
        # No limit on the number of attempts: `Patience` limits the time.
        while True:
            life = await self._open()
            try:
                result = await step(life)
            except Exception as error:
                if not self._is_to_be_repeated(life, error):
                    raise
            else:
                if self._patience is not None:
                    # Only a whole step ends a series of failures: a new session alone may still be unable to run.
                    self._patience.succeeded()
                return result

    def _is_to_be_repeated(self, life: SessionInstance, error: Exception) -> bool:
        """Return whether to repeat a failed step in a new session instance; retire the current one if it is lost."""
        # The step may have failed only because the instance was retired, which closes its session and queues.
        if life.retired:
            return not self._closed and not (self._at_most_once and self._counts_still(error))
        failure = life.task_failure()
        # If a task, such as a queue runner, has failed, its failure is the reason why the step failed.
        cause = error if isinstance(error, _LOST) or failure is None else failure
        if not self._recovers_from(cause):
            return False
        self._lose(life, cause)
        return not (self._at_most_once and self._counts_still(error))

    def _counts_still(self, error: Exception) -> bool:
        """Return whether the failed step may have been applied and the new session does not roll it back."""
        rolls_back = getattr(self._creator, "rolls_back", True)
        # Errors of other classes, such as those of hooks, do not tell whether the step was applied.
        return not rolls_back and (not isinstance(error, OpError) or error.may_have_been_applied)


class MonitoredSession(_Monitored):
    """A session with hooks that restores, initializes, stops, and recovers from lost peers.

    Args:
        session_creator: Creates the sessions; by default a `ChiefSessionCreator`.
        hooks: Hooks, called around the session and each run in this order.
        stop_grace_period_secs: Seconds that queue runners have to end on their own.
        max_recovery_secs: Seconds during which to try for a working session after a failure.
        at_most_once: Do not repeat a step that may already have been applied, unless the new session restores a
            checkpoint, as the chief's does. The caller gets its error and may continue to call `run`.

    Use it as `async with MonitoredSession(...) as sess: while not sess.should_stop(): await sess.run(train_op)`.
    Entering the block calls `begin` of the hooks, finalizes the graph, creates the session and starts the queue
    runners. Its end calls `end` of the hooks and closes everything. OutOfRangeError, StopIteration and
    StopAsyncIteration end the block without an error.

    After UnavailableError and AbortedError the session is closed and created again, the hooks are notified, and the run
    is repeated. The chief continues from the latest checkpoint. A worker continues with the variables as they are, so a
    step whose response was lost may count twice (unless `at_most_once`).
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
        *,
        max_recovery_secs: float = 7200,
        at_most_once: bool = False,
    ) -> None:
        super().__init__(session_creator, hooks, stop_grace_period_secs, max_recovery_secs, at_most_once)


class SingularMonitoredSession(_Monitored):
    """A monitored session of one process that does not recover: a lost peer is an error.

    Args:
        hooks, stop_grace_period_secs: As in `MonitoredSession`.
        scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path: As in `ChiefSessionCreator`.
    """

    def __init__(
        self,
        hooks: Iterable[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str | Worker = "",
        config: SessionConfig | None = None,
        checkpoint_dir: str | Path | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | Path | None = None,
    ) -> None:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        super().__init__(creator, hooks, stop_grace_period_secs, None)

    def raw_session(self) -> Any:
        """Return the underlying session, to run without hooks, save or restore; None once it is closed."""
        return None if self._closed or self._life is None else self._life.session
