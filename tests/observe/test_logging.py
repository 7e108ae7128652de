"""`aioflow.logging`, TensorFlow's functions over Python's `logging`."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

import aioflow as af
from aioflow.observe.logs import LogOptions, log_to


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger("aioflow")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
    af.get_logger.cache_clear()


def test_service_installs_its_log_although_the_logger_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    af.logging.info("a program's message")
    stream = io.StringIO()
    with log_to(LogOptions(level="info"), stream):
        af.logging.info("shown")
    assert stream.getvalue().endswith("shown\n")
    assert logging.getLogger().handlers == []


def test_functions_log_at_their_levels_from_the_callers_line(caplog: pytest.LogCaptureFixture) -> None:
    af.logging.set_verbosity(af.logging.DEBUG)
    assert af.logging.get_verbosity() == logging.DEBUG
    for name in ("debug", "info", "warning", "warn", "error", "fatal"):
        getattr(af.logging, name)("%s of %d", name, 3)
    af.logging.log(af.logging.INFO, "log")
    af.logging.vlog(1, "too detailed")
    af.logging.log_if(af.logging.INFO, "shown", True)
    af.logging.log_if(af.logging.INFO, "hidden", False)
    af.logging.TaskLevelStatusMessage("status")
    af.logging.flush()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (10, "debug of 3"),
        (20, "info of 3"),
        (30, "warning of 3"),
        (30, "warn of 3"),
        (40, "error of 3"),
        (50, "fatal of 3"),
        (20, "log"),
        (20, "shown"),
        (40, "status"),
    ]
    assert {(record.name, record.filename) for record in caplog.records} == {("aioflow", "test_logging.py")}


def test_calls_are_counted_by_line(caplog: pytest.LogCaptureFixture) -> None:
    af.logging.set_verbosity(af.logging.INFO)
    for i in range(5):
        af.logging.log_every_n(af.logging.INFO, "every %d", 2, i)
        af.logging.log_first_n(af.logging.INFO, "first %d", 2, i)
    assert caplog.messages == ["every 0", "first 0", "first 1", "every 2", "every 4"]


def test_unconfigured_program_logs_to_stderr_with_the_librarys_messages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    af.logging.set_verbosity(af.logging.INFO)
    af.logging.info("mine")
    logging.getLogger("aioflow.train").info("a hook's")
    af.logging.debug("hidden")
    assert capsys.readouterr().err == "INFO:aioflow:mine\nINFO:aioflow.train:a hook's\n"
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    af.logging.info("once: a configured program has handlers of its own")
    assert capsys.readouterr().err == ""
