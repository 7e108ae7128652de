"""What of a session knows whether its steps are reported, so that a short step that is not need not ask."""

from __future__ import annotations

from aioflow.runtime.spans import Spans, process_spans, tell_of_spans
from aioflow.session.running import Running

__all__ = ["Reporting"]


class Reporting:
    """The part of a session that `observe.instrument` speaks to."""

    _running: Running
    _spans: Spans | None = None
    _watched = False  # by the settings
    _special = False  # whether steps go the way of those that somebody watches

    def _watch(self, watched: bool) -> None:
        """Say whether the settings ask for steps to be watched; each time that what runs them is made anew."""
        self._watched = watched
        self._running.spans = self._spans
        tell_of_spans(self)
        self.spans_changed()

    def report_spans(self, spans: Spans | None) -> None:
        """Report steps there from now on; None: nowhere, unless the whole process reports."""
        self._spans = self._running.spans = spans
        self.spans_changed()

    def spans_changed(self) -> None:
        """Go the way of steps that somebody watches, or no more."""
        self._special = self._watched or self._spans is not None or process_spans() is not None
