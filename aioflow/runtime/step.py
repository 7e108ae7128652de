"""One execution of a plan: how it is told to stop, what it is waiting for, and what watches it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self, TypeAlias, cast

from aioflow.errors import (
    AbortedError,
    AioflowError,
    CancelledError,
    ClosedSessionError,
    DeadlineExceededError,
    InternalError,
    OpError,
    OutOfRangeError,
    UnavailableError,
)
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.spans import Spans
from aioflow.work.threads import LeftBehind, to_its_end

__all__ = ["GiveBack", "Probe", "Step", "StuckStep", "Waiter", "has_failed", "root_cause"]

_LOGGER: Final = logging.getLogger("aioflow.runtime")


GiveBack: TypeAlias = Callable[[], Awaitable[None] | None]

# What no kernel has failed on: the step was stopped, somebody could not be reached, or a queue has no more.
_NO_FAILURE: Final = (
    AbortedError,
    CancelledError,
    ClosedSessionError,
    DeadlineExceededError,
    OutOfRangeError,
    UnavailableError,
)


class Probe(Protocol):
    """Watches a step: `begin` is called once per unit, and what it returns after every node with the node's outputs."""

    def begin(self) -> Callable[[Any, Sequence[Any]], None]:
        """A unit starts: the reporter for its nodes."""


class Waiter(Protocol):
    """An async node that is being awaited.

    Attributes:
        node: Its name.
        since: When it began to wait, by the monotonic clock.
    """

    node: str
    since: float

    def describe(self) -> str:
        """What it waits for."""


class Distant(Waiter, Protocol):
    """A wait for something that knows better what it waits for itself."""

    async def inquire(self) -> Sequence[tuple[str, float, str]]:
        """As `StuckStep.waiting`. Raises OpError."""


class _Wait:
    """The wait for an awaitable, which may be able to say what it waits for."""

    __slots__ = ("_describe", "node", "since")

    def __init__(self, node: str, describe: Callable[[], str] | None) -> None:
        self.node = node
        self.since = monotonic()
        self._describe = describe

    def describe(self) -> str:
        """What it waits for."""
        return self._describe() if self._describe else "its kernel"


@dataclass(frozen=True, slots=True)
class StuckStep:
    """A step that is running, and what it waits for.

    Attributes:
        seconds: How long it has been running.
        waiting: For each async node that is being awaited: its name, for how many seconds, and what it waits for.
    """

    seconds: float
    waiting: tuple[tuple[str, float, str], ...]

    def __str__(self) -> str:
        lines = [f"a step has been running for {self.seconds:.3f} s"]
        lines += [f"  {node} has waited for {seconds:.3f} s: {what}" for node, seconds, what in self.waiting]
        return "\n".join(lines)


