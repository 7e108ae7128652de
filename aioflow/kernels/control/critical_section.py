"""Kernels of locks. A lock is held until a node consumes it, or until the step ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.resources import resource_finder
from aioflow.sync.fair_lock import FairLock
from aioflow.sync.waiting import Ticket, Waiting, wake_all


class HeldLock:
    """A lock that is held. Either the node that consumes it or the end of the step releases it, whichever is first."""

    __slots__ = ("_guard", "_held", "mutex")

    def __init__(self, mutex: FairLock) -> None:
        self.mutex = mutex
        self._held = True
        self._guard = threading.Lock()

    def release(self) -> bool:
        """Pass the lock to the next waiter. Return True if it was still held."""
        # The consumer and the end of the step may call this from two threads; the first passes the lock on.
        with self._guard:
            held, self._held = self._held, False
        if held:
            wake_all(self.mutex.leave())
        return held


@binder("MutexV2", device="CPU", makes=FairLock)
def mutex(binding: Binding) -> Callable[[], FairLock]:
    return resource_finder(FairLock, binding, lambda name: FairLock(f"lock {name!r}"))


@binder("MutexLock", device="CPU", is_async=True, takes=FairLock, makes=HeldLock)
def lock(binding: Binding) -> Callable[[FairLock], Waiting]:
    def wait(mutex: FairLock) -> Waiting:
        # `_release` runs at the end of the step even if the lock was consumed; a second release does nothing.
        return Waiting(mutex.ask, mutex.withdraw, Ticket, mutex.describe, lambda _: HeldLock(mutex), _release)

    return wait


def _release(held: HeldLock) -> None:
    held.release()


@kernel("ConsumeMutexLock", device="CPU", takes={"mutex_lock": HeldLock})
def consume(mutex_lock: HeldLock) -> None:
    if not mutex_lock.release():
        raise InvalidArgumentError(
            f"{mutex_lock.mutex.name} has already been released", expected="one consumer", actual="a second one"
        )
