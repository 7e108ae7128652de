"""The work of a function, counted instead of timed, so that the number does not depend on the load of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

from aioflow.graph.graph import Operation

__all__ = ["calls"]


def calls(function: Callable[[], Any]) -> int:
    """Return the number of calls, of Python and C functions, during a call of `function`.

    Operations are compared by a Python function meanwhile, so that a search through a list of them counts its length.
    """
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    with _compared_in_python():
        sys.setprofile(profile)
        try:
            function()
        finally:
            sys.setprofile(before)
    return count


@contextmanager
def _compared_in_python() -> Iterator[None]:
    def equal(first: Operation, second: object) -> bool:
        return first is second

    with patch.object(Operation, "__eq__", equal):
        yield
