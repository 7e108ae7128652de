"""The interpreter's thread switch interval, which is one for the whole process.

A kernel's thread that runs Python keeps the event loop waiting for that long, and Python's own 5 ms are felt there. So
the first worker of the process lowers it, and the program can take it back.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

__all__ = ["lower_switch_interval", "restore_switch_interval"]


class _Lowered(NamedTuple):
    """What the interval was before it was lowered, and to what it was lowered, in seconds."""

    before: float
    to: float


_lowered: _Lowered | None = None


def lower_switch_interval(seconds: float) -> None:
    """Lower the interval to `seconds`; it is never raised, and left alone where the program has set it since."""
    global _lowered
    known, now = _lowered, sys.getswitchinterval()
    if seconds >= now or (known is not None and known.to != now):
        return
    sys.setswitchinterval(seconds)
    _lowered = _Lowered(now if known is None else known.before, sys.getswitchinterval())  # which counts in whole µs


def restore_switch_interval() -> None:
    """Give the interpreter back the thread switch interval that it had before the first session of this process.

    A session lowers it to `SessionConfig.switch_interval`, once and for the whole process. Where the program has set it
    itself since, it stays as it is. A session that is opened later lowers it again, but for one with
    `switch_interval=None`.
    """
    global _lowered
    known, _lowered = _lowered, None
    if known is not None and known.to == sys.getswitchinterval():
        sys.setswitchinterval(known.before)
