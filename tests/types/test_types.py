"""mypy knows what users may pass and what they get, and what it accepts and refuses is what runs and what fails."""

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


def test_mypy_agrees(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is in the extra `types`")
    found = mypy(tmp_path, ROOT / "tests/types/accepted.py", ROOT / "tests/types/refused.py")
    assert found.returncode == 0, found.stdout


def test_mypy_was_not_looking_away(tmp_path: Path) -> None:
    """What it says of a wrong program, in the words that a user reads."""
    pytest.importorskip("mypy", reason="mypy is in the extra `types`")
    program = tmp_path / "program.py"
    program.write_text("import aioflow as af\n\naf.matmul(af.zeros([1, 1]), object())\n", encoding="utf-8")
    found = mypy(tmp_path, program)
    assert 'Argument 2 to "matmul" has incompatible type "object"; expected "TensorLike"' in found.stdout
    assert "Found 1 error in 1 file" in found.stdout


def mypy(cache: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    version = f"--python-version={sys.version_info[0]}.{sys.version_info[1]}"  # whose NumPy this is
    command = [sys.executable, "-m", "mypy", version, f"--cache-dir={cache / 'cache'}", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=240)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_accepted_runs(name: str) -> None:
    with af.Graph().as_default():
        made = PROGRAMS[name]()
        if inspect.iscoroutine(made):
            asyncio.run(made)


def test_there_is_something_to_run() -> None:
    assert {"operators", "what_a_session_gives", "whatever_may_be_an_operand"} <= set(PROGRAMS)


@pytest.mark.parametrize("build", refused.BUILDERS, ids=lambda f: str(inspect.getsource(f)).split(": ")[1][:40])
def test_what_is_refused_fails(build: Callable[[af.Tensor, af.Variable, af.Session], Any]) -> None:
    with af.Graph().as_default(), af.Session() as session:
        x, v = af.placeholder("float32", [2, 2]), af.Variable([[1.0, 2.0], [3.0, 4.0]])
        with pytest.raises((TypeError, ValueError, AttributeError)):
            build(x, v, session)
