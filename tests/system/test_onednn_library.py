"""Tests of the search for oneDNN, and of the messages if it cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioflow_onednn.library import SETTING

_STEP = """
import aioflow as af
from aioflow.kernels.registry import KERNELS
with af.Graph().as_default():
    x = af.constant(2.0, shape=[128, 128])
    print(int(af.Session().run_sync(af.reduce_sum(af.matmul(x, x)))), max(k.priority for k in KERNELS.for_op("MatMul")))
"""


def run(*arguments: str, setting: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, SETTING: setting}
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("setting", ["off", "/nowhere/libdnnl.so.3", __file__])
def test_steps_run_without_onednn(setting: str) -> None:
    assert run("-c", _STEP, setting=setting).stdout == f"{4 * 128**3} 0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_fork_works_without_onednn() -> None:
    """Import all of the package, as these tests do."""
    program = "import os, aioflow_onednn.team\nif not (child := os.fork()):\n    os._exit(0)\nos.waitpid(child, 0)"
    assert run("-c", program, setting="off").stderr == ""


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("off", "switched off"), ("/nowhere/libdnnl.so.3", "was not found"), (__file__, "not found")],
)
def test_doctor_reports_why_onednn_is_not_used(setting: str, reason: str) -> None:
    [line] = [line for line in run("-m", "aioflow", "doctor", setting=setting).stdout.splitlines() if "oneDNN" in line]
    assert "not used" in line
    assert reason in line


def test_another_library_is_not_used() -> None:
    """Point the setting at a library that can be loaded, but is not oneDNN."""
    libc = next((path for path in Path("/proc/self/maps").read_text().split() if "/libc.so" in path), None)
    if libc is None:
        pytest.skip("no C library is to be seen")
    assert run("-c", _STEP, setting=libc).stdout == f"{4 * 128**3} 0\n"
