"""The parts of `benchmarks.gpu` as processes: time limits, output and logs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu import Part, launch

FAILING = "print('| a |'); raise RuntimeError('lost')"
ENDLESS = "import time; time.sleep(600)"


def test_failing_part_leaves_its_rows_and_its_traceback(tmp_path: Path) -> None:
    outcome = launch(Part("failing", "", 60, ("-c", FAILING)), 60, tmp_path)
    assert outcome.output == "| a |"
    assert outcome.problem == "ended with status 1"
    assert outcome.errors.endswith("RuntimeError: lost")
    log = (tmp_path / "sections.log").read_text("utf-8")
    assert log.startswith("== failing\n")
    assert "RuntimeError: lost" in log
    assert [path.name for path in tmp_path.iterdir()] == ["sections.log"]


def test_endless_part_is_stopped(tmp_path: Path) -> None:
    outcome = launch(Part("tests", "", 60, ("-c", ENDLESS), is_table=False), 1, tmp_path)
    assert outcome.problem == "stopped after 1 s"
    assert (tmp_path / "tests.log").exists()
