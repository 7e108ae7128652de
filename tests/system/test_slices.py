"""Threads' time slices and priorities, as other processes have them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import aioflow  # noqa: F401  # before NumPy, so that its backends may prepare it
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.step import Step


def _slice(thread: int) -> int:
    """Nanoseconds, as Linux says."""
    found = re.search(r"^se\.slice\s*:\s*(\d+)$", Path(f"/proc/self/task/{thread}/sched").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _here() -> int:
    return _slice(threading.get_native_id())


def _knows_slices() -> bool:
    """Whether the system is a Linux in which threads have slices of their own (6.12)."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release) if sys.platform == "linux" else None
    if release is None or (int(release[1]), int(release[2])) < (6, 12):
        return False
    return Path("/proc/self/sched").exists() and _here() > 0


pytestmark = pytest.mark.skipif(not _knows_slices(), reason="needs Linux 6.12, whose threads have slices of their own")


async def test_what_a_kernel_starts_has_the_systems_own_slice() -> None:
    def start_others() -> tuple[int, str]:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(_here()))
        thread.start()
        thread.join()
        shown = subprocess.run(["cat", "/proc/self/sched"], capture_output=True, text=True, check=True, timeout=60)
        return found[0], shown.stdout

    in_thread, in_process = await DeviceThreads("-test", 1).run(Step(), start_others)
    assert in_thread == _here()
    assert re.search(rf"^se\.slice\s*:\s*{_here()}$", in_process, re.MULTILINE)


def test_a_priority_that_the_process_was_given_stays() -> None:
    program = (
        "import asyncio, os, threading; os.nice(3); from aioflow.runtime.executor import DeviceThreads\n"
        "from aioflow.runtime.step import Step\n"
        "nice = lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "print(asyncio.run(DeviceThreads('-test', 1).run(Step(), nice)) - nice())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n"
