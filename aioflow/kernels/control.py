"""Kernels of Assert, Print, Abort and of locks. The runtime itself interprets Switch, Merge and the ops of loops."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np

from aioflow.errors import AbortedError, InvalidArgumentError
from aioflow.kernels.convert import as_bytes
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.resources import resource_finder
from aioflow.memory.values import Array, Value
from aioflow.sync.fair_lock import FairLock
from aioflow.sync.waiting import Ticket, Waiting, wake_all


@binder("Assert", synchronises=True)
def check(binding: Binding) -> Callable[[Array, Sequence[Array]], None]:
    on_host, summarize = binding.backend.on_host, binding.attrs["summarize"]

    def check(condition: Array, data: Sequence[Array]) -> None:
        if np.ndim(condition) != 0:
            raise InvalidArgumentError(
                "the condition of an Assert must be a scalar", expected="shape ()", actual=np.shape(condition)
            )
        if not condition:
            shown = " ".join(_summary(on_host(value), summarize) for value in data)
            raise InvalidArgumentError(f"assertion failed: {shown}", expected="true", actual="false")

    return check


@kernel("Abort")
def abort(*, error_msg: str, exit_without_error: bool) -> None:
    if not exit_without_error:
        raise AbortedError(error_msg or "the step was aborted by an Abort node")


@binder("Print", synchronises=True)
def print_values(binding: Binding) -> Callable[[Array, Sequence[Array]], Array]:
    message, limit, summarize = (binding.attrs[k] for k in ("message", "first_n", "summarize"))
    # Shared by all steps of the session, because `first_n` counts the messages of all of them.
    count: list[int] = binding.shared(lambda: [0])
    on_host = binding.backend.on_host

    def show(value: Array, data: Sequence[Array]) -> Array:
        # A negative `first_n` stands for no limit.
        if limit < 0 or count[0] < limit:
            count[0] += 1
            _write(message + "".join(_summary(on_host(v), summarize) for v in data) + "\n", "stderr")
        return value

    return show


@binder("PrintV2", host={"input": as_bytes})
def print_text(binding: Binding) -> Callable[[bytes], None]:
    stream, end = binding.attrs["output_stream"], binding.attrs["end"]

    def show(text: bytes) -> None:
        _write(text.decode(errors="replace") + end, "stdout" if stream == "stdout" else "stderr")

    return show


def _write(text: str, stream: str) -> None:
    # Looked up in each call, since a program may redirect the stream.
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.write(text)
    target.flush()


def _text(value: Value) -> str:
    item = value.item() if isinstance(value, np.ndarray) else value
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)


def _summary(value: Array, limit: int) -> str:
    """Return the first elements in one pair of brackets. A string scalar has no brackets."""
    array = np.asarray(value)
    if array.ndim == 0:
        return f"[{_text(array)}]" if array.dtype != object else _text(array)
    flat = array.reshape(-1)
    shown = flat if limit < 0 else flat[:limit]
    more = "..." if 0 <= limit < flat.size else ""
    return "[" + " ".join(_text(v) for v in shown) + more + "]"


# ── locks: each is held until a node consumes it, or until the step ends ──────────────────────────────────────────────


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
