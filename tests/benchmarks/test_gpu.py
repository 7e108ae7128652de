"""The program for a GPU: budgets, files and the training steps, on fakes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioflow_cupy.backend import CupyBackend
from benchmarks import gpu, gpu_sections, gpu_steps
from benchmarks.gpu import Outcome, Part
from tests.backends.cupy.fake_driver import FakeDriver

TABLE = Part("table", "A table", 100, ())
TESTS = Part("tests", "Tests", 50, (), is_table=False)
LAST = Part("last", "The last one", 100, ())


class Clock:
    """A clock that advances by what each part takes."""

    def __init__(self, durations: dict[str, float], problems: dict[str, str]) -> None:
        self.now = 0.0
        self.limits: dict[str, float] = {}
        self.seen: list[str] = []
        self._durations, self._problems = durations, problems

    def launch(self, part: Part, limit: float, folder: Path) -> Outcome:
        results = folder / "RESULTS_GPU.md"
        self.seen.append(results.read_text("utf-8") if results.exists() else "")
        self.limits[part.name] = limit
        taken = min(self._durations[part.name], limit)
        self.now += taken
        return Outcome(f"| {part.name} |", taken, self._problems.get(part.name), f"a traceback of {part.name}")


def measured(folder: Path, limit: float, durations: dict[str, float], **problems: str) -> tuple[int, str, Clock]:
    clock = Clock(durations, problems)
    failed = gpu.run(
        (TABLE, TESTS, LAST), folder, limit, "# Head", launch=clock.launch, clock=lambda: clock.now, show=lambda _: None
    )
    return failed, (folder / "RESULTS_GPU.md").read_text("utf-8"), clock


def test_results_are_written_after_each_part(tmp_path: Path) -> None:
    failed, text, clock = measured(tmp_path / "new", 200, {"table": 10, "tests": 20, "last": 30})
    assert failed == 0
    assert clock.limits == {"table": 100, "tests": 50, "last": 100}
    assert clock.seen[0] == ""
    assert "| table |" in clock.seen[1]
    assert "| tests |" in clock.seen[2]
    assert text.startswith("# Head\n\n## A table\n\n| table |")
    assert "```text\n| tests |\n```" in text
    assert text.index("## Tests") < text.index("## The last one")


def test_failed_part_is_reported_and_the_others_run(tmp_path: Path) -> None:
    failed, text, _ = measured(tmp_path, 200, {"table": 1, "tests": 1, "last": 1}, table="ended with status 1")
    assert failed == 1
    assert "**Not complete**: ended with status 1, see sections.log." in text
    assert "```text\na traceback of table\n```" in text
    assert "a traceback of last" not in text
    assert "| last |" in text


def test_limit_of_the_run_shortens_and_skips_parts(tmp_path: Path) -> None:
    _, text, clock = measured(tmp_path, 120, {"table": 90, "tests": 1000, "last": 10})
    assert clock.limits == {"table": 100, "tests": 30}
    assert "## The last one\n\nSkipped: only 0 of 120 s were left." in text


def test_machine_without_a_gpu_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import raises ImportError
    assert gpu.main(["--into", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("skipped: the GPU backend needs CuPy")
    assert not (tmp_path / "out").exists()


def test_every_section_has_a_part() -> None:
    assert set(gpu_sections.CASES) | {"tests"} == {part.name for part in gpu.PARTS}
    for part in gpu.PARTS:
        assert part.name == "tests" or part.arguments[-1] == part.name


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CupyBackend]:
    """Return a replacement of the backend, on a fake driver."""

    def make(settings: Any = None) -> CupyBackend:
        return CupyBackend(FakeDriver(), settings)

    monkeypatch.setattr(gpu_steps, "CupyBackend", make)
    return make


@pytest.mark.parametrize("name", ["mlp", "transformer"])
@pytest.mark.blocks_loop("the fake GPU computes in the loop's thread")
def test_training_steps_are_replayed_and_agree(
    monkeypatch: pytest.MonkeyPatch, fake: Callable[..., CupyBackend], name: str
) -> None:
    monkeypatch.setattr(gpu_sections, "_ROUNDS", 1)
    for size, value in (("_WIDTH", 16), ("_TOKENS", 8), ("_HEAD", 4), ("_MODEL", 16)):
        monkeypatch.setattr(gpu_steps, size, value)
    monkeypatch.setattr(gpu_sections, "_torch", no_torch)
    lines = list(gpu_sections.lines(name))
    assert lines[0].endswith("|---|---|---|---|---|")
    assert " times faster captured | ≥ 3 |" in lines[1]
    assert "1 of 3 strands captured" in lines[2]
    assert "refused" not in lines[2]
    assert "differ" not in lines[3]
    assert lines[4] == "| PyTorch | skipped: PyTorch is not installed | | | |"


def no_torch() -> None:
    raise gpu_sections.SkippedError("PyTorch is not installed")
