"""An operating system limit on this process's memory, as a backstop for everything outside the budgets.

An allocation over the limit fails with a MemoryError. Without the limit, the kernel's out-of-memory killer would end
this process. Read-only file mappings, such as weights, do not count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STACK: Final = 8 << 20  # bytes, if the system has no limit on the stack
_UNIT: Final = 1024


def keep_within(budget: int) -> None:
    """Limit this process to `budget` bytes beyond its present use, plus the stacks of its threads.

    The system counts stacks at full size although little of them is used. Does nothing if the system has no such limit.
    """
    used = _data_bytes()
    if used is None:
        return
    # Missing on Windows, which has no /proc/self/status either, so `used` is None there.
    import resource

    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    threads = 2 * (os.cpu_count() or 1) + 16
    margin = threads * (_STACK if stack == resource.RLIM_INFINITY else stack)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + budget + margin
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _data_bytes() -> int | None:
    """Return the size of this process's writable memory as counted by the system, or None if unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(found[0]) * _UNIT if found else None
