"""Waiting for resources inside a step: a kernel's wait can be described, and leaves no trace if it is cancelled.

The core of a resource does no I/O: it receives requests as `Ticket`s and returns those that are resolved. `Waiting`
drives one request on an event loop. The waiters may be on several event loops in several threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from aioflow.memory.values import Value


class StepAccount(Protocol):
    """The interface by which kernels tell their step of changes and of elements that they have taken.

    Attributes:
        changed: Whether the step has made a permanent change that others see.
    """

    changed: bool

    def took(self, give_back: Callable[[], None]) -> None:
        """Record that an element has been taken. `give_back` puts it back if the fetches are not delivered."""


class Ticket:
    """One request to a resource. The core that holds it resolves it once, under the core's lock.

    Attributes:
        stays: Whether the effect of a resolved ticket remains after a withdrawal.
        resolved: Whether the request is complete.
        value: The result.
        error: The error, or None.
        wake: Called without the lock, if an event of another ticket has resolved this one.
    """

    __slots__ = ("error", "resolved", "value", "wake")

    stays: ClassVar[bool] = False

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self.resolved = False
        self.value: Any = None
        self.error: Exception | None = None
        self.wake = wake

    def resolve(self, value: Value = None, error: Exception | None = None) -> None:
        """Complete the request."""
        self.resolved = True
        self.value = value
        self.error = error


def wake_all(resolved: Iterable[Ticket]) -> None:
    """Wake the waiters of resolved tickets. Call without the core's lock."""
    for ticket in resolved:
        if ticket.wake is not None:
            ticket.wake()


def tell(step: StepAccount, withdraw: Callable[[Any], Iterable[Ticket]] | None, ticket: Ticket) -> None:
    """Report a successful request to its step: a permanent change, or with `withdraw`, a taken element.

    The element is put back if the fetches of the step are not delivered.
    """
    if withdraw is None:
        step.changed = True
    else:
        step.took(lambda: wake_all(withdraw(ticket)))


class Waiting:
    """An awaitable returned by an async kernel that has to wait; it can describe what it waits for.

    Args:
        submit: Passes a ticket to the core and returns all tickets that this resolves, possibly the same one.
        withdraw: Takes the ticket back, even if it is resolved but its value was not used; returns the tickets that
            this resolves.
        make: Makes the ticket, given its `wake`.
        describe: Returns a description of the wait.
        finish: Converts the value to the result.
        release: Releases the result at the end of the step, if a step must not keep it.
        told: Called with the ticket when it has succeeded.
    """

    __slots__ = ("_finish", "_make", "_submit", "_told", "_withdraw", "describe", "release")

    def __init__(
        self,
        submit: Callable[[Any], Iterable[Ticket]],
        withdraw: Callable[[Any], Iterable[Ticket]],
        make: Callable[[Callable[[], None]], Ticket],
        describe: Callable[[], str],
        finish: Callable[[Any], Value] | None = None,
        release: Callable[[Any], None] | None = None,
        told: Callable[[Ticket], None] | None = None,
    ) -> None:
        self._submit = submit
        self._withdraw = withdraw
        self._make = make
        self._finish = finish
        self.describe = describe
        self.release = release
        self._told = told

    def __await__(self) -> Generator[object, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        loop = asyncio.get_running_loop()
        # Made before the ticket is submitted, since another thread may resolve that at once.
        future: asyncio.Future[None] = loop.create_future()
        ticket = self._make(_waker(loop, future))
        wake_all(self._submit(ticket))
        try:
            await future
        except BaseException:
            # The ticket may have been resolved before the cancellation arrived; then the core takes its value back.
            wake_all(self._withdraw(ticket))
            # The element stays in the resource, so the step has changed something although it was cancelled.
            if ticket.stays and ticket.resolved and ticket.error is None and self._told is not None:
                self._told(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        if self._told is not None:
            self._told(ticket)
        return ticket.value if self._finish is None else self._finish(ticket.value)


def _waker(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Callable[[], None]:
    home = threading.get_ident()

    def resolve() -> None:
        # The waiter may have been cancelled between the wake-up and this call.
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        if threading.get_ident() == home and not loop.is_closed():
            resolve()
        else:
            with suppress(RuntimeError):  # the loop is closed, so it has no waiters any more
                loop.call_soon_threadsafe(resolve)

    return wake
