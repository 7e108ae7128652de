"""The observation of a program from outside: event files for TensorBoard, traces of steps, spans."""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import homes as _homes
from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
if _TYPE_CHECKING:
    from aioflow.observe.instrumentation import Instrumentation as Instrumentation
    from aioflow.observe.instrumentation import instrument as instrument
    from aioflow.observe.trace_events import chrome_trace as chrome_trace

__all__ = ["Instrumentation", "chrome_trace", "instrument"]

_load_later(
    __name__,
    _homes(
        {
            "aioflow.observe.trace_events": "chrome_trace",
            "aioflow.observe.instrumentation": "Instrumentation instrument",
        }
    ),
)
