"""Logs of programs: request ids, the two formats, the access log, and the thread that writes."""

from __future__ import annotations

import io
import json
import logging
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import pytest

from aioflow.observe import logs
from aioflow.observe.logs import (
    REQUEST_ID,
    AccessEntry,
    BackgroundHandler,
    LogFormatter,
    LogOptions,
    log_to,
    request_id,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
TIME = 1_764_547_200.5  # 2025-12-01 00:00:00.5 UTC
ENTRY = AccessEntry(TIME, "10.0.0.1", "POST", "/v2/models/m/infer", "HTTP/1.1", 200, 512, 0.0012345, TRACE)


def record(text: str, *arguments: object, **named: Any) -> logging.LogRecord:
    found = logging.LogRecord("aioflow.serve", logging.WARNING, __file__, 1, text, arguments, named.get("exc_info"))
    found.created, found.process = TIME, 7
    return found


# ── request ids ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("parent", [PARENT, PARENT.replace("00-", "cc-", 1), f"cc{PARENT[2:]}-more"])
def test_request_id_is_the_trace_id_of_the_client(parent: str) -> None:
    assert request_id(parent) == TRACE


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        PARENT.upper(),
        f"ff{PARENT[2:]}",  # a version that the standard excludes
        f"{PARENT}-more",  # version 00 has four parts
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT}\n",
    ],
)
def test_malformed_traceparent_is_replaced_by_a_new_id(parent: str) -> None:
    made = {request_id(parent) for _ in range(3)}
    assert len(made) == 3
    assert all(len(each) == 32 and int(each, 16) and each != TRACE for each in made)


def test_new_ids_neither_repeat_nor_use_up_the_numbers_of_a_seeded_program() -> None:
    random.seed(0)
    before = random.getstate()
    first = request_id("")
    assert random.getstate() == before
    assert request_id("") != first


# ── formats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_has_time_level_logger_process_and_request() -> None:
    formatter = LogFormatter(LogOptions())
    line = "2025-12-01T00:00:00.500Z WARNING aioflow.serve[7] model m is slow"
    assert formatter.format(record("model %s is slow", "m")) == line
    context = copy_context()
    context.run(REQUEST_ID.set, TRACE)
    assert context.run(formatter.format, record("model m is slow")) == f"{line} (request {TRACE})"


def test_messages_cannot_forge_lines() -> None:
    text = LogFormatter(LogOptions()).format(record("no model %s", "a\n2025-12-01 all is well\x1b[31m\u2028"))
    assert text.endswith("no model a\\n2025-12-01 all is well\\x1b[31m\\u2028")
    assert LogFormatter(LogOptions(format="json")).format(record("a\nb")).count("\n") == 0


def test_json_is_one_object_a_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        failed = record("it failed", exc_info=sys.exc_info())
    context = copy_context()
    context.run(REQUEST_ID.set, TRACE)
    line = context.run(LogFormatter(LogOptions(format="json")).format, failed)
    assert "\n" not in line
    found = json.loads(line)
    assert found.pop("error").endswith("ValueError: wrong")
    assert found == {
        "time": "2025-12-01T00:00:00.500Z",
        "level": "warning",
        "logger": "aioflow.serve",
        "process": 7,
        "message": "it failed",
        "request_id": TRACE,
    }
    assert "\nTraceback" in LogFormatter(LogOptions()).format(failed)


def test_access_log_in_the_common_format() -> None:
    line = f'10.0.0.1 - - [01/Dec/2025:00:00:00 +0000] "POST /v2/models/m/infer HTTP/1.1" 200 512 0.001234 {TRACE}'
    assert LogFormatter(LogOptions(access="common")).format(access(ENTRY)) == line
    forged = ENTRY._replace(path='/" 200 0\n10.0.0.1')
    assert '"POST /\\" 200 0\\n10.0.0.1 HTTP/1.1" 200' in LogFormatter(LogOptions()).format(access(forged))


def test_access_log_as_json() -> None:
    assert json.loads(LogFormatter(LogOptions(access="json")).format(access(ENTRY))) == {
        "time": "2025-12-01T00:00:00.500Z",
        "logger": "aioflow.access",
        "client": "10.0.0.1",
        "method": "POST",
        "path": "/v2/models/m/infer",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 512,
        "seconds": 0.001234,
        "request_id": TRACE,
    }


def access(entry: AccessEntry) -> logging.LogRecord:
    return logging.LogRecord("aioflow.access", logging.INFO, __file__, 1, entry, (), None)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Blocked(io.StringIO):
    """A stream that blocks its writer until it is released, as a full pipe does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_entered, self.is_released = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_entered.set()
        self.is_released.wait()
        return super().write(text)


def test_blocked_stream_does_not_block_the_caller() -> None:
    stream = Blocked()
    handler = BackgroundHandler(stream, most=2)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.emit(record("0"))
    stream.is_entered.wait()
    for number in range(1, 6):  # two of these may wait
        handler.emit(record(str(number)))
    stream.is_released.set()
    handler.close()
    first, *rest = stream.getvalue().splitlines()
    assert first == "0"
    assert rest == ["3 lines were not logged, because they could not be written in time", "1", "2"]


def test_close_does_not_wait_for_a_stream_that_stays_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_CLOSE_SECONDS", 0.01)
    stream = Blocked()
    handler = BackgroundHandler(stream, most=1)
    handler.emit(record("0"))
    stream.is_entered.wait()
    handler.emit(record("1"))
    handler.close()
    stream.is_released.set()


def test_closed_stream_does_not_end_the_thread() -> None:
    stream = io.StringIO()
    stream.close()
    handler = BackgroundHandler(stream)
    handler.emit(record("0"))
    handler.close()
    assert handler._thread is not None
    assert not handler._thread.is_alive()


@contextmanager
def bare() -> Iterator[None]:
    """Remove pytest's own handlers, as in a program that has configured no logging."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


def test_logging_is_installed_inside_the_block_only() -> None:
    stream = io.StringIO()
    names = ("", "aioflow", "aioflow.access")
    before = [(logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in names]
    with bare(), log_to(LogOptions(level="info", access="common"), stream):
        logging.getLogger("aioflow.serve").info("shown")
        logging.getLogger("aioflow.serve").debug("hidden")
        logging.getLogger("another").info("hidden, too")
        logging.getLogger("another").warning("shown, too")
        logs.log_access(ENTRY)
    lines = [line.rpartition("] ")[2] for line in stream.getvalue().splitlines()]
    assert lines == ["shown", "shown, too", str(ENTRY).rpartition("] ")[2]]
    assert [(logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in names] == before


def test_access_log_is_independent_of_the_level() -> None:
    stream = io.StringIO()
    with bare(), log_to(LogOptions(level="error", access="common"), stream):
        logging.getLogger("aioflow.serve").warning("hidden")
        logs.log_access(ENTRY)
    assert stream.getvalue() == f"{ENTRY}\n"


def test_handlers_of_the_program_stay() -> None:
    own, stream = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(own)
    logging.getLogger("aioflow").addHandler(handler)
    try:
        with bare(), log_to(LogOptions(), stream):
            logging.getLogger("aioflow.serve").info("to the handler of the program")
    finally:
        logging.getLogger("aioflow").removeHandler(handler)
    assert (own.getvalue(), stream.getvalue()) == ("to the handler of the program\n", "")
