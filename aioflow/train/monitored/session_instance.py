"""One session instance of a monitored session: the session from creation to close, its coordinator, its tasks.

It runs in a task of its own, so that it depends neither on which of several runs started it nor on whether that run is
cancelled. Ending an instance does not wait; the next instance waits until it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioflow.config import RunOptions
from aioflow.errors import CancelledError, DTypeError, FailedPreconditionError, OpError
from aioflow.graph.graph import Graph, GraphKeys
from aioflow.runtime.stats import RunMetadata
from aioflow.session.fetches import Feeds
from aioflow.train.coordinator import Coordinator
from aioflow.train.monitored.session_creation import SessionCreator
from aioflow.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    called,
)
from aioflow.train.queue_runner import start_queue_runners

# ── one run with hooks: collect their requests, run everything as one step, pass each hook its results ────────────────


async def run_with_hooks(
    hooks: Sequence[SessionRunHook],
    context: SessionRunContext,
    options: RunOptions | None,
    run_metadata: RunMetadata | None,
) -> object:
    """Run a step with hooks and return the results of `context.original_args`.

    Args:
        hooks: Hooks to call before and after the step.
        context: The run.
        options: Options of the caller, merged with those of the hooks.
        run_metadata: Receives the metadata of the step.

    Raises:
        FailedPreconditionError: a tensor is fed twice.
        DTypeError: `before_run` of a hook returned neither SessionRunArgs nor None.
    """
    try:
        asked = [await _request(hook, context) for hook in hooks]
        caller = context.original_args
        feeds = _merged_feeds(asked, caller.feed_dict)
        chosen = _merged_options(asked, options)
        metadata = run_metadata if run_metadata is not None else RunMetadata()
        wanted = [args.fetches for args in asked if args is not None and args.fetches is not None]
        # Options are passed only if one is set, so that the session can take its fast path.
        special: Mapping[str, Any] = {} if chosen == RunOptions() else {"options": chosen, "run_metadata": metadata}
        # One step for all: the values of the hooks belong to the same step as those of the caller.
        result, *others = await context.session.run([caller.fetches, *wanted], feeds, **special)
    except BaseException as error:
        # Hooks that have prepared for the step, such as `CheckpointedInput`, must learn of every end.
        context.step_ends(error)
        raise
    # Before `after_run`, whose errors must not count as errors of the step.
    context.step_ends()
    values = iter(others)
    for hook, args in zip(hooks, asked, strict=True):
        found = next(values) if args is not None and args.fetches is not None else None
        await called(hook.after_run, context, SessionRunValues(found, chosen, metadata))
    return result


async def _request(hook: SessionRunHook, context: SessionRunContext) -> SessionRunArgs | None:
    args = await called(hook.before_run, context)
    if args is not None and not isinstance(args, SessionRunArgs):
        raise DTypeError(
            f"before_run of {type(hook).__name__} returned something else",
            expected="SessionRunArgs or None",
            actual=repr(args),
        )
    return args


def _merged_feeds(asked: Sequence[SessionRunArgs | None], of_caller: Feeds | None) -> dict[object, object]:
    merged: dict[object, object] = {}
    for args in asked:
        if args is not None and args.feed_dict:
            _add(merged, args.feed_dict, "a tensor is fed by two hooks")
    # The caller's feeds last: a clash is reported as one between caller and hook.
    _add(merged, of_caller or {}, "a tensor is fed by a hook and by the caller of `run`")
    return merged


def _add(merged: dict[object, object], feeds: Feeds, problem: str) -> None:
    twice = [getattr(key, "name", key) for key in feeds if key in merged]
    if twice:
        raise FailedPreconditionError(problem, expected="one feed for each tensor", actual=twice)
    merged.update(feeds)


def _merged_options(asked: Sequence[SessionRunArgs | None], of_caller: RunOptions | None) -> RunOptions:
    """Return options that satisfy all requests: a trace if any requests it, and the largest timeout."""
    every = [args.options for args in asked if args is not None and args.options is not None]
    if of_caller is not None:
        every.append(of_caller)
    if not every:
        return RunOptions()
    level = max(options.trace_level for options in every)
    # The largest limit: a hook that needs more time must not be stopped by another one's smaller limit.
    limits = [options.timeout for options in every if options.timeout is not None]
    return RunOptions(level, max(limits, default=None), any(options.output_partition_graphs for options in every))


# ── the session instance ──────────────────────────────────────────────────────────────────────────────────────────────


_LOGGER: Final = logging.getLogger("aioflow.train")


class SessionInstance:
    """One session instance.

    Args:
        creator: Creates the session.
        hooks: Hooks, called with the new session and around each run.
        graph: Default graph while hooks and the creator are called.
        grace: Seconds that the coordinator's tasks have to end on their own.

    Attributes:
        session: The session; None before it is created.
        coord: Owner of the queue runners and of tasks started by hooks.
        opened: Done when the session is usable; holds the error if it cannot be created.
        ended: Done when the session is closed and all tasks have ended.
        retired: True once another instance replaces this one; failed runs are then repeated there.
        failure: Error of a task of the coordinator, set when the instance has ended.
    """

    def __init__(self, creator: SessionCreator, hooks: Sequence[SessionRunHook], graph: Graph, grace: float) -> None:
        loop = asyncio.get_running_loop()
        self._creator = creator
        self._hooks = hooks
        self._graph = graph
        self._grace = grace
        self._closing = asyncio.Event()
        self._stop_requested = False
        self.session: Any = None
        self.coord: Coordinator | None = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.retired = False
        self.failure: Exception | None = None

    async def live(self, before: SessionInstance | None, delay: float) -> None:
        """Run this instance from creation to close: the body of its task.

        Args:
            before: The previous instance, whose end is awaited first.
            delay: Seconds to wait after that.
        """
        try:
            if before is not None:
                # `wait` raises nothing if the instance before has failed or was cancelled.
                await asyncio.wait([before.ended])
            await asyncio.sleep(delay)
            # No exception is clean here: the monitored session decides which ones end the training normally.
            async with Coordinator(()) as coord:
                self.coord = coord
                with self._graph.as_default():
                    self.session = await called(self._creator.create_session)
                try:
                    await self._serve(coord)
                finally:
                    await self._close_session()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # The task itself was not cancelled: a hook awaited something that was.
            if task is not None and not task.cancelling():
                self._fail(CancelledError("an awaitable of a hook was cancelled during the creation of the session"))
            raise
        except Exception as error:
            self._fail(error)
        finally:
            # No effect once `opened` is done. Otherwise its waiters see a cancelled instance and start another one.
            self.opened.cancel()
            # Always, since the next instance and `close` wait for it.
            self.ended.set_result(None)

    def _fail(self, error: Exception) -> None:
        # An error after the opening belongs to no waiter; `close` raises it.
        if self.opened.done():
            self.failure = error
        else:
            self.opened.set_exception(error)
            self.opened.exception()  # marks the error as retrieved: without waiters, it must not be logged

    async def _serve(self, coord: Coordinator) -> None:
        with self._graph.as_default():
            if self._graph.get_collection(GraphKeys.QUEUE_RUNNERS):
                start_queue_runners(self.session, coord)
            for hook in self._hooks:
                await called(hook.after_create_session, self.session, coord)
        # Only after all hooks: a run must not start before they have seen the session.
        self.opened.set_result(None)
        await self._closing.wait()
        coord.request_stop()
        # The queue runners end first; closing the session under them would make them fail.
        await coord.join(stop_grace_period_secs=self._grace)

    async def _close_session(self) -> None:
        try:
            await called(self.session.close)
        except OpError as error:  # a lost peer cannot take part in a graceful close
            _LOGGER.warning("closing the session failed: %s", error)

    def end(self) -> None:
        """Start closing the session without waiting; `ended` is done once it is closed."""
        self._closing.set()

    def task_failure(self) -> Exception | None:
        """Return the error of the first failed task of the coordinator, or None."""
        try:
            if self.coord is not None:
                self.coord.raise_requested_exception()
        except Exception as error:
            return error
        return None

    def should_stop(self) -> bool:
        """Return whether a hook or a task has requested a stop."""
        return self._stop_requested or (self.coord is not None and self.coord.should_stop())

    async def run(
        self,
        fetches: object,
        feed_dict: Feeds | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> object:
        """Run a step with hooks. Arguments are as in `Session.run`.

        Raises:
            FailedPreconditionError: a stop has been requested.
        """
        if self.should_stop():
            raise FailedPreconditionError(
                "run was called after a stop was requested",
                expected="a check of should_stop() before each run",
                actual="stopped",
            )
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), self.session)
        result = await run_with_hooks(self._hooks, context, options, run_metadata)
        self._stop_requested = self._stop_requested or context.stop_requested
        return result
