"""One execution of a plan: its stop requests, its waits, and its observers."""

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
from typing import Final, NoReturn, Protocol, Self, TypeAlias, cast

from aioflow.concurrency.threads import AbandonedError, to_its_end
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
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.spans import Spans

_LOGGER: Final = logging.getLogger("aioflow.runtime")


GiveBack: TypeAlias = Callable[[], Awaitable[None] | None]

# Errors that are no failure of a kernel: the step was stopped, a peer was unreachable, or a queue has ended.
_NO_FAILURE: Final = (
    AbortedError,
    CancelledError,
    ClosedSessionError,
    DeadlineExceededError,
    OutOfRangeError,
    UnavailableError,
)


class Probe(Protocol):
    """An observer of a step. `begin` is called once per task; its result is called after every node."""

    def begin(self) -> Callable[[BoundNode, Sequence[Value]], None]:
        """Return the reporter for the nodes of a task that starts now."""


class Waiter(Protocol):
    """An async node that is being awaited.

    Attributes:
        node: The name of the node.
        since: Start of the wait, by the monotonic clock.
    """

    node: str
    since: float

    def describe(self) -> str:
        """Return a description of what it waits for."""


class Distant(Waiter, Protocol):
    """A wait for a remote part, which knows in more detail what it waits for."""

    async def inquire(self) -> Sequence[tuple[str, float, str]]:
        """Return entries in the form of `StuckStep.waiting`. Raises OpError."""


class _Wait:
    """The wait for an awaitable, which may have a description of what it waits for."""

    __slots__ = ("_describe", "node", "since")

    def __init__(self, node: str, describe: Callable[[], str] | None) -> None:
        self.node = node
        self.since = monotonic()
        self._describe = describe

    def describe(self) -> str:
        """Return a description of what it waits for."""
        return self._describe() if self._describe else "its kernel"


@dataclass(frozen=True, slots=True)
class StuckStep:
    """A running step, and what it waits for.

    Attributes:
        seconds: Time since its start.
        waiting: For each async node that is being awaited: its name, the seconds so far, and what it waits for.
    """

    seconds: float
    waiting: tuple[tuple[str, float, str], ...]

    def __str__(self) -> str:
        lines = [f"a step has been running for {self.seconds:.3f} s"]
        lines += [f"  {node} has waited for {seconds:.3f} s: {what}" for node, seconds, what in self.waiting]
        return "\n".join(lines)


