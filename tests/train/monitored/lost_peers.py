"""Sessions whose peers are lost on purpose: every run asks a script what becomes of it."""

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
    """Says which runs fail: `before` and `after` have numbers of runs, from 0, over all sessions.

    Only runs of `fetch` count.

    Attributes:
        applied: How many of them took effect.
        created: How many sessions were made; `refused` is how many attempts are to fail first.
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
        """Whether a run is one of `fetch`."""
        return fetches is self.fetch or (isinstance(fetches, list | tuple) and any(map(self.counts, fetches)))

    async def run(self, run: Callable[[], Any], fetches: Any) -> Any:
        """Run it, and lose the peer before or after."""
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
    """A session whose runs go by a script."""

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
    """Stands for a session where nothing is to be computed: every fetch gives 0, at once, on any loop."""

    def __init__(self) -> None:
        self.graph = default_graph()
        self.closed = False

    async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        return [0 for _ in fetches] if isinstance(fetches, list) else 0

    async def close(self) -> None:
        self.closed = True


class NoSessionCreator(SessionCreator):
    """Makes them."""

    def create_session(self) -> NoSession:
        return NoSession()


class FlakyCreator(SessionCreator):
    """Sessions of another creator, by a script."""

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
    """Notes every call of a hook."""

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
