"""Progress of commands: a line on a terminal, which is gone at the end, and nothing anywhere else."""

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
from tests.processes import SECONDS, program


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What could be read there, one after the other."""
        return [text for text in self.getvalue().split("\r\x1b[K") if text]


def clock(seconds: float) -> Callable[[], float]:
    """One that goes on by so much each time it is looked at."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += seconds
        return now

    return look


def test_it_tells_how_much_is_done_and_how_long_it_will_take() -> None:
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


def test_it_is_drawn_a_few_times_a_second() -> None:
    terminal = Terminal()
    shown = Progress("steps", 1000, stream=terminal, clock=clock(0.0009))
    for _ in range(1000):
        shown.advance()
    assert len(terminal.lines()) <= 1 + 1000 * 0.0018 / 0.1


def test_where_nobody_knows_how_much_there_is_it_counts() -> None:
    terminal = Terminal()
    shown = Progress("measurement", stream=terminal, clock=clock(1.0))
    shown.advance()
    assert terminal.lines() == ["measurement …", "measurement 1"]


def test_beside_a_terminal_there_is_nothing() -> None:
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


def test_a_command_says_nothing_of_it_in_a_pipe(model: str) -> None:
    command = ("-m", "aioflow", "run", model, "--fill", "ones", "--repeat", "20")
    with program(*command, stderr=subprocess.PIPE) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert errors == ""
    assert "20 steps: median" in output


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
def test_a_command_shows_it_on_a_terminal(model: str) -> None:
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
