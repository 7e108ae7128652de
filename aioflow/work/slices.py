"""What the system's scheduler is told of the threads that run kernels: whoever wakes up need not wait for a tick.

Linux looks who is next when a timer of its own ticks, every 4 ms with usual settings. A thread that wakes in between,
as the event loop's does, takes the processor at once only where it is owed some and its turn, the *slice*, ends before
that of the thread that runs. Kernels keep all processors busy, so the loop often waited for a tick. Since Linux 6.12 a
thread may ask for a slice of its own, without any privilege. A longer one does not change how much of a processor a
thread gets, but all that wake with shorter slices go before it.

Measured on two processors, a network training in the loop by oneDNN, the 99th percentile of the loop's lag: 3.9 ms, and
1.0 to 1.2 with slices of 10 ms (30 and 100 did as well, 3 less); beside two busy processes (by NumPy) 6.2 and 6.4; as
many steps in both. Tried and left: a lower priority (nice 5: 0.6 ms, but half of the steps beside the busy processes),
the lowest (SCHED_IDLE: a thread that held the interpreter's lock was not let run for a second, and the loop waited for
it), SCHED_BATCH (0.7 to 1.1 ms; short steps took a quarter longer beside the busy processes), and a shorter switch
interval of the interpreter (worse: whoever waits for its lock has just used the processor, and is owed nothing).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from contextlib import suppress
from typing import Final

__all__ = ["ask_for_long_slice"]

_SLICE: Final = 10_000_000  # ns; Linux's own are 0.7 to 2.8 ms, and the ticks between
_RESET_ON_FORK: Final = 1  # SCHED_FLAG_RESET_ON_FORK: threads and processes that this one begins have Linux's own
# The number of the system call sched_setattr, which C libraries have no function for (glibc before 2.41).
_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}


class _Attributes(ctypes.Structure):
    """struct sched_attr of linux/sched/types.h, in its first version."""

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
    """Have this thread give way to all that wake up, where the system knows of that; its priority stays as it is."""
    if sys.platform != "linux" or sys.maxsize < 2**32:  # a program of 32 bits has other numbers
        return
    number = _SETATTR.get(platform.machine())
    with suppress(OSError):  # a system that forbids it
        if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:  # the user has chosen another way
            return
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        size = ctypes.sizeof(_Attributes)
        wanted = _Attributes(size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, _SLICE, 0, 0)
        # Whether it was granted does not matter: a thread without it runs as threads do.
        ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(0), ctypes.byref(wanted), ctypes.c_uint(0))
