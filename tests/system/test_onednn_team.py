"""Tests of OpenMP's threads and the environment, in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn.library import library

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

_PROGRAM = """
import os, sys
if "early" in sys.argv:
    import ctypes
    ctypes.CDLL("libgomp.so.1")
import numpy as np
import aioflow as af
from aioflow_onednn.library import library

def step():
    with af.Graph().as_default(), af.Session() as session:
        image, weights = np.ones((1, 24, 24, 64), np.float32), np.ones((3, 3, 64, 64), np.float32)
        made = af.nn.conv2d(af.placeholder(af.float32, image.shape), af.constant(weights), padding="SAME")
        for _ in range(20):
            result = session.run_sync(made, {made.op.inputs[0]: image})
        return float(result.sum())

first = step()
if "fork" in sys.argv:
    from aioflow_onednn.forward import Forward
    from aioflow_onednn.team import TEAM
    from aioflow_onednn.filters import Filters
    from aioflow_numpy.conv_shapes import windows
    g = windows((1, 24, 24, 64), (3, 3), (1, 1), ((1, 1), (1, 1)))
    image, weights = np.ones((1, 24, 24, 64), np.float32), np.ones((3, 3, 64, 64), np.float32)
    convolve = Forward(g, Filters(1, 64, 64))
    def here():  # with the team, whether it rests or not
        TEAM.lend = lambda: 2
        TEAM.back = lambda: None
        for _ in range(20):
            out = convolve(image, weights)
        return float(out.sum())
    assert here() == first  # in the thread that forks
    child = os.fork()
    if not child:
        same = here() == first == step()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert here() == first
print(library().has_team, "GOMP_SPINCOUNT" in os.environ)
"""


def _run(*arguments: str, **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | settings
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_with_a_team = pytest.mark.skipif(library().version.runtime != 2, reason="this build of oneDNN is without OpenMP")


@_with_a_team
def test_environment_is_restored() -> None:
    assert _run() == "True False"


@_with_a_team
def test_openmp_loaded_earlier_by_the_user_is_not_used() -> None:
    """Load OpenMP first: its threads were not told how long to spin, and keep a processor busy for milliseconds."""
    assert _run("early") == "False False"


@_with_a_team
def test_spin_count_of_the_user_is_kept() -> None:
    assert _run(GOMP_SPINCOUNT="100") == "True True"


@_with_a_team
def test_forked_child_computes_with_onednn() -> None:
    _run("fork")
