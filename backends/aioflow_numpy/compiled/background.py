"""The thread in which chains are compiled, one at a time, with the lowest priority that the system gives.

It is the process's, so that no session waits for it. When the process ends, the compiler is ended, and the thread gets
a moment to take its files away.
"""

from __future__ import annotations

import atexit
from typing import Final

from aioflow.work.job_thread import JobThread
from aioflow.work.threads import step_back
from aioflow_numpy.compiled.process import end

__all__ = ["BACKGROUND"]

_MOMENT: Final = 1.0  # seconds; more than one that was ended is waited for

BACKGROUND: Final = JobThread("aioflow-compiling", step_back, daemon=True)


@atexit.register
def _leave() -> None:
    BACKGROUND.drop()
    end()
    BACKGROUND.wait(_MOMENT)