class Step:
    """A step in flight.

    Kernels in threads check `requested` in between; `watch` wakes coroutines. The executor of a backend needs three
    members: `requested`, `stop` if the caller of its `run` is cancelled, and `halt` to end a run that stopped early.

    Attributes:
        id: Identifies the step to all workers that take part in it; 0 for a step that stays in this process.
        probe: Observes every node, or None.
        describe: Returns a description of the step for messages.
        waiting: The async nodes that are being awaited. Other threads read it too, by copying it to a list.
        watchers: Called when the step is asked to stop.
        since: Start of the step, by the monotonic clock.
        deadline: Time at which its caller gives up, by the clock of the event loop; None for never.
        holding: Called when an async node ends; returns what must be awaited before the step continues, or None.
        holds_after: Time by the monotonic clock before which `holding` need not be called.
        begun: For a step on several workers, the cluster tasks at which updates may have been made; None for a step in
            this process alone.
        changed: Whether it has permanently changed state in this process that is visible outside.
        abandoned: The nodes whose kernels did not stop on request, in abandoned threads.
        releases: Called when the step has ended.
        requested: Whether the step was asked to stop.
        error: The reason for the stop, or None for a cancellation.
        spans: Receives the spans of its parts, or None.
        rendezvous: The rendezvous of values that go from device to device; set by the worker if there are any.
    """

    __slots__ = (
        "_ended",
        "_finished",
        "_stopped",
        "_taken",
        "abandoned",
        "begun",
        "changed",
        "deadline",
        "describe",
        "error",
        "holding",
        "holds_after",
        "id",
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
        self.abandoned: list[str] = []
        # Dictionaries as sets that keep the order of insertion: reports list the waits in the order of their starts.
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
        """Request the step to stop at the next kernel boundary, because of `error`. Call on the step's loop.

        Only the first request counts: everything that stops because of it raises its error. A request without an error
        is a cancellation.
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
        """The rendezvous. Raises InternalError if the worker has not set one."""
        if self.rendezvous is None:
            raise InternalError("the step sends or receives, and has no rendezvous")
        return self.rendezvous

    @property
    def waits(self) -> list[str]:
        """The async nodes that are being awaited, with what each waits for, sorted by name."""
        return sorted(f"{wait.node} on {wait.describe()}" for wait in list(self.waiting))

    async def wait_for(self, node: str, result: Awaitable[Value]) -> Value:
        """Await the result of an async kernel. A cancelled wait stays in `waiting`, so that a timeout can name it."""
        wait = _Wait(node, getattr(result, "describe", None))
        self.waiting[wait] = None
        try:
            value = await result
        except asyncio.CancelledError as error:
            if AbandonedError.within(error):
                del self.waiting[wait]
                self.leave_behind(node)
            raise
        del self.waiting[wait]
        release = getattr(result, "release", None)
        if release is not None:
            # The value may be in use until the step has ended, so it is released only then.
            self.releases.append(partial(release, value))
        hold = self.hold()
        if hold is not None:
            await hold
        return value

    def hold(self) -> Awaitable[None] | None:
        """Return what must be awaited before the step continues after a wait, or None."""
        return None if self.holding is None or monotonic() < self.holds_after else self.holding()

    @property
    def seconds(self) -> float:
        """Time since the start of the step, in seconds."""
        return monotonic() - self.since

    def stop_for_close(self) -> None:
        """Request the step to stop because its session is closed."""
        self.stop(CancelledError(f"the session was closed while {self.describe()} ran{self.state()}"))

    def report(self) -> StuckStep:
        """Return what the step is waiting for."""
        return self._report(list(self.waiting))

    def _report(self, waiting: Sequence[Waiter]) -> StuckStep:
        now = monotonic()
        return StuckStep(now - self.since, tuple((each.node, now - each.since, each.describe()) for each in waiting))

    async def inquire(self) -> StuckStep:
        """Return what the step is waiting for, including reports of remote parts that it waits for."""
        # Copied once: waits come and go during the inquiry, and the indices of both reports must agree.
        waiting = list(self.waiting)
        report = self._report(waiting)
        lines: dict[int, Sequence[tuple[str, float, str]]] = {}

        async def ask(index: int, wait: Distant) -> None:
            with suppress(OpError):  # the local report is all that is available
                lines[index] = await wait.inquire()

        async with asyncio.TaskGroup() as tg:
            for index, wait in enumerate(waiting):
                if hasattr(wait, "inquire"):
                    tg.create_task(ask(index, cast("Distant", wait)))
        found = [line for index, own in enumerate(report.waiting) for line in (own, *lines.get(index, ()))]
        return StuckStep(report.seconds, tuple(found))

    def state(self) -> str:
        """Return what the step waits for and the threads that it abandoned, as the end of a sentence."""
        waiting = f"; waiting for {', '.join(self.waits)}" if self.waiting else ""
        return waiting + _left(self.abandoned) + _applied(self.begun)

    def account(self, error: BaseException) -> None:
        """Note in the error that ends the step whether updates may have been made."""
        if isinstance(error, OpError):
            error.may_have_been_applied = self.changed or bool(self.begun)

    def took(self, give_back: GiveBack) -> None:
        """Note that an element has been taken; `give_back` puts it back if the fetches are not delivered."""
        self._taken.append(give_back)

    def keep(self) -> list[GiveBack]:
        """Return the functions that put the taken elements back, and transfer that responsibility to the caller."""
        taken, self._taken = self._taken, []
        return taken

    async def unwind(self, error: BaseException) -> None:
        """Put back the elements that have been taken, last first, because the fetches are not delivered.

        Args:
            error: The reason. If a kernel failed, the elements are not put back, because the next step would fail on
                them too. If the step was stopped because of an error, a cancellation counts as that error.
        """
        if has_failed(self.error if self.error is not None and isinstance(error, asyncio.CancelledError) else error):
            # Elements that are not put back are a change that others can see.
            self.changed = bool(self.keep()) or self.changed
        elif isinstance(error, GeneratorExit):  # the coroutine is being closed and must not wait
            self.abandon()
        elif waiting := _put_back(self.keep()):
            # A cancellation must not interrupt this, or elements would be lost.
            await to_its_end(_all(waiting))

    def abandon(self) -> None:
        """Put back the elements that have been taken, like `unwind`, except those whose return must be awaited."""
        for each in _put_back(self.keep()):
            if inspect.iscoroutine(each):
                # A coroutine that is discarded without this causes the warning "never awaited".
                each.close()

    def leave_behind(self, node: str) -> None:
        """Record that the kernel of a node has not stopped and its thread is abandoned."""
        self.abandoned.append(node)
        if self.error is not None:
            # The error was made with the stop request, when it was not yet known that this kernel does not stop.
            self.error.message += _left([node])
        _LOGGER.warning("node %r does not stop: its kernel is left behind in a thread, where it is still running", node)

    def halt(self) -> NoReturn:
        """Raise the error of the stop request."""
        raise self.error or CancelledError("the step was stopped")

    def end(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """Return the error of a step whose tasks failed: the stop reason, its cancellation, or else the first error."""
        task = asyncio.current_task()
        if self.error is None and task is not None and task.cancelling():
            return asyncio.CancelledError()  # the errors of its tasks are only consequences of the cancellation
        return self.error or root_cause(group)

    def stoppable(self) -> StoppableBlock:
        """Return a context manager that ends waits on the event loop with the step's error when the step is stopped.

        Used as `async with step.stoppable():`.
        """
        return StoppableBlock(self)

    async def watch(self) -> None:
        """Wait for `stop`, then raise its error."""
        # Made on demand: only executors that call `watch` need the event.
        self._stopped = self._stopped or asyncio.Event()
        if not self.requested:
            await self._stopped.wait()
        self.halt()

    def finish(self) -> None:
        """Mark the step as ended, successfully or not, and call `releases`."""
        self._ended = True
        if self._finished is not None:  # first, so that `Session.close` continues even if a release raises
            self._finished.set()
        for release in self.releases:
            release()

    async def finished(self) -> None:
        """Wait for `finish`, unless it has been called."""
        if not self._ended:
            self._finished = self._finished or asyncio.Event()
            await self._finished.wait()


class StoppableBlock:
    """The context manager of `Step.stoppable`."""

    __slots__ = ("_step", "_timeout")

    def __init__(self, step: Step) -> None:
        self._step = step
        # A timeout can tell its own cancellation from one by another caller.
        self._timeout = asyncio.timeout(None)

    def _stop(self) -> None:
        # `asyncio` raises RuntimeError if an expired timeout is rescheduled.
        if not self._timeout.expired():
            # A deadline that has come: the timeout cancels the task in the next turn of the loop.
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        if self._step.requested:
            self._step.halt()
        await self._timeout.__aenter__()
        # After the timeout has been entered: `asyncio` can reschedule only a timeout that is active.
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
        """True if the block has ended because the step was stopped."""
        return self._timeout.expired()


def has_failed(error: BaseException) -> bool:
    """Return whether a step that ends with this error has failed in a kernel or in code of the program."""
    return isinstance(error, Exception) and not isinstance(error, _NO_FAILURE)


def _put_back(taken: Sequence[GiveBack]) -> list[Awaitable[None]]:
    """Put elements back, last first, and return what has to be awaited for that."""
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
    """Return the error that made a group of tasks fail: the first engine error, or else the first of any kind."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            # Reversed, because the stack returns the last entry first: the leaves keep the order of the groups.
            stack.extend(reversed(error.exceptions))
        else:
            leaves.append(error)
    return next((e for e in leaves if isinstance(e, AioflowError)), leaves[0])
