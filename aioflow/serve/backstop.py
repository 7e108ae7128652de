"""A limit of the system on the memory of this process, for what no budget has foreseen.

What is over it is refused to whoever asks for it, as a MemoryError, where without it the kernel would look for a
process to kill, and find this one. Files that are mapped to be read, such as weights, are not in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["keep_within"]

_STACK: Final = 8 << 20  # bytes, if the system has no limit for it
_UNIT: Final = 1024


def keep_within(budget: int) -> None:
    """From now on this process gets so many bytes more than it has, and those of the stacks of its threads: they are
    counted whole, and hardly used. Where the system cannot do so, nothing happens.
    """
    used = _data_bytes()
    if used is None:
        return
    import resource  # there is none on Windows, nor the file from which `used` is

    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    threads = 2 * (os.cpu_count() or 1) + 16
    margin = threads * (_STACK if stack == resource.RLIM_INFINITY else stack)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + budget + margin
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _data_bytes() -> int | None:
    """What this process has of memory that it may write to, as the system counts it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(found[0]) * _UNIT if found else None
