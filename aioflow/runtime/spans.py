"""Where steps and their parts are reported as they begin and end, for whoever watches over whole programs.

`observe.instrument` sets it, for one session or for the process. Where it is not set, nothing is reported, and a short
step does not even ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol
from weakref import WeakSet

__all__ = ["Reporter", "Spans", "process_spans", "set_process_spans", "tell_of_spans"]


class Spans(Protocol):
    """Each of the blocks is one span, within the one that is around it in this context; an error ends it as failed."""

    def step(self, fetches: Sequence[str], devices: Sequence[str]) -> AbstractContextManager[None]:
        """A step of a session."""

    def part(self, task: str) -> AbstractContextManager[None]:
        """Its part on one of several workers, as its client sees it."""

    def served(self, task: str, step: int, traceparent: str) -> AbstractContextManager[None]:
        """The same part on the worker.

        Args:
            traceparent: The client's span.
        """

    def traceparent(self) -> str | None:
        """The span of this context, as W3C's header of that name has it; None where there is none."""


class Reporter(Protocol):
    """Who has to know whether anything is reported, so that it need not look each time."""

    def spans_changed(self) -> None:
        """`process_spans` has changed."""


_PROCESS: Final[list[Spans]] = []
_REPORTERS: Final[WeakSet[Reporter]] = WeakSet()


def tell_of_spans(reporter: Reporter) -> None:
    """Tell it of every change, for as long as it is there."""
    _REPORTERS.add(reporter)


def process_spans() -> Spans | None:
    """Where whatever is not told otherwise reports."""
    return _PROCESS[-1] if _PROCESS else None


def set_process_spans(spans: Spans | None) -> None:
    """Report there from now on; None: nowhere."""
    _PROCESS[:] = [] if spans is None else [spans]
    for reporter in list(_REPORTERS):
        reporter.spans_changed()
