"""Tests that CPU kernels call the BLAS only through `products`, so that OpenBLAS's own threads stay asleep."""

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
    """Run `watch_blas.py` and return the names of its programs that ran, and of those that woke OpenBLAS's threads."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), *arguments],
        # Each program starts when the threads sleep, so they should stay awake as briefly as possible. Kernels of other
        # packages are off, since they may not use OpenBLAS.
        env=os.environ | {"OPENBLAS_THREAD_TIMEOUT": "4", "AIOFLOW_ONEDNN": "off"},
        cwd=folder,  # some ops write files
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return set(found["ran"]), set(found["woke"])


def test_no_op_wakes_the_threads_of_openblas(tmp_path: Path) -> None:
    ran, woke = watched(tmp_path)
    assert not woke
    assert len({name.split()[0] for name in ran}) > 250  # nearly all ops that compute


def test_watcher_detects_products_when_the_entry_point_is_open(tmp_path: Path) -> None:
    """Check that every op is detected when `products` leaves OpenBLAS's threads alone.

    Single forms of an op may stay undetected, since OpenBLAS does not share all of them on every processor.
    """
    ran, woke = watched(tmp_path, "--open")
    assert {name.split()[0] for name in ran} == {name.split()[0] for name in woke}
