"""How much work a function does, counted, not timed: the same number on a busy machine as on a quiet one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

from aioflow.graph.graph import Operation

__all__ = ["instructions"]


def instructions(function: Callable[[], Any]) -> int:
    """How many instructions Python executes in a call.

    Operations compare by a Python function meanwhile, so that a search through a list of them counts, which is one
    instruction otherwise.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    with _compared_in_python():
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
    return count


@contextmanager
def _compared_in_python() -> Iterator[None]:
    def equal(first: Operation, second: object) -> bool:
        return first is second

    with patch.object(Operation, "__eq__", equal):
        yield
