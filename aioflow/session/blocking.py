"""What a session has for callers who block, beside `Session.run_sync`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, TypeVar

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
        """
        check_kind(awaitable, Awaitable, "what is waited for", "a coroutine")

        async def finished() -> T:
            self._check_open()
            return await awaitable

        result: T = self._sync_runner.run(finished())
        return result
