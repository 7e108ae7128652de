"""What is to be seen of a program from outside: event files for TensorBoard, traces of steps, spans."""

from __future__ import annotations

from aioflow.observe.chrome_trace import chrome_trace as chrome_trace
from aioflow.observe.instrument import Instrumentation as Instrumentation
from aioflow.observe.instrument import instrument as instrument

__all__ = ["Instrumentation", "chrome_trace", "instrument"]
