"""Events on their way to files: put in from anywhere without waiting, written by a thread.

The thread takes all that waits and appends it at once. It begins with the first event and ends when none has come for a
while, so that a log that nobody closes holds nothing. Whoever flushes writes what waits himself, in a thread of his
own choice; so it does not matter whether the log's own thread lives, as after a fork.

What cannot be written stays, up to a number of bytes. The next flush tries again, in a new file, and raises what it
meets with.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple
from weakref import WeakSet

from aioflow.errors import FailedPreconditionError, ResourceExhaustedError
from aioflow.formats.event_files import EventFile, new_event_file
from aioflow.formats.stores import is_url
from aioflow.formats.tfrecord import framed
from aioflow.protos import message
from aioflow.work.forking import renew_in_child

__all__ = ["EventLog"]

_LOGGER: Final = logging.getLogger("aioflow.summary")
_IDLE: Final = 5.0  # seconds that the thread waits for another event before it ends
_LEAST: Final = 64  # bytes that an event counts for at least
_VERSION: Final = "brain.Event:2"


class _Waiting(NamedTuple):
    made: Callable[[], bytes]
    size: int


class EventLog:
    """A series of event files in one folder.

    Args:
        logdir: A folder, or the URL of one in a store.
        max_bytes: How much may wait.
        flush_secs: Seconds after which events in a store are written; in a folder they are at once.
        suffix: The end of the files' names.
        clock: Gives seconds since 1970.
    """

    def __init__(
        self, logdir: str, max_bytes: int, flush_secs: float, suffix: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.logdir = logdir
        self.clock = clock
        self._max_bytes = max_bytes
        self._flush_secs = flush_secs
        self._suffix = suffix
        self._in_store = is_url(logdir)
        self._closed = False
        self._begin()
        renew_in_child(self)
        _LOGS.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition(threading.RLock())  # guards what follows
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._due = 0.0  # when the first of them is to be written, by the system's steady clock
        self._thread: threading.Thread | None = None
        self._failed = False  # the thread waits for somebody to look at the error
        self._unmade: Exception | None = None  # what an event that could not be made has failed with
        self._writing = threading.RLock()  # held by who writes
        self._file: EventFile | None = None

    def after_fork(self) -> None:
        """What waits is the parent's to write; a child has files of its own."""
        self._begin()

    @property
    def closed(self) -> bool:
        """Whether it takes no events."""
        return self._closed

    @property
    def waiting(self) -> int:
        """How many events wait."""
        return len(self._queue)

    # -- putting in ---------------------------------------------------------------------------------------------------

    def put(self, made: Callable[[], bytes], size: int) -> None:
        """Have an event written. Does not wait.

        Args:
            made: Gives its bytes, in another thread. What it raises is raised by the next flush.
            size: About how many.

        Raises:
            FailedPreconditionError: the log is closed.
            ResourceExhaustedError: too much is waiting.
        """
        size = max(size, _LEAST)
        with self._changed:
            if self._closed:
                raise FailedPreconditionError(
                    f"the event files in {self.logdir} are closed", expected="an open writer: reopen()", actual="closed"
                )
            if self._queue and self._bytes + size > self._max_bytes:
                raise ResourceExhaustedError(
                    f"too many events wait to be written to {self.logdir}",
                    expected=f"at most {self._max_bytes} bytes",
                    actual=f"{self._bytes} in {len(self._queue)} events, and {size} more",
                )
            if not self._queue:
                self._due = time.monotonic() + self._flush_secs
            self._queue.append(_Waiting(made, size))
            self._bytes += size
            if self._thread is None and not self._failed:
                self._thread = threading.Thread(target=self._serve, name="aioflow-events", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """The thread."""
        while self._wait():
            try:
                self._write()
            except Exception as error:
                _LOGGER.warning("events could not be written; the next flush tries again: %s", error)
                with self._changed:
                    self._failed = True

    def _wait(self) -> bool:
        """Whether there is something to write, when it is time for that; False to end the thread."""
        with self._changed:
            while self._failed or not self._queue or self._seconds_left() > 0:
                seconds = self._seconds_left() if self._queue else _IDLE
                ends = self._failed or (self._closed and not self._queue)
                if ends or not (self._changed.wait(seconds) or self._queue):
                    self._thread = None
                    return False
            return True

    def _seconds_left(self) -> float:
        return max(0.0, self._due - time.monotonic()) if self._in_store else 0.0

    def begin(self) -> None:
        """Begin a file in a folder, so that a folder that cannot be written to is found out now. Blocks."""
        if not self._in_store:
            self._write(begins=True)

    def flush(self) -> None:
        """Write what waits. Blocks.

        Raises:
            OpError: it cannot be written, and waits on; or an event could not be made, which is gone.
        """
        with self._changed:
            self._failed = False
        self._write()
        with self._changed:
            error, self._unmade = self._unmade, None
        if error is not None:
            raise error

    def close(self) -> None:
        """`flush`, and take no more events. Blocks. Raises as `flush`, and what could not be written is gone."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        try:
            self.flush()
        except Exception as error:
            if self._queue:
                error.add_note(f"{len(self._queue)} events were not written")
            raise
        finally:
            with self._writing, self._changed:
                self._queue.clear()
                self._bytes = 0
                self._file = None

    def reopen(self) -> None:
        """Take events again, in a new file."""
        self._closed = False

    def _write(self, begins: bool = False) -> None:
        with self._writing:
            with self._changed:
                batch = list(self._queue)
            if self._file is None:
                self._file = new_event_file(self.logdir, self.clock(), self._suffix)
            events = [event for waiting in batch if (event := self._made(waiting))]
            if self._file.is_new and (events or begins):
                events.insert(0, self._version())
            if events:
                self._append(self._file, b"".join(map(framed, events)))
            with self._changed:
                for each in batch:
                    self._queue.popleft()
                    self._bytes -= each.size

    def _append(self, file: EventFile, data: bytes) -> None:
        self._file = None  # where it cannot be written to, and in a store, the next one is another
        file.append(data)
        if not self._in_store:
            self._file = file

    def _made(self, waiting: _Waiting) -> bytes | None:
        try:
            return waiting.made()
        except Exception as error:
            self._unmade = error
            return None

    def _version(self) -> bytes:
        event = message("Event")(wall_time=self.clock(), file_version=_VERSION)
        event.source_metadata.writer = "aioflow"
        data: bytes = event.SerializeToString()
        return data


_LOGS: Final[WeakSet[EventLog]] = WeakSet()


@atexit.register
def _write_the_rest() -> None:
    """A program that ends without closing its writers loses nothing that it has put in."""
    for log in list(_LOGS):
        try:
            if log.waiting:
                log.flush()
        except Exception as error:
            _LOGGER.warning("events were not written at the end of the program: %s", error)
