"""Hooks that feed every run, or fetch values at the end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aioflow.errors import OutOfRangeError
from aioflow.session.fetches import Feeds
from aioflow.session.session import Session
from aioflow.train.monitored.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, called

_LOGGER: Final = logging.getLogger("aioflow.train")


class FinalOpsHook(SessionRunHook):
    """A hook that fetches values at the end of the training.

    Args:
        final_ops: Fetches, as in `Session.run`.
        final_ops_feed_dict: Feeds.
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Feeds | None = None) -> None:
        self._final_ops = final_ops
        self._feeds = final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The fetched values; None before the end."""
        return self._values

    async def end(self, session: Session) -> None:
        """Fetch the values."""
        if self._final_ops is None:
            return
        try:
            self._values = await session.run(self._final_ops, self._feeds)
        except OutOfRangeError as error:
            _LOGGER.warning("a fetch of FinalOpsHook reads an input that has ended: %s", error)
            raise


class FeedFnHook(SessionRunHook):
    """A hook that feeds each run the result of a function.

    Args:
        feed_fn: Function called before each run, without arguments, that returns a feed dictionary. May be a coroutine
            function.
    """

    def __init__(self, feed_fn: Callable[[], Feeds | Awaitable[Feeds | None] | None]) -> None:
        self.feed_fn = feed_fn

    async def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Return the feeds of `feed_fn`."""
        return SessionRunArgs(None, await called(self.feed_fn))