class Step:
    """A step in flight.

    Kernels in threads look at `requested` between one another; `watch` wakes whatever awaits.

    Attributes:
        id: Names the step to all workers that take part in it; 0 for one that stays in this process.
        probe: Watches every node, or None.
        describe: What it is for, for messages.
        waiting: The async nodes that are being awaited. Read from other threads, too: by way of a list.
        watchers: Called when the step is asked to stop.
        since: When it began, by the monotonic clock.
        deadline: When its caller gives up, by the clock of the event loop; None for never.
        holding: Asked when an async node has come to its end: what is to be awaited before the step goes on, or None.
        holds_after: By the monotonic clock; before that `holding` need not be asked.
        begun: Of a step on several workers, where updates may have been made; None for one in this process alone.
        changed: Whether it has changed something here, for good, that others see.
        left_behind: The nodes whose kernels did not stop when they were asked to, and that nobody waits for any more.
        releases: Called when it has ended.
        spans: Where its parts are reported, or None.
        rendezvous: Where values meet that go from device to device; set by the worker if there are any.
    """

    __slots__ = (
        "_ended",
        "_finished",
        "_stopped",
        "_taken",
        "begun",
        "changed",
        "deadline",
        "describe",
        "error",
        "holding",
        "holds_after",
        "id",
        "left_behind",
        "probe",
        "releases",
        "rendezvous",
        "requested",
        "since",
        "spans",
        "waiting",
        "watchers",
    )

    def __init__(
        self, probe: Probe | None = None, id: int = 0, describe: Callable[[], str] = lambda: "the step"
    ) -> None:
        self.probe = probe
        self.id = id
        self.describe = describe
        self.requested = False
        self.error: OpError | None = None
        self.deadline: float | None = None
        self.begun: set[str] | None = None
        self.changed = False
        self._taken: list[GiveBack] = []
        self.holding: Callable[[], Awaitable[None] | None] | None = None
        self.holds_after = inf
        self.left_behind: list[str] = []
        self.waiting: dict[Waiter, None] = {}
        self.watchers: list[Callable[[], None]] = []
        self.since = monotonic()
        self.rendezvous: Rendezvous | None = None
        self.spans: Spans | None = None
        self._stopped: asyncio.Event | None = None
        self._finished: asyncio.Event | None = None
        self.releases: list[Callable[[], None]] = []
        self._ended = False

    def stop(self, error: OpError | None = None) -> None:
        """Ask the step to stop at the next kernel boundary, because of `error`. Call on the step's loop.

        Only the first request counts: whatever stops on its account raises its error too, and not one of its own. One
        without an error is a cancellation.
        """
        if not self.requested:
            self.error = error
        self.requested = True
        if self._stopped is not None:
            self._stopped.set()
        for watcher in list(self.watchers):
            watcher()

    @property
    def meeting(self) -> Rendezvous:
        """The rendezvous. Raises InternalError where the worker has set none."""
        if self.rendezvous is None:
            raise InternalError("the step sends or receives, and has no rendezvous")
        return self.rendezvous

    @property
    def waits(self) -> list[str]:
        """Each async node that is being awaited, with what it waits for, by name."""
        return sorted(f"{wait.node} on {wait.describe()}" for wait in list(self.waiting))

    async def wait_for(self, node: str, result: Awaitable[Any]) -> Any:
        """Await what an async kernel returned. One that is cancelled stays in `waiting`, so that a timeout names it."""
        wait = _Wait(node, getattr(result, "describe", None))
        self.waiting[wait] = None
        try:
            value = await result
        except asyncio.CancelledError as error:
            if LeftBehind.behind(error):
                del self.waiting[wait]
                self.leave_behind(node)
            raise
        del self.waiting[wait]
        release = getattr(result, "release", None)
        if release is not None:
            self.releases.append(partial(release, value))
        hold = self.hold()
        if hold is not None:
            await hold
        return value

    def hold(self) -> Awaitable[None] | None:
        """What is to be awaited before the step goes on after a wait, or None."""
        return None if self.holding is None or monotonic() < self.holds_after else self.holding()

    @property
    def seconds(self) -> float:
        """For how long it has been running."""
        return monotonic() - self.since

    def stop_for_close(self) -> None:
        """As `stop`, because its session is closed."""
        self.stop(CancelledError(f"the session was closed while {self.describe()} ran{self.state()}"))

    def report(self) -> StuckStep:
        """Describe what the step is waiting for."""
        return self._report(list(self.waiting))

    def _report(self, waiting: Sequence[Waiter]) -> StuckStep:
        now = monotonic()
        return StuckStep(now - self.since, tuple((each.node, now - each.since, each.describe()) for each in waiting))

    async def inquire(self) -> StuckStep:
        """As `report`, with what others say for whom it waits."""
        waiting = list(self.waiting)
        report = self._report(waiting)
        lines: dict[int, Sequence[tuple[str, float, str]]] = {}

        async def ask(index: int, wait: Distant) -> None:
            with suppress(OpError):  # what is known here is all that can be said
                lines[index] = await wait.inquire()

        async with asyncio.TaskGroup() as tg:
            for index, wait in enumerate(waiting):
                if hasattr(wait, "inquire"):
                    tg.create_task(ask(index, cast("Distant", wait)))
        found = [line for index, own in enumerate(report.waiting) for line in (own, *lines.get(index, ()))]
        return StuckStep(report.seconds, tuple(found))

    def state(self) -> str:
        """What it waits for and what it has left behind, as the end of a sentence."""
        waiting = f"; waiting for {', '.join(self.waits)}" if self.waiting else ""
        return waiting + _left(self.left_behind) + _applied(self.begun)

    def account(self, error: BaseException) -> None:
        """Let the error that the step ends with say whether updates may have been made."""
        if isinstance(error, OpError):
            error.may_have_been_applied = self.changed or bool(self.begun)

    def took(self, give_back: GiveBack) -> None:
        """Note that an element has been taken; `give_back` puts it back, if the fetches are not delivered."""
        self._taken.append(give_back)

    def keep(self) -> list[GiveBack]:
        """Return how each element is put back, and leave that to the caller."""
        taken, self._taken = self._taken, []
        return taken

    async def unwind(self, error: BaseException) -> None:
        """Put back the elements that have been taken, the last first: the fetches are not delivered.

        Args:
            error: Why. Elements on which a kernel has failed are not put back: the next step would fail on them, too.
                Of a step that was stopped because of an error, a cancellation stands for that.
        """
        if has_failed(self.error if self.error is not None and isinstance(error, asyncio.CancelledError) else error):
            self.changed = bool(self.keep()) or self.changed
        elif isinstance(error, GeneratorExit):  # the coroutine is closed, and must not wait
            self.abandon()
        elif waiting := _put_back(self.keep()):
            await to_its_end(_all(waiting))

    def abandon(self) -> None:
        """Put back the elements that have been taken, as `unwind`, but for those that have to be waited for."""
        for each in _put_back(self.keep()):
            if inspect.iscoroutine(each):
                each.close()

    def leave_behind(self, node: str) -> None:
        """The kernel of a node has not stopped, and nobody waits for it any more."""
        self.left_behind.append(node)
        if self.error is not None:
            self.error.message += _left([node])
        _LOGGER.warning("node %r does not stop: its kernel is left behind in a thread, where it is still running", node)

    def halt(self) -> NoReturn:
        """Raise: the step was asked to stop."""
        raise self.error or CancelledError("the step was stopped")

    def end(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """What a step ends with whose tasks failed: what stopped it, or its cancellation, or else the first error."""
        task = asyncio.current_task()
        if self.error is None and task is not None and task.cancelling():
            return asyncio.CancelledError()  # what its tasks raised is only how they noticed that
        return self.error or root_cause(group)

    def stoppable(self) -> Stoppable:
        """`async with step.stoppable():` ends a wait on the event loop when the step is stopped, with its error."""
        return Stoppable(self)

    async def watch(self) -> None:
        """Wait for `stop`, then raise its error."""
        self._stopped = self._stopped or asyncio.Event()
        if not self.requested:
            await self._stopped.wait()
        self.halt()

    def finish(self) -> None:
        """The step has ended, one way or another; what it still holds is released."""
        self._ended = True
        if self._finished is not None:  # first, so that `Session.close` goes on whatever a release raises
            self._finished.set()
        for release in self.releases:
            release()

    async def finished(self) -> None:
        """Wait for `finish`, unless it has been called."""
        if not self._ended:
            self._finished = self._finished or asyncio.Event()
            await self._finished.wait()


class Stoppable:
    """As of `Step.stoppable`."""

    __slots__ = ("_step", "_timeout")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._timeout = asyncio.timeout(None)

    def _stop(self) -> None:
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        if self._step.requested:
            self._step.halt()
        await self._timeout.__aenter__()
        self._step.watchers.append(self._stop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step.watchers.remove(self._stop)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            self._step.halt()

    @property
    def stopped(self) -> bool:
        """Whether that is how the block has ended."""
        return self._timeout.expired()


def has_failed(error: BaseException) -> bool:
    """Whether a step that ends with this error has failed on its values: a kernel has, or something of the program."""
    return isinstance(error, Exception) and not isinstance(error, _NO_FAILURE)


def _put_back(taken: Sequence[GiveBack]) -> list[Awaitable[None]]:
    """Put elements back, the last first; returns what has to be awaited for that."""
    return [waiting for give_back in reversed(taken) if (waiting := give_back()) is not None]


async def _all(waiting: Sequence[Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in waiting:
            group.create_task(_awaited(each))


async def _awaited(what: Awaitable[None]) -> None:
    await what


def _left(nodes: Sequence[str]) -> str:
    return f"; left behind, where it is still running: the kernel of {', '.join(map(repr, nodes))}" if nodes else ""


def _applied(begun: set[str] | None) -> str:
    return f"; it may have been applied at {', '.join(sorted(begun))}" if begun else ""


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
