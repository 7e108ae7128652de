"""Heartbeats, without I/O: when a silent peer counts as dead, and how late a message is that quotes one.

Ticks are counted, not seconds: after this process itself has been held up for long, one tick is late and not many are
missing, so that nobody is declared dead for a pause that was ours.

Heartbeats are numbered. A request that must not be late quotes the last one that its sender has heard: however long it
was on its way, or its receiver held up, the receiver knows by its own clock when that heartbeat left.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["FRAME_TICKS", "Beats", "Heartbeat"]

FRAME_TICKS: Final = 20
_REMEMBERED: Final = 64


class Heartbeat:
    """Watches one peer.

    Args:
        misses: Ticks without a byte after which the peer is dead.
        frame_ticks: Ticks that one frame may take to arrive; a frame holds 4 MiB at most, whatever the message.
    """

    __slots__ = ("_frame_ticks", "_frames", "_heard", "_misses", "_silent", "_slow")

    def __init__(self, misses: int, frame_ticks: int = FRAME_TICKS) -> None:
        self._misses = misses
        self._frame_ticks = frame_ticks
        self._heard = True
        self._silent = self._slow = 0
        self._frames = -1

    def heard(self) -> None:
        """Something has come."""
        self._heard = True

    def tick(self, reading: bool, frames: int, mid_frame: bool) -> str | None:
        """An interval has passed.

        Args:
            reading: Whether this side reads at all; when it does not, silence says nothing.
            frames: Frames that have come whole since the beginning.
            mid_frame: Whether part of one has come.

        Returns:
            Why the peer is dead, or None.
        """
        if not reading:
            self._heard = True
        self._silent = 0 if self._heard else self._silent + 1
        self._slow = self._slow + 1 if reading and mid_frame and frames == self._frames else 0
        self._heard, self._frames = False, frames
        if self._silent >= self._misses:
            return f"nothing has come for {self._silent} heartbeats"
        if self._slow >= self._frame_ticks:
            return f"one frame has been coming for {self._slow} heartbeats"
        return None


class Beats:
    """When the last heartbeats were sent, by their numbers; that of the hello is 0.

    Args:
        now: Seconds by any clock; so are all others.
    """

    __slots__ = ("_last", "_times")

    def __init__(self, now: float) -> None:
        self._last = 0
        self._times = deque([now], maxlen=_REMEMBERED)

    def sent(self, now: float) -> int:
        """One more has been sent: its number."""
        self._last += 1
        self._times.append(now)
        return self._last

    def since(self, beat: int, now: float) -> float:
        """Seconds since the heartbeat of that number; infinitely many if it is not one of the last."""
        back = self._last - beat
        return now - self._times[-1 - back] if 0 <= back < len(self._times) else float("inf")
