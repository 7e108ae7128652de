"""Input whose position is part of the checkpoint, so that training resumes at the right record.

The position is a variable of the graph, so that one file holds it together with the values trained up to it. It is
written when a checkpoint is made, while no step with feeds is in flight: all feeds handed out have then been applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from aioflow.arguments import check_callable, check_number, check_text
from aioflow.errors import AbortedError, DataLossError, DeadlineExceededError, OutOfRangeError, UnavailableError
from aioflow.graph import dtypes
from aioflow.ops.core import placeholder
from aioflow.ops.variables.getting import get_variable
from aioflow.ops.variables.initializers import constant_initializer
from aioflow.session.fetches import Feeds
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator
from aioflow.train.monitored.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, called
from aioflow.train.monitored.timers import required_global_step

_LOST: Final = (AbortedError, UnavailableError)
_TAKEN: Final = b"="  # prefix of every stored position; an empty value means that no position is stored yet


class InputSource(Protocol):
    """A source of feeds with a position that can be read and restored.

    `restore` may be a coroutine function.
    """

    def __aiter__(self) -> AsyncIterator[Feeds]:
        """Return the source itself; each `anext` returns the feeds of one step."""

    def state(self) -> bytes:
        """Return the position: after the feeds that were returned last."""

    def restore(self, state: bytes) -> object:
        """Continue from a position, whatever has been returned since."""


class SeekableFeeds:
    """A feed source that can seek to any step.

    Args:
        open_at: Function of a number n that returns an iterable or async iterable of feed dictionaries without the
            first n.
    """

    def __init__(self, open_at: Callable[[int], Iterable[Feeds] | AsyncIterable[Feeds]]) -> None:
        check_callable(open_at, "open_at")
        self._open_at = open_at
        self._number = 0
        self._feeds: Iterator[Feeds] | AsyncIterator[Feeds] | None = None

    def __aiter__(self) -> SeekableFeeds:
        return self

    async def __anext__(self) -> Feeds:
        """Return the feeds of the next step. Raise StopAsyncIteration at the end."""
        if self._feeds is None:
            opened = self._open_at(self._number)
            # An async iterator waits on the event loop; a plain one runs on it and should not block.
            self._feeds = aiter(opened) if isinstance(opened, AsyncIterable) else iter(opened)
        if isinstance(self._feeds, AsyncIterator):
            feeds = await anext(self._feeds)
        else:
            try:
                feeds = next(self._feeds)
            except StopIteration:
                # A StopIteration that leaves a coroutine would become a RuntimeError (PEP 479).
                raise StopAsyncIteration from None
        self._number += 1
        return feeds

    def state(self) -> bytes:
        """Return the number of the next feeds, in decimal digits."""
        return b"%d" % self._number

    async def restore(self, state: bytes) -> None:
        """Close the open iterator and continue at the step number that `state` holds.

        Raises:
            DataLossError: `state` is not a number.
        """
        if not state.isdigit():
            raise DataLossError("the saved position of the input is malformed", expected="decimal digits", actual=state)
        # Replaced before closing: if `close` fails or is cancelled, the next `anext` opens at the new position.
        feeds, self._feeds, self._number = self._feeds, None, int(state)
        # Async generators have `aclose`, plain ones `close`; other iterators have neither.
        for name in ("aclose", "close"):
            if hasattr(feeds, name):
                await called(getattr(feeds, name))
                break


class CheckpointedInput(SessionRunHook):
    """A hook that feeds every run from a source and keeps the source's position in the checkpoint.

    Pass it as `input` to `MonitoredTrainingSession`, or as a hook and as `input` to `CheckpointSaverHook`. It must run
    in the client that writes the checkpoints.

    A new session continues at the position of its checkpoint: feeds read after the checkpoint are read again, feeds
    applied before it are not. Each feed thus occurs once among the steps whose updates are in the variables, even if
    several runs are in flight. A step that is cancelled, or fails for a reason other than a lost peer, has consumed its
    feeds.

    Args:
        source: An `InputSource`, such as `SeekableFeeds`. Training ends when the source does.
        name: Name of the string variable that holds the position.
        follows_step: Use no variable: the position is the global step, in decimal digits. Any client may then have such
            an input, if it consumes one item per global step, as in synchronous training.
        max_wait_secs: Seconds that a checkpoint waits for the steps in flight.
    """

    def __init__(
        self,
        source: InputSource,
        name: str = "input_position",
        *,
        follows_step: bool = False,
        max_wait_secs: float = 600,
    ) -> None:
        check_text(name, "the name of the variable for the position")
        check_number(max_wait_secs, "max_wait_secs", "a number of seconds")
        self._source = source
        self._name = name
        self._follows_step = follows_step
        self._max_wait_secs = max_wait_secs
        self._gate = asyncio.Lock()  # held while feeds are handed out, or the position is saved or changed
        self._flying: set[SessionRunContext] = set()
        self._landed = asyncio.Event()
        self._lost: BaseException | None = None  # error that may have kept feeds of this session from being applied
        self._session: Session | None = None

    @property
    def follows_step(self) -> bool:
        """True if the position is the global step."""
        return self._follows_step

    def begin(self) -> None:
        """Create the variable and the nodes that assign it; with `follows_step`, only find the global step.

        Raises:
            FailedPreconditionError: `follows_step` is set and the graph has no global step.
        """
        # A session without a stored position starts here again: an earlier session may have advanced the source.
        self._start = self._source.state()
        if self._follows_step:
            self._step = required_global_step(self)
            return
        self._position = get_variable(self._name, [], dtypes.string, constant_initializer(b""), trainable=False)
        self._given = placeholder(dtypes.string, [], name=f"{self._name}/given")
        # Without reading back: the value would be sent to the client for nothing.
        self._assign = self._position.assign(self._given, read_value=False)

    async def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Seek to the position in the checkpoint."""
        await self.take_up(session)

    async def take_up(self, session: Any) -> None:
        """Seek to the position in the session's variable, once per session."""
        # `saving` also calls this: a hook may save a new session before this hook's `after_create_session`.
        # Under the gate, so that of several callers the first seeks and the others find it done.
        async with self._gate:
            if self._session is not session:
                # Sought before the state is marked as taken up: after a failure the next caller tries again.
                await called(self._source.restore, await self._read(session))
                self._flying.clear()
                self._lost = None
                self._session = session

    async def _read(self, session: Session) -> bytes:
        if self._follows_step:
            return b"%d" % int(await session.run(self._step))
        state = bytes(await session.run(self._position))
        return state.removeprefix(_TAKEN) if state else self._start

    async def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Return the next feeds.

        Raises:
            OutOfRangeError: the source has ended.
            AbortedError: the run belongs to an earlier session.
        """
        async with self._gate:
            # The source already stands where the new session needs it, so a run of an old session must not advance it.
            if run_context.session is not self._session:
                raise AbortedError("the session of the run is no longer used", expected="the newest", actual="another")
            try:
                feeds = await anext(aiter(self._source))
            except StopAsyncIteration:
                raise OutOfRangeError("the input has ended", expected="more feeds", actual="none") from None
            # Before the feeds are returned: a checkpoint that starts now must wait for this step.
            self._flying.add(run_context)
            run_context.when_step_ends(self._land)
            return SessionRunArgs(None, feeds)

    def _land(self, run_context: SessionRunContext) -> None:
        if isinstance(run_context.step_error, _LOST):
            # A step that fails for another reason counts as having consumed its feeds.
            self._lost = run_context.step_error
        self._flying.discard(run_context)
        self._landed.set()

    @asynccontextmanager
    async def saving(self, session: Any) -> AsyncIterator[None]:
        """Write the position to the session's variable and keep steps from starting inside the block.

        Raises:
            AbortedError: a step of the session was lost with a peer.
            DeadlineExceededError: steps were in flight for `max_wait_secs`.
        """
        await self.take_up(session)
        async with self._gate:
            # Under the gate no new feeds are handed out, so the number of steps in flight only falls.
            await self._until_landed()
            # The source is past the feeds of the lost step, which may not have been applied.
            if self._lost is not None:
                raise AbortedError("the session lost a step together with its feeds") from self._lost
            if not self._follows_step:
                # In the session, not through the hooks: a run with hooks would wait for the gate.
                await session.run(self._assign, {self._given: _TAKEN + self._source.state()})
            yield

    async def _until_landed(self) -> None:
        try:
            async with asyncio.timeout(self._max_wait_secs):
                while self._flying:
                    # Cleared before each wait: `_land` sets it for every step, and only the last one ends the loop.
                    self._landed.clear()
                    await self._landed.wait()
        except TimeoutError as error:
            raise DeadlineExceededError(
                "a checkpoint timed out waiting for running steps",
                expected=f"at most {self._max_wait_secs:g} s",
                actual=f"{len(self._flying)} still running",
            ) from error
