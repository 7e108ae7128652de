"""Sessions that leave branches and loops in primitive form, to measure and test tagged dataflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from aioflow.runtime import executable

__all__ = ["primitive_form"]


@contextmanager
def primitive_form() -> Iterator[None]:
    """Raise no branches and loops in the steps that are compiled within a block."""
    with patch.object(executable, "raise_loops", _unchanged), patch.object(executable, "raise_branches", _unchanged):
        yield


def _unchanged(graph: Any, bound: Sequence[Any]) -> tuple[Any, list[Any]]:
    return graph, list(bound)
