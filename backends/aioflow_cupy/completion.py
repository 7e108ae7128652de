"""Notification of asyncio about GPU events: one thread per device polls them, and wakes the event loop.

Python code in a callback of CUDA's driver can deadlock, because it holds the driver's lock and waits for the GIL. So
the driver calls nothing here. A thread that waits inside `cudaEventSynchronize` for one stream's event cannot be woken
for another's. So the thread here polls. The interval between two polls grows with the time already waited: polling adds
a sixteenth of that time, and at most a millisecond.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from aioflow.errors import AioflowError, InternalError
from aioflow_cupy.driver import Event

_SHORTEST: Final = 20e-6  # seconds between two polls
_LONGEST: Final = 1e-3
_SHARE: Final = 1 / 16  # of the time already waited


class _Entry:
    __slots__ = ("callback", "event", "since")

    def __init__(self, event: Event, callback: Callable[[Exception | None], None], since: float) -> None:
        self.event = event
        self.callback = callback
        self.since = since


class Completions:
    """A watcher of GPU events. Its thread starts with the first event; `close` ends the thread after the last one."""

    def __init__(self, name: str, clock: Callable[[], float] = monotonic) -> None:
        self._name = name
        self._clock = clock
        self._changed = threading.Condition()
        self._entries: list[_Entry] = []
        self._thread: threading.Thread | None = None
        self._closing = False

    def call(self, event: Event, callback: Callable[[Exception | None], None]) -> None:
        """Call `callback(error or None)` in the thread after the event. The callback must be short and must not raise.

        Raises:
            InternalError: after `close`.
        """
        with self._changed:
            if self._closing:
                raise InternalError("the device is closed", expected="no more work", actual=self._name)
            self._entries.append(_Entry(event, callback, self._clock()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=f"aioflow{self._name}-events", daemon=True)
                self._thread.start()
            self._changed.notify()

    def hold(self, event: Event, *values: object) -> None:
        """Keep the values alive until the event has passed, because another stream or device reads their memory."""
        kept = list(values)
        self.call(event, lambda error: kept.clear())

    def future(self, event: Event, finish: Callable[[], Any] = lambda: None) -> asyncio.Future[Any]:
        """Return a future of the running loop for the result of `finish`.

        The loop calls `finish` after the event, even if the future has been cancelled. If the device fails, the future
        raises InternalError.

        Raises:
            InternalError: after `close`.
        """
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Any] = loop.create_future()

        def deliver(error: Exception | None) -> None:
            with suppress(RuntimeError):  # the loop was closed, so there is no waiter left
                loop.call_soon_threadsafe(_resolve, made, finish, error)

        self.call(event, deliver)
        return made

    def close(self) -> None:
        """Wait until every event has passed, and end the thread. Blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        # A callback may close the device, and its thread cannot wait for itself.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._entries and not self._closing:
                    self._changed.wait()
                if not self._entries:
                    return
                # A copy, because the events are polled without the lock.
                entries = list(self._entries)
            passed = [(entry, error) for entry in entries for done, error in [_ask(entry.event)] if done]
            if passed:
                gone = {id(entry) for entry, _ in passed}
                with self._changed:
                    self._entries = [entry for entry in self._entries if id(entry) not in gone]
                for entry, error in passed:
                    entry.callback(error)
                # A sleeping thread must not keep values of callbacks alive.
                del entries, passed, entry, error
                continue
            self._rest(entries)
            del entries

    def _rest(self, entries: list[_Entry]) -> None:
        waited = self._clock() - max(entry.since for entry in entries)  # the newest may be short
        with self._changed:
            # Only this thread removes entries, so an equal number means that `call` has not notified it since the copy.
            if len(self._entries) == len(entries):  # no new entry meanwhile
                self._changed.wait(min(max(waited * _SHARE, _SHORTEST), _LONGEST))


def _ask(event: Event) -> tuple[bool, Exception | None]:
    """Return whether the event has passed or failed, and the device's error or None."""
    try:
        return bool(event.done), None
    except Exception as error:
        return True, error


def _resolve(future: asyncio.Future[Any], finish: Callable[[], Any], error: Exception | None) -> None:
    result: Any = None
    try:
        result = finish()  # also after an error, since it releases what the copy holds
    except Exception as raised:
        # An error of the device is the cause, and an error of `finish` only follows from it.
        error = error or raised
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(_device_error(error))


def _device_error(error: Exception) -> Exception:
    if isinstance(error, AioflowError):
        return error
    made = InternalError(f"the device failed: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
