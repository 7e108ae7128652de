"""Time slices and priorities of threads."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest

import aioflow  # noqa: F401  # before NumPy, so that its backends may prepare it
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.step import Step
from tests.runtime.test_slices import here, knows_slices

pytestmark = pytest.mark.skipif(not knows_slices(), reason="needs Linux 6.12, whose threads have slices of their own")


async def test_threads_and_processes_started_by_kernels_have_the_default_slice() -> None:
    def start_others() -> tuple[int, str]:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(here()))
        thread.start()
        thread.join()
        shown = subprocess.run(["cat", "/proc/self/sched"], capture_output=True, text=True, check=True, timeout=60)
        return found[0], shown.stdout

    in_thread, in_process = await DeviceThreads("-test", 1).run(Step(), start_others)
    assert in_thread == here()
    assert re.search(rf"^se\.slice\s*:\s*{here()}$", in_process, re.MULTILINE)


def test_device_threads_keep_the_nice_value_of_the_process() -> None:
    program = (
        "import asyncio, os, threading; os.nice(3); from aioflow.runtime.executor import DeviceThreads\n"
        "from aioflow.runtime.step import Step\n"
        "nice = lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "print(asyncio.run(DeviceThreads('-test', 1).run(Step(), nice)) - nice())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n"
