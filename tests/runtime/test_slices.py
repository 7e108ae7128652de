"""Scheduler slices of kernel threads: longer than those of event loops, where Linux lets a thread set its slice."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

import pytest

import aioflow  # noqa: F401  # before NumPy, so that backends can prepare for it
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.step import Step
from aioflow_numpy.threads import for_each, thread_count


def _slice(thread: int) -> int:
    """Return the slice of a thread in nanoseconds, as reported by Linux, or 0 if it is not reported."""
    found = re.search(r"^se\.slice\s*:\s*(\d+)$", Path(f"/proc/self/task/{thread}/sched").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def here() -> int:
    return _slice(threading.get_native_id())


def knows_slices() -> bool:
    """Return whether the system is a Linux in which threads have slices of their own (6.12)."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release) if sys.platform == "linux" else None
    if release is None or (int(release[1]), int(release[2])) < (6, 12):
        return False
    return Path("/proc/self/sched").exists() and here() > 0


pytestmark = pytest.mark.skipif(not knows_slices(), reason="needs Linux 6.12, whose threads have slices of their own")


async def test_device_threads_have_longer_slices_than_the_loop() -> None:
    assert await DeviceThreads("-test", 1).run(Step(), here) > here()


@pytest.mark.skipif(thread_count() < 2, reason="the BLAS has one thread, so kernels have")
def test_helper_threads_have_longer_slices_than_the_calling_thread() -> None:
    slices: dict[int, int] = {}
    both = threading.Barrier(2, timeout=20)

    def work(_: int) -> None:
        both.wait()  # each of the two threads must take one item
        slices[threading.get_ident()] = here()

    for_each(work, [0, 1])
    mine = slices.pop(threading.get_ident())
    assert all(theirs > mine for theirs in slices.values())
    assert slices
