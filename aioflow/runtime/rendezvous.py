"""The rendezvous of Send and Recv nodes between devices, one object per step and worker (whitepaper, 3.2.2).

A key is the name of an edge with the tag (frames and iterations) of the value. A Send never waits: a value without a
receiver is kept. A Recv gets the value at once, or later by an awaitable or a callback. Sends may come from any thread;
receives are made on the step's event loop. Aborting drops the kept values, and later receives raise the first cause.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial
from typing import Final, TypeAlias

from aioflow.errors import InternalError, OpError
from aioflow.memory.values import Value

PENDING: Final = object()  # returned if the value has not arrived

# Sends a value to another worker: (edge name, tag, value, destination device).
Push: TypeAlias = Callable[[str, str, Value, str], None]
_Key: TypeAlias = tuple[str, str]


class Arrival:
    """A value that has not arrived. It can be awaited once, and describes what it waits for."""

    __slots__ = ("_future", "_name", "_source")

    def __init__(self, future: asyncio.Future[Value], name: str, source: str) -> None:
        self._future = future
        self._name = name
        self._source = source

    def __await__(self) -> Generator[object, None, Value]:
        return self._future.__await__()

    def describe(self) -> str:
        """Return a description of the edge and its sender."""
        return f"Recv of {self._name} from {self._source}"


class Rendezvous:
    """The rendezvous of one step on one worker.

    Args:
        loop: The step's event loop.
        here: The devices of this worker.
        push: Sends a value to the worker of another device.

    Attributes:
        has_sent: Whether it has sent a value to another worker.
    """

    __slots__ = ("_context", "_error", "_here", "_home", "_lock", "_loop", "_push", "_values", "_waiting", "has_sent")

    def __init__(self, loop: asyncio.AbstractEventLoop, here: frozenset[str], push: Push | None = None) -> None:
        self._loop = loop
        self._here = here
        self._push = push
        self._home = threading.get_ident()
        self._lock = threading.Lock()
        self._values: dict[_Key, Value] = {}
        self._waiting: dict[_Key, Callable[[Value], None]] = {}
        self._context = copy_context()
        self._error: OpError | None = None
        self.has_sent = False

    def send(self, name: str, tag: str, value: Value, to: str) -> None:
        """Send a value to device `to`, to be received now or later."""
        if to in self._here:
            self.deliver(name, tag, value)
        elif self._push is None:
            raise InternalError(f"nothing leads from here to {to}", expected=sorted(self._here), actual=to)
        else:
            self.has_sent = True
            self._push(name, tag, value, to)

    def deliver(self, name: str, tag: str, value: Value) -> bool:
        """Deliver a value to a device of this worker, and return whether it is kept because it has no receiver yet."""
        key = (name, tag)
        with self._lock:
            if self._error is not None:
                return False
            take = self._waiting.pop(key, None)
            if take is None:
                if key in self._values:
                    raise InternalError(f"the value of edge {name!r} was sent twice", expected="one Send", actual=tag)
                self._values[key] = value
                return True
        # A receiver runs only on the step's loop; there it is called directly, which saves a turn of the loop.
        # Without the lock, which is not reentrant: `take` may send and receive further values.
        if threading.get_ident() == self._home:
            take(value)
        else:
            self._loop.call_soon_threadsafe(take, value, context=self._context)
        return False

    def kept(self) -> list[tuple[str, str, Value]]:
        """Return edge, tag and value of each value without a receiver."""
        with self._lock:
            return [(*key, value) for key, value in self._values.items()]

    def receive(self, name: str, tag: str, take: Callable[[Value], None]) -> Value:
        """Return the value or PENDING.

        If the value is pending, `take` is called with it on the step's loop, unless the step is aborted before.

        Raises:
            OpError: the step was aborted; the first cause.
        """
        key = (name, tag)
        with self._lock:
            if self._error is not None:
                raise self._error
            if key in self._values:
                return self._values.pop(key)
            if key in self._waiting:
                raise InternalError(f"edge {name!r} has two receivers", expected="one Recv", actual=tag)
            self._waiting[key] = take
            return PENDING

    def recv(self, name: str, tag: str, source: str) -> Value:
        """Return the value, or an `Arrival` if it has not arrived. Raises like `receive`."""
        future = self._loop.create_future()
        value = self.receive(name, tag, partial(_resolve, future))
        return Arrival(future, name, source) if value is PENDING else value

    def abort(self, error: OpError) -> None:
        """Drop the kept values and let later receives raise the first error. The step stops its pending receives."""
        with self._lock:
            if self._error is None:
                self._error = error
                self._waiting.clear()
                self._values.clear()


def _resolve(future: asyncio.Future[Value], value: Value) -> None:
    # The wait may have been cancelled after the value was sent.
    if not future.done():
        future.set_result(value)
