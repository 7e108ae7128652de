"""The switch between the fast and the instrumented path of a session.

Caches whether steps are reported or checked, so that the fast path tests one flag.
"""

from __future__ import annotations

from aioflow.runtime.spans import Spans, process_spans, tell_of_spans
from aioflow.session.running import SessionSteps


class Reporting:
    """Mixin with the interface that `observe.instrument` uses."""

    _running: SessionSteps
    _spans: Spans | None = None
    _watched = False  # requested by the settings
    _special = False  # whether steps take the instrumented path

    def _watch(self, watched: bool) -> None:
        """Set whether the settings require the instrumented path. Call after each replacement of `_running`."""
        self._watched = watched
        self._running.spans = self._spans
        tell_of_spans(self)
        self.spans_changed()

    def report_spans(self, spans: Spans | None) -> None:
        """Report steps to `spans` from now on; with None, only if the whole process is instrumented."""
        self._spans = self._running.spans = spans
        self.spans_changed()

    def spans_changed(self) -> None:
        """Recompute whether steps take the instrumented path."""
        self._special = self._watched or self._spans is not None or process_spans() is not None
