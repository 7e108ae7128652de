"""The interpreter's thread switch interval, which applies to the whole process.

A kernel thread that runs Python code blocks the event loop for one interval, and Python's default of 5 ms is
noticeable. So the first worker of the process lowers the interval, and the program can restore it.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class _Lowered(NamedTuple):
    """The interval before and after it was lowered, in seconds."""

    before: float
    to: float


_lowered: _Lowered | None = None


def lower_switch_interval(seconds: float) -> None:
    """Lower the interval to `seconds`. It is never raised, and stays as it is if the program has set it since."""
    global _lowered
    known, now = _lowered, sys.getswitchinterval()
    if seconds >= now or (known is not None and known.to != now):
        return
    sys.setswitchinterval(seconds)
    # Read back, since Python stores the interval in whole microseconds.
    _lowered = _Lowered(now if known is None else known.before, sys.getswitchinterval())


def restore_switch_interval() -> None:
    """Restore the thread switch interval that the interpreter had before the first session of this process.

    A session lowers it to `SessionConfig.switch_interval`, once and for the whole process. If the program has set it
    itself since, it does not change. A session that is opened later lowers it again, except one with
    `switch_interval=None`.
    """
    global _lowered
    known, _lowered = _lowered, None
    if known is not None and known.to == sys.getswitchinterval():
        sys.setswitchinterval(known.before)
