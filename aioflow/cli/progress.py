"""A progress line on stderr, if that is a terminal. The line is erased at the end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, TextIO

from aioflow.compiler.place.timeline_svg import time_text

_BAR: Final = 24  # characters
_SECONDS: Final = 0.1  # minimum interval between two redraws
_ERASE: Final = "\r\x1b[K"


class Progress:
    """The progress line. It is redrawn at most ten times a second, so that the terminal does not slow down the work.

    Args:
        label: Text at the start of the line.
        total: Number of calls of `advance`; None if unknown.
        stream: Stream to draw on, if it is a terminal.
        clock: Function that returns the seconds.
    """

    def __init__(
        self, label: str, total: int | None = None, *, stream: TextIO, clock: Callable[[], float] = monotonic
    ) -> None:
        self._label = label
        self._total = total
        self._clock = clock
        self._stream = stream
        self._is_seen = stream.isatty()
        self._done = 0
        self._began = clock()
        self._drawn = self._began
        self._draw()

    def advance(self) -> None:
        """Count one more item."""
        self._done += 1
        if self._is_seen and self._clock() - self._drawn >= _SECONDS:
            self._draw()

    def close(self) -> None:
        """Erase the line."""
        if self._is_seen:
            self._stream.write(_ERASE)
            self._stream.flush()

    def _draw(self) -> None:
        if self._is_seen:
            self._drawn = self._clock()
            # One column less than the terminal: a full line would wrap, and could not be erased.
            text = self._text()[: max(1, shutil.get_terminal_size().columns - 1)]
            self._stream.write(_ERASE + text)
            self._stream.flush()

    def _text(self) -> str:
        if self._total is None:
            return f"{self._label} {self._done}" if self._done else f"{self._label} …"
        share = self._done / self._total if self._total else 1.0
        bar = "#" * round(share * _BAR)
        passed = self._clock() - self._began
        # passed / share is the expected total; the rest of it is left.
        left = f", {time_text(passed / share * (1 - share))} left" if self._done else ""
        return f"{self._label} [{bar:-<{_BAR}}] {self._done}/{self._total}{left}"


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Progress]:
    """Show the progress of the block on stderr. The arguments are those of `Progress`."""
    shown = Progress(label, total, stream=sys.stderr)
    try:
        yield shown
    finally:
        shown.close()
