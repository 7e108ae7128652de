"""Hooks that feed every run, and that fetch values at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from aioflow.errors import OutOfRangeError
from aioflow.train.monitored.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, called

__all__ = ["FeedFnHook", "FinalOpsHook"]

_LOGGER: Final = logging.getLogger("aioflow.train")


class FinalOpsHook(SessionRunHook):
    """Fetches values at the end of the training.

    Args:
        final_ops: As the fetches of `Session.run`.
        final_ops_feed_dict: What is fed.
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None) -> None:
        self._final_ops = final_ops
        self._feeds = final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The values, after the end."""
        return self._values

    async def end(self, session: Any) -> None:
        """Fetch them."""
        if self._final_ops is None:
            return
        try:
            self._values = await session.run(self._final_ops, self._feeds)
        except OutOfRangeError as error:
            _LOGGER.warning("what FinalOpsHook fetches reads an input that has ended: %s", error)
            raise


class FeedFnHook(SessionRunHook):
    """Feeds each run what a function gives.

    Args:
        feed_fn: Called before each run, without arguments; gives a feed dictionary. May be a coroutine function.
    """

    def __init__(self, feed_fn: Callable[[], Any]) -> None:
        self.feed_fn = feed_fn

    async def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Call it."""
        return SessionRunArgs(None, await called(self.feed_fn))
