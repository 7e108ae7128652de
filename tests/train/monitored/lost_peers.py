"""Sessions that lose their peers on purpose, as a script determines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aioflow.errors import UnavailableError
from aioflow.graph.default_graph import default_graph
from aioflow.train import ChiefSessionCreator, SessionCreator, SessionRunContext, SessionRunHook, SessionRunValues
from aioflow.train.monitored.session_run_hook import called

__all__ = ["FlakyCreator", "FlakySession", "Log", "NoSession", "NoSessionCreator", "Script"]


class Script:
    """The runs of `fetch` that fail, by number.

    `before` and `after` hold numbers of runs, from 0, over all sessions: the peer is lost before or after such a run.
    `refused` holds numbers of attempts to create a session that fail.

    Attributes:
        applied: The number of runs that took effect.
        created: The number of sessions that were created.
    """

    def __init__(
        self, fetch: Any, before: tuple[int, ...] = (), after: tuple[int, ...] = (), refused: tuple[int, ...] = ()
    ) -> None:
        self.fetch = fetch
        self.before = before
        self.after = after
        self.refused = refused
        self.runs = 0
        self.applied = 0
        self.attempts = 0
        self.created = 0
        self.kind: type[Exception] = UnavailableError
        self.hold: asyncio.Event | None = None

    def counts(self, fetches: Any) -> bool:
        """Return True if `fetches` is or contains `fetch`."""
        return fetches is self.fetch or (isinstance(fetches, list | tuple) and any(map(self.counts, fetches)))

    async def run(self, run: Callable[[], Any], fetches: Any) -> Any:
        """Run `run`, and lose the peer before or after it if the script says so."""
        if not self.counts(fetches):
            return await run()
        number, self.runs = self.runs, self.runs + 1
        if number in self.before:
            raise self.kind("the peer is gone, before")
        if self.hold is not None:
            await self.hold.wait()
        result = await run()
        self.applied += 1
        if number in self.after:
            raise self.kind("the peer is gone, after")
        return result


class FlakySession:
    """A session whose runs follow a script."""

    def __init__(self, session: Any, script: Script) -> None:
        self.inner = session
        self.graph = session.graph
        self._script = script

    async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        return await self._script.run(lambda: self.inner.run(fetches, feed_dict, **kwargs), fetches)

    def make_callable(self, fetches: Any, feed_list: Any = None) -> Any:
        return self.inner.make_callable(fetches, feed_list)

    async def close(self) -> None:
        await self.inner.close()


class NoSession:
    """A session that computes nothing: every fetch is 0, immediately and on any loop."""

    def __init__(self) -> None:
        self.graph = default_graph()
        self.closed = False

    async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        return [0 for _ in fetches] if isinstance(fetches, list) else 0

    async def close(self) -> None:
        self.closed = True


class NoSessionCreator(SessionCreator):
    """A creator of `NoSession` objects."""

    def create_session(self) -> NoSession:
        return NoSession()


class FlakyCreator(SessionCreator):
    """A creator of sessions of another creator that follow a script."""

    def __init__(self, script: Script, creator: SessionCreator | None = None) -> None:
        self._script = script
        self._creator: Any = creator or ChiefSessionCreator()

    async def create_session(self) -> FlakySession:
        number, self._script.attempts = self._script.attempts, self._script.attempts + 1
        if number in self._script.refused:
            raise UnavailableError("nobody answers")
        session = await called(self._creator.create_session)
        self._script.created += 1
        return FlakySession(session, self._script)


class Log(SessionRunHook):
    """A hook that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    async def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append("after_create_session")

    def before_run(self, run_context: SessionRunContext) -> None:
        self.calls.append("before_run")

    async def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self.calls.append("after_run")

    def end(self, session: Any) -> None:
        self.calls.append("end")
