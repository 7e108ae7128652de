"""Logs of a program that runs until a signal: one format with time stamps and request ids, written by a thread.

`log_to` installs them with the standard `logging` module. Access records go to the logger `aioflow.access`.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TextIO, TypeAlias, get_args

from aioflow.concurrency.forking import renew_in_child

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["text", "json"]
AccessFormat: TypeAlias = Literal["off", "common", "json"]
LEVELS: Final = get_args(LogLevel)
FORMATS: Final = get_args(LogFormat)
ACCESS_FORMATS: Final = get_args(AccessFormat)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The form of a program's logs.

    Attributes:
        level: The least severe level of aioflow's own records. Records of other packages are logged from "warning" on.
        format: Lines of text, or one JSON object a line.
        access: The format of the access log, if there is one.
    """

    level: LogLevel = "info"
    format: LogFormat = "text"
    access: AccessFormat = "off"


# ── request ids ───────────────────────────────────────────────────────────────────────────────────────────────────────


TRACEPARENT: Final = "traceparent"  # W3C Trace Context: version, trace id, parent id, flags
REQUEST_ID_HEADER: Final = "x-request-id"  # of responses; with gRPC, in the trailing metadata
REQUEST_ID: Final[ContextVar[str]] = ContextVar("aioflow_request_id", default="")  # of the request of this task
_PARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def request_id(traceparent: str) -> str:
    """Return the trace id of a `traceparent`, or a new id if it is empty or malformed."""
    found = _PARENT.fullmatch(traceparent) if traceparent else None
    # Only later versions than 00 may have more parts.
    if found is None or (found[3] is not None and found[1] == "00"):
        # Not from `random`, whose numbers a program may have seeded, and whose state is the same in forked processes.
        return os.urandom(16).hex()
    return found[2]


# ── the access log ────────────────────────────────────────────────────────────────────────────────────────────────────


_ACCESS: Final = logging.getLogger("aioflow.access")


class AccessEntry(NamedTuple):
    """One answered request.

    Attributes:
        time: When it was answered, in seconds since 1970.
        client: Address of the client, or "-".
        method: HTTP method.
        path: Path without the query; with gRPC, of the service and the method.
        protocol: Such as "HTTP/1.1", or "gRPC".
        status: HTTP status; with gRPC, the equivalent one. 499 if the client has left.
        size: Bytes of the response body.
        seconds: Time from the head of the request to the end of the response.
        request_id: Its id.
    """

    time: float
    client: str
    method: str
    path: str
    protocol: str
    status: int
    size: int
    seconds: float
    request_id: str

    def __str__(self) -> str:
        """Return the entry in the Common Log Format, followed by the duration in seconds and the request id."""
        time = datetime.fromtimestamp(self.time, UTC)
        request = _printable(f"{self.method} {self.path} {self.protocol}").replace('"', '\\"')
        stamp = f"{time:%d}/{_MONTHS[time.month - 1]}/{time:%Y:%H:%M:%S} +0000"
        result = f"{self.status} {self.size} {self.seconds:.6f} {self.request_id}"
        return f'{self.client} - - [{stamp}] "{request}" {result}'

    def as_json(self) -> dict[str, object]:
        """Return the fields of a line of JSON."""
        return {
            "time": _timestamp(self.time),
            "logger": _ACCESS.name,
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "protocol": self.protocol,
            "status": self.status,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "request_id": self.request_id,
        }


def log_access(entry: AccessEntry) -> None:
    """Write an entry to the access log."""
    _ACCESS.info(entry)


# ── the format ────────────────────────────────────────────────────────────────────────────────────────────────────────


# strftime has those of the locale.
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CONTROL: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    0x0A: "\\n",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def _printable(text: str) -> str:
    """Return the text on one line: clients and models choose parts of messages, and must not forge lines."""
    return text if text.isprintable() else text.translate(_CONTROL)


def _timestamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


