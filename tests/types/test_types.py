"""Agreement of mypy and run time: accepted code runs, rejected code fails, and result types are known."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioflow as af
from tests.types import accepted, refused

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    name: function
    for name, function in vars(accepted).items()
    if inspect.isfunction(function) and not inspect.signature(function).parameters
}


def test_mypy_accepts_and_rejects_as_expected(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is in the extra `types`")
    found = mypy(tmp_path, ROOT / "tests/types/accepted.py", ROOT / "tests/types/refused.py")
    assert found.returncode == 0, found.stdout


def test_mypy_reports_a_wrong_program(tmp_path: Path) -> None:
    """The error of a wrong program has the text that a user reads."""
    pytest.importorskip("mypy", reason="mypy is in the extra `types`")
    program = tmp_path / "program.py"
    program.write_text("import aioflow as af\n\naf.matmul(af.zeros([1, 1]), object())\n", encoding="utf-8")
    found = mypy(tmp_path, program)
    assert 'Argument 2 to "matmul" has incompatible type "object"; expected "TensorLike"' in found.stdout
    assert "Found 1 error in 1 file" in found.stdout


def mypy(cache: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    # NumPy's stubs depend on the Python version.
    version = f"--python-version={sys.version_info[0]}.{sys.version_info[1]}"
    command = [sys.executable, "-m", "mypy", version, f"--cache-dir={cache / 'cache'}", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=240)


@pytest.mark.parametrize("name", PROGRAMS)
def test_accepted_code_runs(name: str) -> None:
    made = PROGRAMS[name]()
    if inspect.iscoroutine(made):
        asyncio.run(made)


def test_accepted_programs_are_found() -> None:
    assert {"operators", "what_a_session_gives", "whatever_may_be_an_operand"} <= set(PROGRAMS)


@pytest.mark.parametrize("build", refused.BUILDERS, ids=lambda f: str(inspect.getsource(f)).split(": ")[1][:40])
def test_rejected_code_fails(build: Callable[[af.Tensor, af.Variable, af.Session], Any]) -> None:
    with af.Graph().as_default(), af.Session() as session:
        x, v = af.placeholder("float32", [2, 2]), af.Variable([[1.0, 2.0], [3.0, 4.0]])
        with pytest.raises((TypeError, ValueError, AttributeError)):
            build(x, v, session)
