"""One execution of a plan: how it is told to stop, what it is waiting for, and what watches it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aioflow.errors import AioflowError, CancelledError, OpError

__all__ = ["Probe", "Step", "root_cause"]


class Probe(Protocol):
    """Watches a step: `begin` is called once a unit, and what it returns after every node with the node's outputs."""

    def begin(self) -> Callable[[Any, Sequence[Any]], None]:
        """A unit starts: the reporter for its nodes."""


class Step:
    """A step in flight.

    Kernels in threads look at `requested` between one another; `watch` wakes whatever awaits.

    Attributes:
        probe: Watches every node, or None.
        pending: Names of the async nodes that are being awaited.
    """

    __slots__ = ("_finished", "_stopped", "error", "pending", "probe", "requested")

    def __init__(self, probe: Probe | None = None) -> None:
        self.probe = probe
        self.requested = False
        self.error: OpError | None = None
        self.pending: set[str] = set()
        self._stopped: asyncio.Event | None = None
        self._finished: asyncio.Event | None = None

    def stop(self, error: OpError | None = None) -> None:
        """Ask the step to stop at the next kernel boundary, because of `error`. Call on the step's loop.

        Only the first error counts: whatever stops on its account raises it too, and not an error of its own.
        """
        self.error = self.error or error
        self.requested = True
        if self._stopped is not None:
            self._stopped.set()

    def halt(self) -> None:
        """Raise: the step was asked to stop."""
        raise self.error or CancelledError("the step was stopped")

    async def watch(self) -> None:
        """Wait for `stop`, then raise its error."""
        self._stopped = self._stopped or asyncio.Event()
        if not self.requested:
            await self._stopped.wait()
        self.halt()

    def finish(self) -> None:
        """The step has ended, one way or another."""
        if self._finished is not None:
            self._finished.set()

    async def finished(self) -> None:
        """Wait for `finish`."""
        self._finished = self._finished or asyncio.Event()
        await self._finished.wait()


def root_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that made a group of tasks fail: the first engine error, or else the first of any kind."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(reversed(error.exceptions))
        else:
            leaves.append(error)
    return next((e for e in leaves if isinstance(e, AioflowError)), leaves[0])
