"""A queue of events for event files: any thread adds events without waiting, a background thread writes them; readers.

The thread takes all waiting events and appends them at once. It starts with the first event and ends when no event
arrives for a while, so a log that is never closed holds no thread. A flush writes the waiting events itself, in the
thread that calls it. So flushing works even if the log's own thread is not alive, as after a fork.

Events that cannot be written stay in the queue, up to a number of bytes. The next flush tries again, in a new file, and
raises the error.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from weakref import WeakSet

from aioflow.concurrency.forking import renew_in_child
from aioflow.errors import FailedPreconditionError, ResourceExhaustedError
from aioflow.formats.event_files import EventFile, new_event_file
from aioflow.formats.stores import is_url
from aioflow.formats.tfrecord import framed, tf_record_iterator
from aioflow.protos import Message, message, parse

_LOGGER: Final = logging.getLogger("aioflow.summary")
_IDLE: Final = 5.0  # seconds that the thread waits for another event before it ends
_LEAST: Final = 64  # minimum size of an event in the accounting, in bytes
_VERSION: Final = "brain.Event:2"


class _Waiting(NamedTuple):
    made: Callable[[], bytes]
    size: int


class EventLog:
    """A series of event files in one folder.

    Args:
        logdir: A folder, or its URL in a store.
        max_bytes: Maximum size of the waiting events.
        flush_secs: Seconds after which events in a store are written; in a folder they are written at once.
        suffix: End of the files' names.
        clock: Function that returns seconds since 1970.
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
        self._changed = threading.Condition(threading.RLock())  # guards the following attributes
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._due = 0.0  # time at which the first event is to be written, by the monotonic clock
        self._thread: threading.Thread | None = None
        self._failed = False  # True after a failed write: no thread runs until the next flush
        self._unmade: Exception | None = None  # error of an event that could not be made
        self._writing = threading.RLock()  # held while writing
        self._file: EventFile | None = None

    def after_fork(self) -> None:
        """Start empty in a forked child, with files of its own: the parent writes its own waiting events."""
        self._begin()

    @property
    def closed(self) -> bool:
        """True if the log accepts no events."""
        return self._closed

    @property
    def waiting(self) -> int:
        """Number of waiting events."""
        return len(self._queue)

    # -- queueing -----------------------------------------------------------------------------------------------------

    def put(self, made: Callable[[], bytes], size: int) -> None:
        """Queue an event. Does not wait.

        Args:
            made: Function that returns the event's bytes, called in another thread. The next flush raises its errors.
            size: Approximate number of bytes.

        Raises:
            FailedPreconditionError: the log is closed.
            ResourceExhaustedError: too many bytes are waiting.
        """
        size = max(size, _LEAST)
        # The lock is held for a few statements only, never during a write, so `put` does not wait for the disk.
        with self._changed:
            if self._closed:
                raise FailedPreconditionError(
                    f"the event files in {self.logdir} are closed", expected="an open writer: reopen()", actual="closed"
                )
            # A single event of any size is accepted.
            if self._queue and self._bytes + size > self._max_bytes:
                raise ResourceExhaustedError(
                    f"too many events wait to be written to {self.logdir}",
                    expected=f"at most {self._max_bytes} bytes",
                    actual=f"{self._bytes} in {len(self._queue)} events, and {size} more",
                )
            # The first event of a batch sets the time; later ones do not postpone it.
            if not self._queue:
                self._due = time.monotonic() + self._flush_secs
            self._queue.append(_Waiting(made, size))
            self._bytes += size
            # Started under the lock, so that only one thread serves the log.
            if self._thread is None and not self._failed:
                self._thread = threading.Thread(target=self._serve, name="aioflow-events", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Write events until `_wait` ends the thread."""
        while self._wait():
            try:
                self._write()
            except Exception as error:
                _LOGGER.warning("events could not be written; the next flush tries again: %s", error)
                with self._changed:
                    self._failed = True

    def _wait(self) -> bool:
        """Wait until it is time to write, and return True; return False to end the thread."""
        with self._changed:
            while self._failed or not self._queue or self._seconds_left() > 0:
                seconds = self._seconds_left() if self._queue else _IDLE
                ends = self._failed or (self._closed and not self._queue)
                # False: the time is over and nothing has arrived.
                if ends or not (self._changed.wait(seconds) or self._queue):
                    # Under the lock: a `put` after this starts another thread.
                    self._thread = None
                    return False
            return True

    def _seconds_left(self) -> float:
        return max(0.0, self._due - time.monotonic()) if self._in_store else 0.0

    def begin(self) -> None:
        """Begin a file in a folder, so that an error of an unwritable folder is raised now. Blocks."""
        if not self._in_store:
            self._write(begins=True)

    def flush(self) -> None:
        """Write the waiting events. Blocks.

        Raises:
            OpError: events cannot be written and stay in the queue; or an event could not be made and is lost.
        """
        with self._changed:
            # A flush permits the thread again: the reason of the failure may be gone.
            self._failed = False
        self._write()
        with self._changed:
            # Taken out, so that each error is raised once.
            error, self._unmade = self._unmade, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Flush, and accept no more events. Blocks. Raises as `flush`; events that could not be written are lost."""
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
            # The same order of locks as in `_write`, so that two threads never wait for each other.
            with self._writing, self._changed:
                self._queue.clear()
                self._bytes = 0
                self._file = None

    def reopen(self) -> None:
        """Accept events again, in a new file."""
        self._closed = False

    def _write(self, begins: bool = False) -> None:
        with self._writing:
            # A copy: events are added during the write, behind those of the batch.
            with self._changed:
                batch = list(self._queue)
            if self._file is None:
                self._file = new_event_file(self.logdir, self.clock(), self._suffix)
            # Events are made here, in the writing thread: a large graph takes long to encode.
            events = [event for waiting in batch if (event := self._made(waiting))]
            if self._file.is_new and (events or begins):
                # As in TensorFlow's files, the first event states the version of the format.
                events.insert(0, self._version())
            if events:
                self._append(self._file, b"".join(map(framed, events)))
            # Only now: if the write fails, the events are still in the queue, in order.
            with self._changed:
                for each in batch:
                    self._queue.popleft()
                    self._bytes -= each.size

    def _append(self, file: EventFile, data: bytes) -> None:
        self._file = None  # after a failed write, and in a store, the next write begins another file
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
    """Write the waiting events at exit, so that a program that does not close its writers loses none."""
    for log in list(_LOGS):
        try:
            if log.waiting:
                log.flush()
        except Exception as error:
            _LOGGER.warning("events were not written at the end of the program: %s", error)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def summary_iterator(path: str | os.PathLike[str]) -> Iterator[Message]:
    """Yield the `Event` messages of a file, in order. Reading blocks: beside an event loop, iterate in a thread.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: a record is truncated or altered, or is not an event.
    """
    for record in tf_record_iterator(path):
        yield parse("Event", record)