class LogFormatter(logging.Formatter):
    """The one format of all records.

    Text: "2026-01-31T12:00:00.000Z WARNING aioflow.serve[4711] message (request 4bf9…)", then the lines of a traceback.
    JSON: an object with `time`, `level`, `logger`, `process`, `message`, and if present `request_id` and `error`.
    """

    def __init__(self, options: LogOptions) -> None:
        super().__init__()
        self._options = options

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON, or as text."""
        if isinstance(record.msg, AccessEntry):
            as_json = self._options.access == "json"
            return json.dumps(record.msg.as_json()) if as_json else str(record.msg)
        number, traceback = REQUEST_ID.get(), self._traceback(record)
        if self._options.format == "json":
            found: dict[str, Any] = {
                "time": _timestamp(record.created),
                "level": record.levelname.lower(),
                "logger": record.name,
                "process": record.process,
                "message": record.getMessage(),
            }
            more = {"request_id": number, "error": traceback}
            return json.dumps(found | {name: text for name, text in more.items() if text})
        line = (
            f"{_timestamp(record.created)} {record.levelname} {record.name}[{record.process}] "
            f"{_printable(record.getMessage())}"
        )
        if number:
            line += f" (request {number})"
        return f"{line}\n{traceback}" if traceback else line

    def _traceback(self, record: logging.LogRecord) -> str:
        parts = [] if not record.exc_info else [self.formatException(record.exc_info)]
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


_MOST_LINES: Final = 10_000  # that wait for the thread
_CLOSE_SECONDS: Final = 2.0


class FallbackHandler(logging.StreamHandler[TextIO]):
    """A handler for programs that have not configured `logging`. It writes nothing if the root logger has a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message, unless the root logger has a handler, which also receives it."""
        if not logging.getLogger().handlers:
            # The stream of this moment, which the program may have replaced.
            self.stream = sys.stdout if is_interactive() else sys.stderr
            super().emit(record)


def is_interactive() -> bool:
    """Return whether the interpreter has a prompt."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


class BackgroundHandler(logging.Handler):
    """A handler that formats a record in the caller, and writes it in a thread.

    A pipe whose reader has stopped would otherwise block the event loop. Lines are dropped while too many wait, and
    their number is written later. A stream that has a file descriptor is written without its buffer.

    Args:
        stream: Where to write.
        most: Number of lines that may wait.
    """

    def __init__(self, stream: TextIO, most: int = _MOST_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._most = most
        self._thread: threading.Thread | None = None
        self._lines: queue.Queue[str | None] = queue.Queue(most)
        self._dropped = 0
        renew_in_child(self)

    def after_fork(self) -> None:
        """Leave the lines before the fork to the parent. The child's first record starts a thread of its own."""
        self._thread, self._lines, self._dropped = None, queue.Queue(self._most), 0

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record to the thread. `logging` holds the handler's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="aioflow-log", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    line = f"{self.format(_dropped_lines(dropped))}\n{line}"
                _write_to(self._stream, line + "\n")
            except (OSError, ValueError):  # the reader has closed the pipe, or the program the stream
                continue

    def close(self) -> None:
        """Write the remaining lines, but wait for a blocked stream at most for a moment."""
        if self._thread is not None:
            with suppress(queue.Full):
                self._lines.put(None, timeout=_CLOSE_SECONDS)
                self._thread.join(_CLOSE_SECONDS)
        super().close()


def _write_to(stream: TextIO, text: str) -> None:
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):
        stream.write(text)
        stream.flush()
        return
    # The lock of the stream's buffer would stay locked in a child that is forked while this thread writes.
    rest = memoryview(text.encode(stream.encoding or "utf-8", "backslashreplace"))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _dropped_lines(count: int) -> logging.LogRecord:
    text = "%d lines were not logged, because they could not be written in time"
    return logging.LogRecord("aioflow", logging.WARNING, __file__, 0, text, (count,), None)


@contextmanager
def log_to(options: LogOptions, stream: TextIO | None = None) -> Generator[None, None, None]:
    """Log in this form inside the block, to standard error by default.

    If the program has configured handlers for the root logger or for `aioflow`, these get aioflow's records instead. A
    level that it has chosen for `aioflow` stays.
    """
    root, own = logging.getLogger(), logging.getLogger("aioflow")
    before = [(each, each.level, each.propagate) for each in (root, own, _ACCESS)]
    is_configured = any(not isinstance(each, FallbackHandler) for each in (*own.handlers, *root.handlers))
    handler = BackgroundHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(LogFormatter(options))
    level = options.level.upper()
    if own.level == logging.NOTSET:
        own.setLevel(level)
    if not is_configured:
        root.addHandler(handler)
        root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
    if options.access != "off":
        _ACCESS.addHandler(handler)
        _ACCESS.propagate = False
        # Whatever the level of the other records: the access log has a switch of its own.
        _ACCESS.setLevel(logging.INFO)
    try:
        yield
    finally:
        for each, number, propagates in before:
            each.removeHandler(handler)
            each.setLevel(number)
            each.propagate = propagates
        handler.close()
