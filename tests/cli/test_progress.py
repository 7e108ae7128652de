"""The progress of commands: one line on a terminal, erased at the end; no output elsewhere."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import aioflow as af
from aioflow.cli.progress import Progress
from aioflow.train import write_graph
from tests.support.processes import SECONDS, program


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the texts of the line, in order."""
        return [text for text in self.getvalue().split("\r\x1b[K") if text]


def clock(seconds: float) -> Callable[[], float]:
    """Return a clock that advances by `seconds` per call."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += seconds
        return now

    return look


def test_line_shows_the_done_part_and_the_remaining_time() -> None:
    terminal = Terminal()
    shown = Progress("steps", 4, stream=terminal, clock=clock(1.0))
    for _ in range(4):
        shown.advance()
    shown.close()
    assert [re.sub(r", .*", "", line) for line in terminal.lines()] == [
        f"steps [{'#' * 6 * done:-<24}] {done}/4" for done in range(5)
    ]
    assert all(re.search(r", [\d.]+ m?s left$", line) for line in terminal.lines()[1:4])
    assert terminal.getvalue().endswith("\r\x1b[K"), "the line is taken away"


def test_line_is_drawn_a_few_times_a_second() -> None:
    terminal = Terminal()
    shown = Progress("steps", 1000, stream=terminal, clock=clock(0.0009))
    for _ in range(1000):
        shown.advance()
    assert len(terminal.lines()) <= 1 + 1000 * 0.0018 / 0.1


def test_progress_without_a_total_counts() -> None:
    terminal = Terminal()
    shown = Progress("measurement", stream=terminal, clock=clock(1.0))
    shown.advance()
    assert terminal.lines() == ["measurement …", "measurement 1"]


def test_no_output_without_a_terminal() -> None:
    stream = io.StringIO()
    shown = Progress("steps", 3, stream=stream)
    shown.advance()
    shown.close()
    assert stream.getvalue() == ""


@pytest.fixture
def model(tmp_path: Path) -> str:
    with af.Graph().as_default() as graph:
        af.negative(af.placeholder("float32", [2], name="x"), name="y")
    return write_graph(graph, tmp_path, "model.pbtxt")


def test_command_in_a_pipe_shows_no_progress(model: str) -> None:
    command = ("-m", "aioflow", "run", model, "--fill", "ones", "--repeat", "20")
    with program(*command, stderr=subprocess.PIPE) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert errors == ""
    assert "20 steps: median" in output


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
def test_command_on_a_terminal_shows_progress(model: str) -> None:
    ours, theirs = os.openpty()
    command = ("-m", "aioflow", "run", model, "--fill", "ones", "--repeat", "20")
    try:
        with program(*command, stderr=theirs) as process:
            output, _ = process.communicate(timeout=SECONDS)
            os.close(theirs)
            seen = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
    assert f"loading {model}"[:60] in seen
    assert "steps [" in seen
    assert seen.endswith("\r\x1b[K")
    assert "\x1b" not in output
