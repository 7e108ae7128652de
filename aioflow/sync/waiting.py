"""Waiting inside a step: how a kernel waits for a resource, says what for, and leaves no trace if it is cancelled.

A resource's core is sans-IO: it is told of an attempt by a `Ticket` and answers with the tickets that are settled now.
`Waiting` drives one attempt on an event loop. Those who wait may be on several loops in several threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, ClassVar, Protocol

__all__ = ["StepAccount", "Ticket", "Waiting", "tell", "wake_all"]


class StepAccount(Protocol):
    """The interface by which kernels tell their step of changes and of elements that they have taken.

    Attributes:
        changed: Whether something has been changed for good that others see.
    """

    changed: bool

    def took(self, give_back: Callable[[], None]) -> None:
        """Note that an element has been taken; `give_back` puts it back, if the fetches are not delivered."""


class Ticket:
    """One attempt at a resource. The core that holds it settles it once, under the core's lock.

    Attributes:
        stays: Whether a withdrawal leaves what a settled one has done.
        settled: Whether the attempt is over.
        value: What it gave.
        error: Why it failed, or None.
        wake: Called, without the lock, when somebody else's event has settled it.
    """

    __slots__ = ("error", "settled", "value", "wake")

    stays: ClassVar[bool] = False

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self.settled = False
        self.value: Any = None
        self.error: Exception | None = None
        self.wake = wake

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        """The attempt is over."""
        self.settled = True
        self.value = value
        self.error = error


def wake_all(settled: Iterable[Ticket]) -> None:
    """Tell those who wait that they need not wait any more. Call it without the core's lock."""
    for ticket in settled:
        if ticket.wake is not None:
            ticket.wake()


def tell(step: StepAccount, withdraw: Callable[[Any], Iterable[Ticket]] | None, ticket: Ticket) -> None:
    """Tell a step of an attempt that has succeeded: for good, or until `withdraw` gives back what it got."""
    if withdraw is None:
        step.changed = True
    else:
        step.took(lambda: wake_all(withdraw(ticket)))


class Waiting:
    """What an async kernel returns where it has to wait: an awaitable that can say what it waits for.

    Args:
        submit: Hand the core a ticket; it returns all tickets that this settles, perhaps the same one.
        withdraw: Take the ticket back, also one that is settled and whose value nobody has taken; returns what that
            settles.
        make: Makes the ticket, given its `wake`.
        describe: What is being waited for, in words.
        finish: What the value becomes.
        release: What the end of the step does with that, if it is something that a step must not keep.
        told: Called with the ticket when it has succeeded.
    """

    __slots__ = ("_finish", "_make", "_submit", "_told", "_withdraw", "describe", "release")

    def __init__(
        self,
        submit: Callable[[Any], Iterable[Ticket]],
        withdraw: Callable[[Any], Iterable[Ticket]],
        make: Callable[[Callable[[], None]], Ticket],
        describe: Callable[[], str],
        finish: Callable[[Any], Any] | None = None,
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

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        ticket = self._make(_waker(loop, future))
        wake_all(self._submit(ticket))
        try:
            await future
        except BaseException:
            wake_all(self._withdraw(ticket))
            if ticket.stays and ticket.settled and ticket.error is None and self._told is not None:
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
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        if threading.get_ident() == home and not loop.is_closed():
            resolve()
        else:
            with suppress(RuntimeError):  # the loop is closed: nothing waits there any more
                loop.call_soon_threadsafe(resolve)

    return wake
