"""The thread that compiles chains, one at a time, with the lowest priority that the system offers.

It belongs to the process, so no session waits for it. When the process ends, the compiler is killed, and the thread has
a moment to remove its files.
"""

from __future__ import annotations

import atexit
from typing import Final

from aioflow.concurrency.job_thread import JobThread
from aioflow.concurrency.threads import step_back
from aioflow_numpy.compiled.process import end

_MOMENT: Final = 1.0  # seconds; longer than the wait for a killed compiler

BACKGROUND: Final = JobThread("aioflow-compiling", step_back, daemon=True)


@atexit.register
def _leave() -> None:
    # In this order no further job begins, the running compiler is killed, and its job then removes the files.
    BACKGROUND.drop()
    end()
    BACKGROUND.wait(_MOMENT)
