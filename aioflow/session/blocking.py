"""What a session has for callers who block, beside `Session.run_sync`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, TypeVar

from aioflow.errors import FailedPreconditionError
from aioflow.graph.argument_kinds import check_kind

__all__ = ["Blocking"]

T = TypeVar("T")


class Blocking(ABC):
    """Waits for coroutines that run steps of a session."""

    _sync_runner: Any

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ClosedSessionError, once it is closed."""

    def wait_for(self, awaitable: Awaitable[T]) -> T:
        """What a coroutine gives that runs steps of this session, for callers who block, as of `run_sync`:
        `session.wait_for(model.initialize(session))`, `session.wait_for(saver.save(session, path))`.

        Where an event loop runs in this thread already (a notebook), it waits in another thread.

        Raises:
            ClosedSessionError: the session is closed. The coroutine is closed then.
            FailedPreconditionError: somebody has waited for the coroutine before.
        """
        check_kind(awaitable, Awaitable, "what is waited for", "a coroutine")
        if not inspect.iscoroutine(awaitable):
            return self._finished(awaitable)
        if (state := inspect.getcoroutinestate(awaitable)) != inspect.CORO_CREATED:
            raise FailedPreconditionError(
                f"{awaitable.__qualname__}() has been waited for before", expected="a new coroutine", actual=state
            )
        try:
            result: T = self._finished(awaitable)
        finally:
            awaitable.close()  # for where it was not even begun
        return result

    def _finished(self, awaitable: Awaitable[T]) -> T:
        async def finished() -> T:
            return await awaitable

        self._check_open()
        result: T = self._sync_runner.run(finished())
        return result
