"""Tests of oneDNN kernels in separate processes."""

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

_THREADS = """
import os, threading
import numpy as np
import aioflow as af

def threads():  # that are not Python's
    return len(os.listdir("/proc/self/task")) - threading.active_count()

image, weights = np.ones((8, 32, 32, 32), np.float32), np.ones((3, 3, 32, 32), np.float32)
with af.Session() as session:
    product = af.matmul(*(af.placeholder(af.float32, [512, 512]) for _ in range(2)))
    made = af.nn.conv2d(af.placeholder(af.float32, image.shape), af.constant(weights), padding="SAME")
    gradient = af.gradients(made, made.op.inputs[0])
    session.run_sync(af.constant(1.0) + 1.0)
    before = threads()
    session.run_sync([made, gradient], {made.op.inputs[0]: image})
    session.run_sync(product, {each: np.ones((512, 512), np.float32) for each in product.op.inputs})
    print(threads() - before)
"""


def test_kernels_start_no_openmp_threads() -> None:
    """Count new threads: those of OpenMP would spin, waiting for one another, on processors that our threads use."""
    settings = {**os.environ, "OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _THREADS], env=settings, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("0\n", "")


_POISONED = """
import sys
import numpy as np
from tests.backends.onednn.test_kernels import cases
for case in cases(int(sys.argv[1]), 150):
    assert case.agrees(), case
    del case
"""


@pytest.mark.skipif(sys.platform != "linux", reason="MALLOC_PERTURB_ is glibc's")
def test_kernels_do_not_read_freed_memory() -> None:
    """Let glibc fill freed memory with a pattern, so that a kernel that still reads it computes wrong values."""
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _POISONED, "11"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250, env=environment)
    assert ran.returncode == 0, ran.stderr
