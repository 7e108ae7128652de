"""The blocking interface of a session, besides `Session.run_sync`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, TypeVar

from aioflow.arguments import check_kind
from aioflow.errors import FailedPreconditionError

T = TypeVar("T")


class Blocking(ABC):
    """Mixin that waits for coroutines which run steps of a session."""

    _sync_runner: Any

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ClosedSessionError if the session is closed."""

    def wait_for(self, awaitable: Awaitable[T]) -> T:
        """Run a coroutine that uses this session, block until it ends, and return its result.

            session.wait_for(model.initialize(session))
            session.wait_for(saver.save(session, path))

        If an event loop already runs in this thread (a notebook), the coroutine runs in another thread.

        Raises:
            ClosedSessionError: the session is closed. The coroutine is then closed, too.
            FailedPreconditionError: the coroutine has been awaited before.
        """
        check_kind(awaitable, Awaitable, "the awaitable", "a coroutine")
        if not inspect.iscoroutine(awaitable):
            return self._finished(awaitable)
        if (state := inspect.getcoroutinestate(awaitable)) != inspect.CORO_CREATED:
            raise FailedPreconditionError(
                f"{awaitable.__qualname__}() has already been awaited", expected="a new coroutine", actual=state
            )
        try:
            result: T = self._finished(awaitable)
        finally:
            awaitable.close()  # avoids "never awaited" warnings if it was not started
        return result

    def _finished(self, awaitable: Awaitable[T]) -> T:
        # The runner takes only coroutines.
        async def finished() -> T:
            return await awaitable

        self._check_open()
        result: T = self._sync_runner.run(finished())
        return result
