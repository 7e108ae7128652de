"""Scheduler time slices of kernel threads, so that threads that wake up run without waiting for a timer tick.

Linux picks the next thread at a timer tick, every 4 ms with usual settings. A thread that wakes in between, such as the
event loop's, preempts the running one only under two conditions. The scheduler owes it processor time, and its turn,
the *slice*, ends before that of the running thread. Kernels keep all processors busy, so the loop often waited for a
tick. Since Linux 6.12 a thread may request a slice of its own, without any privilege. A longer slice does not change
the thread's share of a processor, but threads with shorter slices run first when they wake.

Measured on two processors, with a network training in the loop by oneDNN: the 99th percentile of the loop's lag was
3.9 ms, and 1.0 to 1.2 ms with slices of 10 ms. Slices of 30 and 100 ms did as well, of 3 ms less. Beside two busy
processes (by NumPy) it was 6.2 and 6.4 ms. The number of steps was the same in both cases. Alternatives that were
rejected:

- A lower priority (nice 5): 0.6 ms, but half of the steps beside the busy processes.
- The lowest priority (SCHED_IDLE): a thread with the interpreter's lock did not run for a second, and the loop waited
  for the lock.
- SCHED_BATCH: 0.7 to 1.1 ms; short steps took a quarter longer beside the busy processes.
- A shorter switch interval of the interpreter: worse, since a thread that waits for the lock has just used the
  processor, and is owed no time.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from contextlib import suppress
from typing import Final

_SLICE: Final = 10_000_000  # in ns; Linux's own slices are 0.7 to 2.8 ms, and end at timer ticks
# SCHED_FLAG_RESET_ON_FORK: threads and processes that this thread starts have Linux's default slice.
_RESET_ON_FORK: Final = 1
# Numbers of the system call sched_setattr, for which C libraries have no function (glibc before 2.41).
_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}


class _Attributes(ctypes.Structure):
    """The struct sched_attr of linux/sched/types.h, in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def ask_for_long_slice() -> None:
    """Request a long slice for this thread, if the system supports it. Its priority does not change."""
    if sys.platform != "linux" or sys.maxsize < 2**32:  # 32-bit programs have other system call numbers
        return
    number = _SETATTR.get(platform.machine())
    with suppress(OSError):  # the system may forbid it
        if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:  # the user has chosen another policy
            return
        # The call sets all attributes of the thread, so its present nice level is passed on.
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        size = ctypes.sizeof(_Attributes)
        # For SCHED_OTHER, `runtime` is the requested slice.
        wanted = _Attributes(size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, _SLICE, 0, 0)
        # The result is not checked: without the slice, the thread is scheduled as usual.
        ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(0), ctypes.byref(wanted), ctypes.c_uint(0))
