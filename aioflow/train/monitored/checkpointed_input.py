"""Input whose position is in the checkpoint, so that training goes on at the record where the checkpoint stood.

The position is a variable of the graph, so that one file holds it together with the values that were trained by it. It
is written when a checkpoint is made, at a moment when no step is in flight that has got feeds: then what has been given
out is what has been applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias

from aioflow.checks.numbers import check_number
from aioflow.errors import AbortedError, DataLossError, DeadlineExceededError, OutOfRangeError, UnavailableError
from aioflow.graph import dtypes
from aioflow.graph.argument_kinds import check_callable, check_text
from aioflow.ops.core import placeholder
from aioflow.ops.variables.getting import get_variable
from aioflow.ops.variables.initializers import constant_initializer
from aioflow.train.coordinator import Coordinator
from aioflow.train.monitored.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, called
from aioflow.train.monitored.step_of_graph import required_global_step

__all__ = ["CheckpointedInput", "InputSource", "SeekableFeeds"]

Feeds: TypeAlias = Mapping[Any, Any]

_LOST: Final = (AbortedError, UnavailableError)
_TAKEN: Final = b"="  # before every state; an empty value says that there is none yet


class InputSource(Protocol):
    """Where feeds come from, with a position that can be told and taken up again.

    `restore` may be a coroutine function.
    """

    def __aiter__(self) -> AsyncIterator[Feeds]:
        """Itself: each `anext` gives the feeds of one step."""

    def state(self) -> bytes:
        """Where it stands: after the feeds that were given last."""

    def restore(self, state: bytes) -> Any:
        """Go on from there, whatever has been given since."""


class SeekableFeeds:
    """A source of feeds that can be had from any number on.

    Args:
        open_at: `open_at(n)` gives an iterable or async iterable of feed dictionaries, without the first n.
    """

    def __init__(self, open_at: Callable[[int], Iterable[Feeds] | AsyncIterable[Feeds]]) -> None:
        check_callable(open_at, "what opens the feeds")
        self._open_at = open_at
        self._number = 0
        self._feeds: Iterator[Feeds] | AsyncIterator[Feeds] | None = None

    def __aiter__(self) -> SeekableFeeds:
        return self

    async def __anext__(self) -> Feeds:
        """The feeds of the next step. Raises StopAsyncIteration at the end."""
        if self._feeds is None:
            opened = self._open_at(self._number)
            self._feeds = aiter(opened) if isinstance(opened, AsyncIterable) else iter(opened)
        if isinstance(self._feeds, AsyncIterator):
            feeds = await anext(self._feeds)
        else:
            try:
                feeds = next(self._feeds)
            except StopIteration:
                raise StopAsyncIteration from None
        self._number += 1
        return feeds

    def state(self) -> bytes:
        """The number of the next feeds, in decimal digits."""
        return b"%d" % self._number

    async def restore(self, state: bytes) -> None:
        """Go on with that number.

        Raises:
            DataLossError: it is no number.
        """
        if not state.isdigit():
            raise DataLossError("the position of the input is damaged", expected="decimal digits", actual=state)
        feeds, self._feeds, self._number = self._feeds, None, int(state)
        for name in ("aclose", "close"):
            if hasattr(feeds, name):
                await called(getattr(feeds, name))
                break


class CheckpointedInput(SessionRunHook):
    """Feeds every run with hooks from a source, and keeps the source's position in the checkpoint.

    Give it as `input` to `MonitoredTrainingSession`, or as a hook and as `input` to `CheckpointSaverHook`. A new
    session continues where its checkpoint stood: what was read after it is read again, what was applied before it is
    not. So among the steps whose updates are in the variables, each of the feeds occurs once, also where several runs
    are in flight. It belongs to the client that writes the checkpoints. A step that fails for another reason than a
    lost peer, or is cancelled, has used up its feeds.

    Args:
        source: An `InputSource`, such as `SeekableFeeds`. When it ends, the training does.
        name: Of the string variable that holds the position.
        follows_step: There is no variable: the position is the global step, in decimal digits. So any client may have
            such an input, if it takes one of the feeds for each global step, as in synchronous training.
        max_wait_secs: Seconds for which a checkpoint waits until the steps in flight are over.
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
        self._gate = asyncio.Lock()  # whoever gives out feeds, saves the position or changes it
        self._flying: set[SessionRunContext] = set()
        self._landed = asyncio.Event()
        self._lost: BaseException | None = None  # why feeds of this session may not have been applied
        self._session: Any = None

    @property
    def follows_step(self) -> bool:
        """Whether the position is the global step."""
        return self._follows_step

    def begin(self) -> None:
        """Make the variable."""
        self._start = self._source.state()
        if self._follows_step:
            self._step = required_global_step(self)
            return
        self._position = get_variable(self._name, [], dtypes.string, constant_initializer(b""), trainable=False)
        self._given = placeholder(dtypes.string, [], name=f"{self._name}/given")
        self._assign = self._position.assign(self._given, read_value=False)

    async def after_create_session(self, session: Any, coord: Coordinator) -> None:
        """Go to the position of the checkpoint."""
        await self.take_up(session)

    async def take_up(self, session: Any) -> None:
        """Go to the position that the session's variable holds, once for each session."""
        async with self._gate:
            if self._session is not session:
                await called(self._source.restore, await self._read(session))
                self._flying.clear()
                self._lost = None
                self._session = session

    async def _read(self, session: Any) -> bytes:
        if self._follows_step:
            return b"%d" % int(await session.run(self._step))
        state = bytes(await session.run(self._position))
        return state.removeprefix(_TAKEN) if state else self._start

    async def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """The next feeds.

        Raises:
            OutOfRangeError: there are no more.
        """
        async with self._gate:
            if run_context.session is not self._session:  # the source stands where the new session needs it
                raise AbortedError("the session of the run is no longer used", expected="the newest", actual="another")
            try:
                feeds = await anext(aiter(self._source))
            except StopAsyncIteration:
                raise OutOfRangeError("the input has ended", expected="more feeds", actual="none") from None
            self._flying.add(run_context)
            run_context.when_step_ends(self._land)
            return SessionRunArgs(None, feeds)

    def _land(self, run_context: SessionRunContext) -> None:
        if isinstance(run_context.step_error, _LOST):
            self._lost = run_context.step_error
        self._flying.discard(run_context)
        self._landed.set()

    @asynccontextmanager
    async def saving(self, session: Any) -> AsyncIterator[None]:
        """A block in which the session's variable holds the position, and no step begins.

        Raises:
            AbortedError: a step of the session was lost with a peer.
            DeadlineExceededError: steps were in flight for `max_wait_secs`.
        """
        await self.take_up(session)
        async with self._gate:
            await self._until_landed()
            if self._lost is not None:  # the position would be behind feeds that nobody has applied
                raise AbortedError("the session has lost a step, and with it its feeds") from self._lost
            if not self._follows_step:
                await session.run(self._assign, {self._given: _TAKEN + self._source.state()})
            yield

    async def _until_landed(self) -> None:
        try:
            async with asyncio.timeout(self._max_wait_secs):
                while self._flying:
                    self._landed.clear()
                    await self._landed.wait()
        except TimeoutError as error:
            raise DeadlineExceededError(
                "a checkpoint waited for steps in flight to end",
                expected=f"at most {self._max_wait_secs:g} s",
                actual=f"{len(self._flying)} still running",
            ) from error
