"""The disks of simulated hosts: real folders, whose writes fail on the simulation's request.

Faults take effect at `os.fsync`: a file counts as written once it was flushed. There a failing disk raises its error. A
killed process gets an error there, too, so that it writes no further.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from aioflow.testing.sim_process import PROCESS


@contextmanager
def simulated_disks() -> Iterator[None]:
    """Make `os.fsync` in simulated processes fail if the disk of their host does, for the duration of the block.

    In simulated processes it flushes nothing, so it takes no time.
    """
    flush = os.fsync

    def flush_here(file: int) -> None:
        process = PROCESS.get()
        if process is None:
            flush(file)
        elif not process.alive:
            raise OSError(errno.EIO, "the process was killed")
        elif process.host.disk_error is not None:
            process.note("disk error", process.host.disk_error)
            raise OSError(process.host.disk_error, os.strerror(process.host.disk_error))

    os.fsync = flush_here  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = flush
