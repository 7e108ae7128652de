"""Transfer of fetched values to the caller, which owns them: a value that may have another holder is copied.

Small copies are made immediately. Large copies would block an event loop, so they are made in a thread, where they can
be stopped. A large value that turns out to have no other holder is not copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from aioflow.compiler.ir import Node
from aioflow.concurrency.stopping import COPY_RATE, Stoppable, Stopped
from aioflow.concurrency.threads import in_thread
from aioflow.errors import ResourceExhaustedError
from aioflow.memory.copying import copied
from aioflow.memory.values import Array, Value
from aioflow.runtime.bind import to_keep
from aioflow.runtime.executor import StepWork
from aioflow.runtime.step import Step

T = TypeVar("T")

# Bytes copied at once even if the budget is smaller: at `COPY_RATE` this takes as long as the round trip to a thread
# (`INLINE_COPY` has the measurement). Less than `INLINE_COPY`, because here the step's budget decides above it.
_LEAST: Final = 64 << 10


def large_bytes(budget: float) -> float:
    """Return the size in bytes above which a copy exceeds the inline budget."""
    return max(budget * COPY_RATE, _LEAST)


def is_large(value: Value, most: float) -> bool:
    """Return whether copying the value would block an event loop."""
    return type(value) is np.ndarray and value.nbytes > most


class Unfinished:
    """Fetched values, some of which are large and may not belong to the caller yet.

    Args:
        values: All fetched values.
        shared: The indices of values that may have other holders, each with the node that computed it.
        limit: `SessionConfig.max_value_bytes`.
    """

    __slots__ = ("_limit", "_shared", "values")

    def __init__(self, values: list[Value], shared: Mapping[int, Node], limit: int | None) -> None:
        self.values = values
        self._shared = shared
        self._limit = limit

    async def finish(self, step: Step | None = None) -> list[Value]:
        """Return the values, all owned by the caller.

        Raises:
            ResourceExhaustedError: a value exceeds the size limit.
            CancelledError: the step was asked to stop.
        """
        await _in_thread(self._own, step, self._limit)
        return self.values

    def _own(self) -> None:
        for index, node in self._shared.items():
            try:
                self.values[index] = _owned(self.values, index)
            except ResourceExhaustedError as error:
                raise error.at(node.name, node.op, node.source) from None


async def copied_in_thread(values: Sequence[Value], step: Step, limit: int | None) -> list[Value]:
    """Return the values, with arrays copied in a thread where necessary, so that a step may keep them.

    Raises:
        CancelledError: the step was asked to stop.
    """
    return await _in_thread(lambda: [to_keep(value) for value in values], step, limit)


async def _in_thread(function: Callable[[], T], step: Step | None, limit: int | None) -> T:
    work = Stoppable(effects=False) if step is None else StepWork(step, effects=False)
    work.limit = limit
    try:
        return await in_thread(function, work=work)
    except Stopped:
        if step is not None:
            step.halt()
        raise


def _owned(values: list[Value], index: int) -> Value:
    value: Any = values[index]  # a large array
    values[index] = None  # remove it from the list before counting references
    if sys.getrefcount(value) <= _ALONE and _is_whole(value):
        return value
    return copied(value)


def _is_whole(value: Array) -> bool:
    """Return whether an array without another holder owns all of its memory, so that the caller may write to it."""
    if not value.flags.writeable:
        return False
    base = value.base
    if base is None:
        return True
    if type(base) is not np.ndarray or sys.getrefcount(base) > _BASE_ALONE or base.base is not None:
        return False
    # No two elements share memory (no stride of 0, no more bytes than the base), and the array is at least half of its
    # base, so it does not keep a much larger one alive.
    return value.nbytes <= base.nbytes <= 2 * value.nbytes and 0 not in value.strides


def _count_alone() -> tuple[int, int]:
    """Return the reference counts, as counted above, of an array without another holder, and of its base."""
    values: list[Array] = [np.empty(4).reshape(2, 2)]
    value = values[0]
    values[0] = np.empty(0)
    # Measured, not written down: which temporary references are counted depends on the version of Python.
    alone = sys.getrefcount(value)
    base = value.base
    return alone, sys.getrefcount(base)


_ALONE, _BASE_ALONE = _count_alone()
