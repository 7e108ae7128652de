"""What a command is doing, on a line of the error output where that is a terminal. Nothing of it is left at the end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, TextIO

from aioflow.compiler.place.timeline_svg import time_text

__all__ = ["Progress", "progress"]

_BAR: Final = 24  # characters
_SECONDS: Final = 0.1  # between two times that the line is drawn
_ERASE: Final = "\r\x1b[K"


class Progress:
    """The line. Times of the work are not those of the terminal: it is drawn ten times a second at the most.

    Args:
        total: How many times `advance` will be called; None where nobody knows.
        clock: Gives seconds.
        stream: Where it is drawn, if that is a terminal.
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
        """One more is done."""
        self._done += 1
        if self._is_seen and self._clock() - self._drawn >= _SECONDS:
            self._draw()

    def close(self) -> None:
        """Take the line away."""
        if self._is_seen:
            self._stream.write(_ERASE)
            self._stream.flush()

    def _draw(self) -> None:
        if self._is_seen:
            self._drawn = self._clock()
            text = self._text()[: max(1, shutil.get_terminal_size().columns - 1)]
            self._stream.write(_ERASE + text)
            self._stream.flush()

    def _text(self) -> str:
        if self._total is None:
            return f"{self._label} {self._done}" if self._done else f"{self._label} …"
        share = self._done / self._total if self._total else 1.0
        bar = "#" * round(share * _BAR)
        passed = self._clock() - self._began
        left = f", {time_text(passed / share * (1 - share))} left" if self._done else ""
        return f"{self._label} [{bar:-<{_BAR}}] {self._done}/{self._total}{left}"


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Progress]:
    """Show what is done inside of the block, on the error output. As of `Progress`."""
    shown = Progress(label, total, stream=sys.stderr)
    try:
        yield shown
    finally:
        shown.close()
