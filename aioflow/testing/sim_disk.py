"""The disks of simulated hosts: real folders, whose writes fail when the simulation says so.

A file counts as written once it was flushed to the disk, which is where a failing disk says so, and where a process
that was killed in the meantime comes to its end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from aioflow.testing.sim_process import PROCESS

__all__ = ["simulated_disks"]


@contextmanager
def simulated_disks() -> Iterator[None]:
    """In the block, what simulated processes flush fails where their host's disk does; it takes no time."""
    flush = os.fsync

    def flush_here(file: int) -> None:
        process = PROCESS.get()
        if process is None:
            flush(file)
        elif not process.alive:
            raise OSError(errno.EIO, "the process was killed")
        elif process.host.disk_error is not None:
            process.net.trace.add(process.name, "disk error", process.host.disk_error)
            raise OSError(process.host.disk_error, os.strerror(process.host.disk_error))

    os.fsync = flush_here  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = flush
