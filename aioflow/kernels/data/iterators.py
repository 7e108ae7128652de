"""Iterators: resources that pull elements through the stages of a dataset, one consumer at a time.

A fetch that has to wait continues in a task of the session. A consumer that is cancelled leaves that task running, and
the next consumer gets its element. So no element is lost, and stages are never cancelled in the middle.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Final

from aioflow.errors import (
    CancelledError,
    DataLossError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
)
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.data.stages import Components, DatasetValue, Pipeline, Stage, StagePosition
from aioflow.sync.background import Background
from aioflow.sync.fair_lock import FairLock
from aioflow.sync.waiting import wake_all

_VERSION: Final = 1


class _Rest:
    """The rest of a coroutine that has yielded a future, as an awaitable."""

    def __init__(self, begun: Coroutine[Any, Any, Any], future: Any) -> None:
        self._begun = begun
        self._future = future

    def __await__(self) -> Generator[Any, Any, Any]:
        future = self._future
        while True:
            try:
                value = yield future
            except BaseException as error:
                resume: Callable[[], Any] = partial(self._begun.throw, error)
            else:
                resume = partial(self._begun.send, value)
            try:
                future = resume()
            except StopIteration as done:
                return done.value


class Pull:
    """One fetch from the last stage: the position before it, and its outcome.

    Attributes:
        before: The position.
        elements, error: The outcome.
        task: The task that waits for it, or None if it has ended at once.
    """

    __slots__ = ("before", "elements", "error", "task")

    def __init__(self, before: StagePosition) -> None:
        self.before = before
        self.elements: list[Components] | None = None
        self.error: Exception | None = None
        self.task: asyncio.Task[None] | None = None

    def begin(self, stage: Stage) -> Coroutine[Any, Any, None] | None:
        """Run the fetch as far as it goes without waiting. Return the rest, or None if it has ended."""
        begun = stage.fetch(1)
        try:
            future = begun.send(None)
        except StopIteration as done:
            self.elements = done.value
            return None
        except Exception as error:
            self.error = error
            return None
        return self._finish(_Rest(begun, future))

    async def _finish(self, rest: Awaitable[list[Components]]) -> None:
        try:
            self.elements = await rest
        except Exception as error:
            self.error = error


class IteratorResource:
    """An iterator over a dataset.

    Attributes:
        name: Name for messages.
        dtypes, shapes: Those of the components of an element; empty if any dataset fits.
        place: The container and the name, as a string handle has them.
        opener: Makes the dataset of an iterator that needs no initializer, on first use.
    """

    def __init__(self, name: str, dtypes: tuple[DType, ...], shapes: tuple[Dims, ...], background: Background) -> None:
        self.name = name
        self.dtypes = dtypes
        self.shapes = shapes
        self.place = ""
        self.opener: Callable[[], Awaitable[DatasetValue]] | None = None
        self._background = background
        self._turns = FairLock(f"iterator {name!r}")
        self._pipeline: Pipeline | None = None
        self._stage: Stage | None = None
        self._dataset: DatasetValue | None = None
        self._pull: Pull | None = None
        self._rest: Coroutine[Any, Any, None] | None = None  # of the pull, until a task runs it
        self._returned: deque[tuple[Components, StagePosition]] = deque()  # elements that steps put back
        self._sought: str | None = None  # the position for the next dataset
        self._begun = 0  # number of datasets so far

    # -- the dataset --------------------------------------------------------------------------------------------------

    async def make(self, dataset: DatasetValue) -> None:
        """Begin to iterate over a dataset, in place of the one before.

        Raises:
            InvalidArgumentError: its elements have other dtypes or shapes.
        """
        self.check_elements(dataset.dtypes, dataset.shapes)
        async with self._turns.taking():
            await self._open(dataset)
            if self._sought is not None:
                sought, self._sought = self._sought, None
                await self._seek(sought)

    def check_elements(self, dtypes: Sequence[DType], shapes: Sequence[Dims]) -> None:
        """Raise InvalidArgumentError unless elements of these dtypes and shapes fit."""
        if not self.dtypes or not dtypes:
            return
        fits = all(is_compatible(a, b) for a, b in zip(shapes, self.shapes, strict=False))
        if tuple(dtypes) != self.dtypes or not fits:
            raise InvalidArgumentError(
                f"the elements do not fit iterator {self.name!r}",
                expected=described(self.dtypes, self.shapes),
                actual=described(dtypes, shapes),
            )

    async def _open(self, dataset: DatasetValue, random: int | None = None) -> None:
        await self._close_stage()
        self._dataset = dataset
        # 53 bits, so that every reader of JSON keeps them.
        self._pipeline = Pipeline(self._background, secrets.randbits(53) if random is None else random)
        self._stage = dataset.open(self._pipeline, ())
        self._begun += 1

    async def _close_stage(self) -> None:
        self._returned.clear()
        pull, self._pull = self._pull, None
        rest, self._rest = self._rest, None
        if rest is not None:
            rest.close()
        if pull is not None and pull.task is not None:
            pull.task.cancel()
            await asyncio.wait([pull.task])
        stage, self._stage = self._stage, None
        if stage is not None:
            await stage.close()

    async def close(self) -> None:
        """Stop all stages, and release their files."""
        async with self._turns.taking():
            await self._close_stage()

    def stop(self) -> None:
        """Stop all tasks of the session, without waiting. Thread-safe."""
        self._background.stop()

    # -- elements -----------------------------------------------------------------------------------------------------

    def try_next(self) -> tuple[Components, Callable[[], None]] | None:
        """Return the next element and the function that puts it back; or None if that may take time.

        Raises:
            OutOfRangeError: the dataset has ended.
            OpError: the element cannot be made.
        """
        if self._stage is None or not self._turns.try_enter():
            return None
        try:
            if self._returned:
                return self._again()
            if self._pull is not None:
                return None
            self._pull = pull = Pull(self._stage.state())
            rest = pull.begin(self._stage)
            if rest is not None:
                # Its first future is bound to this loop, so the rest must follow at once.
                self._rest = rest
                return None
            return self._delivered(pull)
        finally:
            wake_all(self._turns.leave())

    async def next(self) -> tuple[Components, Callable[[], None]]:
        """Return the next element and the function that puts it back. Raises as `try_next`."""
        await self._start_rest()
        async with self._turns.taking():
            await self._begin()
            if self._returned:
                return self._again()
            if self._pull is None:
                self._pull = pull = Pull(self._open_stage().state())
                self._rest = pull.begin(self._open_stage())
                await self._start_rest()
            pull = self._pull
            if pull.task is not None:
                # `wait` does not cancel the task if the consumer is cancelled; the next consumer then finds the pull.
                await asyncio.wait([pull.task])
            return self._delivered(pull)

    async def _start_rest(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None and self._pull is not None:
            self._pull.task = await self._background.start(rest)

    async def _begin(self) -> None:
        if self._stage is None:
            if self.opener is None:
                raise self._uninitialized()
            dataset = await self.opener()
            await self._open(dataset)
            if self._sought is not None:
                sought, self._sought = self._sought, None
                await self._seek(sought)

    def _open_stage(self) -> Stage:
        if self._stage is None:
            raise self._uninitialized()
        return self._stage

    def _uninitialized(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"iterator {self.name!r} is not initialized",
            expected="a run of its initializer",
            actual="no dataset",
        )

    def _delivered(self, pull: Pull) -> tuple[Components, Callable[[], None]]:
        self._pull = None
        if pull.error is not None:
            raise pull.error
        if pull.elements is None:
            raise CancelledError("the session was closed while an iterator was waiting")
        if not pull.elements:
            raise OutOfRangeError(f"the dataset of iterator {self.name!r} has ended")
        return self._handed(pull.elements[0], pull.before)

    def _again(self) -> tuple[Components, Callable[[], None]]:
        return self._handed(*self._returned.popleft())

    def _handed(self, element: Components, before: StagePosition) -> tuple[Components, Callable[[], None]]:
        begun = self._begun

        def give_back() -> None:
            # Unless another dataset has taken its place.
            if self._begun == begun:
                self._returned.appendleft((element, before))

        return element, give_back

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        return f"iterator {self.name!r} ({'waiting for an element' if self._pull else 'idle'})"

    # -- position -----------------------------------------------------------------------------------------------------

    def position(self) -> str:
        """Return the position after the last consumed element, as JSON; empty before the iterator has a dataset."""
        if self._stage is None or self._pipeline is None:
            return self._sought or ""
        if self._returned:
            state = self._returned[0][1]
        else:
            state = self._stage.state() if self._pull is None else self._pull.before
        return json.dumps([_VERSION, self._pipeline.random, state], separators=(",", ":"))

    async def seek(self, position: str) -> None:
        """Continue at a position: now, or as soon as the iterator has a dataset.

        Raises:
            DataLossError: it is no position of this dataset.
        """
        async with self._turns.taking():
            if self._dataset is None or not position:
                self._sought = position or None
                return
            await self._seek(position)

    async def _seek(self, position: str) -> None:
        dataset = self._dataset
        if dataset is None:
            raise InternalError("an iterator without a dataset cannot seek")
        try:
            version, random, state = json.loads(position)
            if version != _VERSION:
                raise ValueError(f"version {version}")
            await self._open(dataset, int(random))
            await self._open_stage().restore(state)
        except OpError:
            raise
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DataLossError(
                f"the saved position of iterator {self.name!r} does not fit its dataset",
                expected="a position of the same dataset",
                actual=position[:80],
            ) from error


def described(dtypes: Any, shapes: Any) -> str:
    """Return dtypes and shapes for messages."""
    return ", ".join(f"{dtype.name}{format_dims(dims)}" for dtype, dims in zip(dtypes, shapes, strict=False))
