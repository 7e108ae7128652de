"""Tests that run `forks.py`: processes that fork after aioflow has started threads, loops and connections."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.forks import PROGRAMS

_ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize("name", [program.__name__ for program in PROGRAMS])
def test_program_forks_without_errors(name: str) -> None:
    # Python 3.12 warns of every fork of a process with threads.
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.system.forks", name],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
