"""One life of a monitored session: a session from when it is made to when it is closed, its coordinator, its tasks.

It is lived in a task of its own, so that it does not depend on which of several runs began it, nor on whether that
run is still wanted. What ends one life waits for nothing: the next one waits for its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from aioflow.config import RunOptions
from aioflow.errors import CancelledError, FailedPreconditionError, OpError
from aioflow.graph.graph import Graph, GraphKeys
from aioflow.runtime.stats import RunMetadata
from aioflow.train.coordinator import Coordinator
from aioflow.train.monitored.hooked_run import run_with_hooks
from aioflow.train.monitored.session_creators import SessionCreator
from aioflow.train.monitored.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, called
from aioflow.train.queue_runner import start_queue_runners

__all__ = ["Life"]

_LOGGER: Final = logging.getLogger("aioflow.train")


class Life:
    """A session while it lasts.

    Args:
        creator: Makes the session.
        hooks: Told of it, and asked around each run.
        graph: The default graph where hooks and the creator are called.
        grace: Seconds that tasks of the coordinator have to end by themselves.

    Attributes:
        session: The session; None before it is made.
        coord: Owns the queue runners and what hooks have started.
        opened: Done when the session may be used; holds the error if it cannot be.
        ended: Done when nothing of it is left.
        retired: Another life takes its place: whatever fails in this one is to be done again there.
        failure: What a task of the coordinator failed with, once it has ended.
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

    async def live(self, before: Life | None, delay: float) -> None:
        """The body of its task, from the end of the life before, and `delay` seconds after that, to the end of this."""
        try:
            if before is not None:
                await asyncio.wait([before.ended])
            await asyncio.sleep(delay)
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
            if task is not None and not task.cancelling():  # nobody has cancelled this: a hook waited for what was
                self._fail(CancelledError("what a hook waited for was cancelled while the session was made"))
            raise
        except Exception as error:
            self._fail(error)
        finally:
            self.opened.cancel()
            self.ended.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self.opened.done():
            self.failure = error
        else:
            self.opened.set_exception(error)
            self.opened.exception()  # those who wait for it get it; if nobody does, it is of no interest

    async def _serve(self, coord: Coordinator) -> None:
        with self._graph.as_default():
            if self._graph.get_collection(GraphKeys.QUEUE_RUNNERS):
                start_queue_runners(self.session, coord)
            for hook in self._hooks:
                await called(hook.after_create_session, self.session, coord)
        self.opened.set_result(None)
        await self._closing.wait()
        coord.request_stop()
        await coord.join(stop_grace_period_secs=self._grace)

    async def _close_session(self) -> None:
        try:
            await called(self.session.close)
        except OpError as error:  # a peer that has gone cannot say goodbye
            _LOGGER.warning("the session was not closed properly: %s", error)

    def end(self) -> None:
        """Close the session; `ended` says when that is done."""
        self._closing.set()

    def task_failure(self) -> Exception | None:
        """What a task of the coordinator has failed with."""
        try:
            if self.coord is not None:
                self.coord.raise_requested_exception()
        except Exception as error:
            return error
        return None

    def should_stop(self) -> bool:
        """Whether a hook or a task has asked for the end."""
        return self._stop_requested or (self.coord is not None and self.coord.should_stop())

    async def run(
        self,
        fetches: Any,
        feed_dict: Any = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """A run with hooks.

        Raises:
            FailedPreconditionError: somebody has asked for the end.
        """
        if self.should_stop():
            raise FailedPreconditionError(
                "run was called after a stop had been requested", expected="should_stop() to be asked", actual="stopped"
            )
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), self.session)
        result = await run_with_hooks(self._hooks, context, options, run_metadata)
        self._stop_requested = self._stop_requested or context.stop_requested
        return result
