"""Reporting of steps and their parts as they begin and end, for tracing of whole programs.

`observe.instrument` installs a receiver, for one session or for the process. Without a receiver nothing is reported,
and the fast path of short steps has no check for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol
from weakref import WeakSet


class Spans(Protocol):
    """A receiver of spans.

    Each block is one span within the surrounding span of its context. An error in the block marks it as failed."""

    def step(self, fetches: Sequence[str], devices: Sequence[str]) -> AbstractContextManager[None]:
        """Return the block of a session's step."""

    def part(self, task: str) -> AbstractContextManager[None]:
        """Return the block of a step's part on one of several workers, measured at the client."""

    def served(self, task: str, step: int, traceparent: str) -> AbstractContextManager[None]:
        """Return the block of a step's part, measured on the worker.

        Args:
            task: The cluster task of the worker.
            step: The id of the step.
            traceparent: The client's span.
        """

    def traceparent(self) -> str | None:
        """Return the span of this context in the format of W3C's `traceparent` header, or None without a span."""


class Reporter(Protocol):
    """An object that caches whether anything is reported."""

    def spans_changed(self) -> None:
        """Update the cached state after a change of `process_spans`."""


_PROCESS: Final[list[Spans]] = []
_REPORTERS: Final[WeakSet[Reporter]] = WeakSet()


def tell_of_spans(reporter: Reporter) -> None:
    """Notify `reporter` of every change for as long as it exists."""
    _REPORTERS.add(reporter)


def process_spans() -> Spans | None:
    """Return the process's default receiver of spans, or None."""
    return _PROCESS[-1] if _PROCESS else None


def set_process_spans(spans: Spans | None) -> None:
    """Set the process's default receiver of spans; None disables reporting."""
    _PROCESS[:] = [] if spans is None else [spans]
    # Copied, because another thread may create a session meanwhile, which adds an entry.
    for reporter in list(_REPORTERS):
        reporter.spans_changed()
