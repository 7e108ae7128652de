"""Functions of elements: functions made of ops, which run as compiled steps, and coroutine functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.concurrency.threads import in_thread
from aioflow.errors import CancelledError, InvalidArgumentError, OpError
from aioflow.kernels.data.sequences import split
from aioflow.kernels.data.stages import Components
from aioflow.kernels.function.py_func import ResultCheck, call_error, is_cancelled, read_only
from aioflow.kernels.registry import BodySteps
from aioflow.memory.values import Array, Value
from aioflow.ops.function.python_functions import PythonFunction

CallOutcome: TypeAlias = Components | OpError

_ON_LOOP: Final = 500e-6  # seconds of calls that may run on the event loop
_ROWS: Final = 4  # elements from which stacking pays
_WORTH_A_THREAD: Final = 1e-3  # seconds of a call from which several threads pay


def _stacked(column: Sequence[Any]) -> Array:
    first = column[0]
    if isinstance(first, np.ndarray) and first.dtype.hasobject:
        if not first.ndim:
            made = np.empty(len(column), object)
            made[:] = [each.item() for each in column]
            return made
    elif not np.ndim(first):
        return np.array(column)
    return np.stack(column)


class ElementFunction(Protocol):
    """A function that a stage calls for each element."""

    async def each(self, elements: Sequence[Components], lanes: int) -> list[CallOutcome]:
        """Return the result or the error for each element; at most `lanes` calls run at the same time."""


async def own_task() -> None:
    """Continue in the task of the iterator, which is not cancelled when its consumer is."""
    await asyncio.sleep(0)


class OpFunction:
    """A function made of ops.

    A short one is called in a loop on the event loop, a longer one in a thread, many elements per hop.

    Args:
        body: The compiled function.
        captured: The values that it reads from outside, which follow its arguments.
    """

    def __init__(self, body: BodySteps, captured: Sequence[Value]) -> None:
        self._body = body
        self._captured = list(captured)
        self._cost = 1.0  # seconds of a call, as measured last; unknown at first, so a thread makes the first call

    async def each(self, elements: Sequence[Components], lanes: int) -> list[CallOutcome]:
        """Return the result or the error for each element; at most `lanes` calls run at the same time."""
        if not self._body.is_callable:
            return await concurrent(self._step, elements, lanes)
        if self._cost * len(elements) < _ON_LOOP:
            return self._loop(elements)
        if self._cost < _WORTH_A_THREAD or lanes < 2 or len(elements) < 2:
            return await in_thread(self._loop, elements, effects=False)
        size = -(-len(elements) // lanes)
        parts = [elements[i : i + size] for i in range(0, len(elements), size)]
        found = await concurrent(lambda part: in_thread(self._loop, part, effects=False), parts, lanes)
        return [outcome for part in found for outcome in part]

    @property
    def is_callable(self) -> bool:
        """True if the function has no branches, loops and nodes that wait."""
        return self._body.is_callable

    async def stacked(self, elements: Sequence[Components]) -> list[CallOutcome] | None:
        """Return the results of a function of stacked elements; None if it fails or changes their number."""
        if self._cost * len(elements) < _ON_LOOP:
            return self._of_rows(elements)
        return await in_thread(self._of_rows, elements, effects=False)

    def _of_rows(self, elements: Sequence[Components]) -> list[CallOutcome] | None:
        started = perf_counter()
        try:
            with np.errstate(all="ignore"):
                columns = [_stacked(column) for column in zip(*elements, strict=True)]
                results: list[Any] = list(self._body.call([*columns, *self._captured], None))
        except (OpError, ValueError):  # elements of different shapes cannot be stacked
            return None
        if any(np.ndim(each) == 0 or np.shape(each)[0] != len(elements) for each in results):
            return None
        found: list[CallOutcome] = list(zip(*(split(each) for each in results), strict=True))
        self._cost = (perf_counter() - started) / len(elements)
        return found

    async def one(self, element: Components) -> list[Value]:
        """Return the results for one element, which may be handles."""
        if self._body.is_callable:
            return self._body.call([*element, *self._captured], None)
        return await self._body.run([*element, *self._captured])

    async def _step(self, element: Components) -> CallOutcome:
        try:
            return tuple(await self._body.run([*element, *self._captured]))
        except OpError as error:
            return error

    def _loop(self, elements: Sequence[Components]) -> list[CallOutcome]:
        call, captured = self._body.call, self._captured
        found: list[CallOutcome] = []
        started = perf_counter()
        with np.errstate(all="ignore"):
            for element in elements:
                checkpoint()
                try:
                    found.append(tuple(call([*element, *captured], None)))
                except OpError as error:
                    found.append(error)
        self._cost = (perf_counter() - started) / len(elements)
        return found


class StackedFunction:
    """A function of many elements at once, beside the function of one element that it was derived from.

    Args:
        rows: The function of the stacked components of some elements.
        single: The function of one element, for the case that the other fails.
    """

    def __init__(self, rows: OpFunction, single: OpFunction) -> None:
        self._rows = rows
        self._single = single
        self._fails = False

    async def each(self, elements: Sequence[Components], lanes: int) -> list[CallOutcome]:
        """Return the result or the error for each element; at most `lanes` calls run at the same time."""
        if len(elements) >= _ROWS and not self._fails and self._rows.is_callable:
            found = await self._rows.stacked(elements)
            if found is not None:
                return found
            # Elements of different shapes would fail each time.
            self._fails = True
        return await self._single.each(elements, lanes)


class CoroutineFunction:
    """A coroutine function of the user."""

    def __init__(self, function: PythonFunction, check: ResultCheck) -> None:
        self._function = function
        self._check = check

    async def each(self, elements: Sequence[Components], lanes: int) -> list[CallOutcome]:
        """Return the result or the error for each element; at most `lanes` calls run at the same time."""
        return await concurrent(self.outcome, elements, lanes)

    async def outcome(self, element: Components) -> CallOutcome:
        """Return the result or the error for one element."""
        try:
            result = self._function.call(*[read_only(value) for value in element])
            return await self._check.wherever(await result)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            failed = CancelledError("an operation that the function awaited was cancelled")
            failed.__cause__ = error
            return failed
        except Exception as error:
            return call_error(error)


async def concurrent(call: Callable[[Any], Awaitable[Any]], items: Sequence[Any], lanes: int) -> list[Any]:
    """Return the results of calls, in the order of the items; at most `lanes` run at the same time."""
    await own_task()
    if lanes < 2 or len(items) < 2:
        return [await call(item) for item in items]
    found: list[Any] = [None] * len(items)
    numbers = iter(range(len(items)))

    async def lane() -> None:
        for number in numbers:
            found[number] = await call(items[number])

    async with asyncio.TaskGroup() as lane_group:
        for _ in range(min(lanes, len(items))):
            lane_group.create_task(lane())
    return found


def located(error: OpError, name: str, number: int) -> OpError:
    """Add the position of the element to an error."""
    error.add_note(f"aioflow: for element {number} of the input of {name!r}")
    return error


def opened(function: PythonFunction, args: Sequence[Value], kinds: tuple[type, ...], expected: str) -> Any:
    """Return the iterable of a source.

    Args:
        function: The function that returns the iterable, or the iterable.
        args: Arguments of the function.
        kinds: The classes that the iterable may have.
        expected: Their description.

    Raises:
        InvalidArgumentError: the function returned something else.
        OpError: the function raised an exception.
    """
    source = function.call
    if not isinstance(source, kinds):
        try:
            source = source(*[read_only(value) for value in args])
        except Exception as error:
            raise call_error(error) from error
    if not isinstance(source, kinds):
        if inspect.iscoroutine(source):
            source.close()
        raise InvalidArgumentError(
            "the generator of a dataset returned no iterator", expected=expected, actual=type(source).__name__
        )
    return source
