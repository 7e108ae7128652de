"""No kernel of the CPU reaches the BLAS but by `products`: OpenBLAS's own threads sleep through every op."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioflow_numpy.blas import loaded_blas

PROGRAM = Path(__file__).with_name("watch_blas.py")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not loaded_blas(), reason="watches the threads of OpenBLAS in /proc"
)


def watched(folder: Path, *arguments: str) -> tuple[set[str], set[str]]:
    """Names of programs: those that ran, and of these the ones that woke OpenBLAS's threads."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), *arguments],
        # The shortest time for which the threads wait awake, since the next op is run when they sleep; and NumPy's
        # kernels, since those of another package may do without OpenBLAS.
        env=os.environ | {"OPENBLAS_THREAD_TIMEOUT": "4", "AIOFLOW_ONEDNN": "off"},
        cwd=folder,  # some op may write a file
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return set(found["ran"]), set(found["woke"])


def test_no_op_wakes_the_threads_of_the_blas(tmp_path: Path) -> None:
    ran, woke = watched(tmp_path)
    assert not woke
    assert len({name.split()[0] for name in ran}) > 250  # of the ops that compute, nearly all


def test_the_watching_sees_every_product(tmp_path: Path) -> None:
    """The same without the door's effect. A form of an op may be one that OpenBLAS does not share on this processor."""
    ran, woke = watched(tmp_path, "--open")
    assert {name.split()[0] for name in ran} == {name.split()[0] for name in woke}
