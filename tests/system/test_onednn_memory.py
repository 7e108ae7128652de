"""Tests that oneDNN, which receives bare addresses, touches only its operands, and only while they live."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn.library import library

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

KERNELS = Path(__file__).parents[1] / "backends" / "onednn" / "test_kernels.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guarded memory is mapped as on Linux")


def ran(*arguments: str, timeout: float = 250.0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout, env=environment)


def stress(seed: int, count: int, timeout: float) -> None:
    done = ran("-m", "tests.backends.onednn.stress", str(seed), str(count), timeout=timeout)
    assert done.returncode == 0, done.stderr
    outcomes = ast.literal_eval(done.stdout)
    assert set(outcomes) == {"agreed", "failed", "stopped"}
    assert sum(outcomes.values()) == count


def test_operands_are_not_touched_after_a_kernel_has_ended() -> None:
    stress(1, 300, timeout=250)


def test_operands_are_not_touched_after_networks_have_run() -> None:
    done = ran("-m", "tests.backends.onednn.stress", "2", "20", "nets")
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout)["planned"] >= 20


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_operands_are_not_touched_afterwards_for_many_shapes(seed: int) -> None:
    stress(seed, 1000, timeout=1800)


_SESSION = """
import sys, pytest
from tests.backends.onednn.guarded_memory import guard
guard()
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "cancelled or assigned or reproducible", sys.argv[1]]))
"""


def test_operands_of_a_cancelled_step_are_not_touched() -> None:
    done = ran("-c", _SESSION, str(KERNELS))
    assert done.returncode == 0, done.stdout + done.stderr


_WRONG = """
import sys
import numpy as np
from tests.backends.onednn.guarded_memory import guard
from aioflow_onednn.codes import Algorithm
from aioflow_onednn.primitives import address
from aioflow_onednn.softmax import _prepared
guard()
source, target = np.ones((64, 16), np.float32), np.empty((64, 16), np.float32)
addresses = address(source), address(target)
if sys.argv[1] == "released":
    del source
_prepared(65 if sys.argv[1] == "beyond" else 64, 16, Algorithm.SOFTMAX_ACCURATE).run(*addresses)
print("done")
"""


@pytest.mark.parametrize("how", ["released", "beyond"])
def test_guarded_memory_detects_invalid_accesses(how: str) -> None:
    assert ran("-c", _WRONG, "right").stdout == "done\n"
    assert ran("-c", _WRONG, how).returncode == -signal.SIGSEGV
