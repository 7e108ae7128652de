"""Heartbeats, without I/O: detection of dead peers, and the age of messages that quote a heartbeat.

Silence is counted in ticks, not seconds. If this process itself is suspended for long, one tick is late instead of many
being missing, so that its own pause does not make the peer count as dead.

Heartbeats are numbered. A request that must not be late quotes the last heartbeat that its sender has received. The
receiver knows by its own clock when it sent that heartbeat, however long the request took or the receiver was stalled.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FRAME_TICKS: Final = 20
_REMEMBERED: Final = 64


class Heartbeat:
    """The liveness check of one peer.

    Args:
        misses: Number of ticks without a byte after which the peer is dead.
        frame_ticks: Maximum number of ticks for one frame to arrive. A frame holds at most 4 MiB, however large the
            message.
    """

    __slots__ = ("_frame_ticks", "_frames", "_heard", "_misses", "_silent", "_slow")

    def __init__(self, misses: int, frame_ticks: int = FRAME_TICKS) -> None:
        self._misses = misses
        self._frame_ticks = frame_ticks
        self._heard = True
        self._silent = self._slow = 0
        self._frames = -1

    def heard(self) -> None:
        """Record that bytes have arrived."""
        self._heard = True

    def tick(self, reading: bool, frames: int, mid_frame: bool) -> str | None:
        """Record that an interval has passed.

        Args:
            reading: Whether this end reads at all. If it does not, silence means nothing.
            frames: Number of complete frames received so far.
            mid_frame: Whether a frame is partially received.

        Returns:
            The reason why the peer is dead, or None.
        """
        # Unread data may wait in the socket, so silence means nothing.
        if not reading:
            self._heard = True
        self._silent = 0 if self._heard else self._silent + 1
        # A peer that sends a byte in each interval is never silent, hence the second count.
        self._slow = self._slow + 1 if reading and mid_frame and frames == self._frames else 0
        self._heard, self._frames = False, frames
        if self._silent >= self._misses:
            return f"no data for {self._silent} heartbeats"
        if self._slow >= self._frame_ticks:
            return f"one frame is incomplete after {self._slow} heartbeats"
        return None


class SentHeartbeats:
    """The send times of the last heartbeats, by number. The hello has number 0.

    Args:
        now: Time of the hello in seconds. All times are of one clock, which may be any.
    """

    __slots__ = ("_last", "_times")

    def __init__(self, now: float) -> None:
        self._last = 0
        self._times = deque([now], maxlen=_REMEMBERED)

    def sent(self, now: float) -> int:
        """Record a heartbeat and return its number."""
        self._last += 1
        self._times.append(now)
        return self._last

    def since(self, beat: int, now: float) -> float:
        """Return the seconds since the heartbeat of that number; infinity if it is not a recent one."""
        back = self._last - beat
        # The number comes from the peer, so it may be any.
        return now - self._times[-1 - back] if 0 <= back < len(self._times) else float("inf")
