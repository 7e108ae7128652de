"""Which stream is where, and what is to be computed next: no event loop, no arrays, no clock.

There are so many slots. A stream waits in line until one is free. In it its prompt is read, piece by piece; then each
step makes a token of it, together with all the others that have been read. Between two steps at most one piece of one
prompt is read, and the prompts take turns: a long one holds up neither the streams that write nor a short one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aioflow.errors import InvalidArgumentError, ResourceExhaustedError

__all__ = ["Piece", "Slots", "SlotsStatistics", "Stream"]


class Stream:
    """Tokens that are being made.

    Args:
        prompt: What it begins with, one token at least.
        most: How many tokens to make.
        client: Whose it is. Clients take turns in the waiting line, whatever the number of their streams.

    Attributes:
        slot: Where it is; None while it waits in line, and when it has left.
        read: How much of its prompt has been read.
        made: How many tokens have been made.
        has_left: Nothing more is made of it.
    """

    __slots__ = ("client", "has_left", "made", "most", "prompt", "read", "slot")

    def __init__(self, prompt: Sequence[int], most: int, client: str = "") -> None:
        if not prompt or most < 1:
            raise InvalidArgumentError(
                "a stream begins with something, and goes on",
                expected="a prompt of one token at least, and one to make",
                actual=f"a prompt of {len(prompt)} tokens, {most} to make",
            )
        self.prompt = prompt
        self.most = most
        self.client = client
        self.slot: int | None = None
        self.read = 0
        self.made = 0
        self.has_left = False

    @property
    def is_read(self) -> bool:
        """Whether the whole prompt has been."""
        return self.read == len(self.prompt)


class Piece(NamedTuple):
    """The tokens `begin` to `end` of a stream's prompt, to be read in its slot."""

    stream: Stream
    slot: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SlotsStatistics:
    """How many streams write, are read, and wait in line; how many slots are free."""

    writing: int
    reading: int
    waiting: int
    free: int


class Slots:
    """Places streams.

    Args:
        count: How many slots there are.
        piece: How many tokens of a prompt are read at once.
        most_waiting: How many streams may wait in line.
    """

    def __init__(self, count: int, piece: int = 32, most_waiting: int = 64) -> None:
        if count < 1 or piece < 1 or most_waiting < 0:
            raise InvalidArgumentError(
                "the settings of slots are out of range",
                expected="count >= 1, piece >= 1, most_waiting >= 0",
                actual=(count, piece, most_waiting),
            )
        self.count = count
        self._piece = piece
        self._most_waiting = most_waiting
        self._free = list(range(count))  # a heap: the lowest goes first, so that those in use are close together
        self._lines: dict[str, deque[Stream]] = {}  # by client, whose turn is next first; none is empty
        self._waiting = 0
        self._reading: deque[tuple[int, Stream]] = deque()  # with their slots, whose turn is next first
        self._writing: dict[int, Stream] = {}  # by slot

    def join(self, stream: Stream) -> None:
        """A stream has come.

        Raises:
            ResourceExhaustedError: as many wait in line as may.
        """
        if self._waiting >= self._most_waiting + len(self._free):
            raise ResourceExhaustedError(
                "too many streams are waiting", expected=f"at most {self._most_waiting}", actual=self._waiting
            )
        self._lines.setdefault(stream.client, deque()).append(stream)
        self._waiting += 1

    def leave(self, stream: Stream) -> None:
        """Nobody wants this stream any more, or it is at its end: its slot is free."""
        if stream.has_left:
            return
        stream.has_left = True
        if stream.slot is None:
            self._lines[stream.client].remove(stream)
            if not self._lines[stream.client]:
                del self._lines[stream.client]
            self._waiting -= 1
            return
        if self._writing.get(stream.slot) is stream:
            del self._writing[stream.slot]
        else:
            self._reading.remove((stream.slot, stream))
        heapq.heappush(self._free, stream.slot)
        stream.slot = None

    def place(self) -> list[Stream]:
        """Give free slots to who waits; the streams that have got one. To be called between two steps."""
        placed = []
        while self._free and self._lines:
            client, line = next(iter(self._lines.items()))
            del self._lines[client]
            stream = line.popleft()
            if line:
                self._lines[client] = line  # behind the others
            self._waiting -= 1
            stream.slot = heapq.heappop(self._free)
            self._reading.append((stream.slot, stream))
            placed.append(stream)
        return placed

    def next_piece(self) -> Piece | None:
        """What of which prompt is to be read next. `was_read` must follow, or `leave`."""
        if not self._reading:
            return None
        slot, stream = self._reading[0]
        self._reading.rotate(-1)
        return Piece(stream, slot, stream.read, min(stream.read + self._piece, len(stream.prompt)))

    def was_read(self, piece: Piece) -> bool:
        """A piece has been read. Returns whether the stream has been read to its end, and writes from now on."""
        stream = piece.stream
        if stream.slot is None:
            return False
        stream.read = piece.end
        if not stream.is_read:
            return False
        self._reading.remove((stream.slot, stream))
        self._writing[stream.slot] = stream
        return True

    def writing(self) -> dict[int, Stream]:
        """The streams of which the next step makes a token each, by slot."""
        return dict(self._writing)

    def wrote(self, stream: Stream) -> None:
        """A token of it was made. After its last one it leaves."""
        stream.made += 1
        if stream.made == stream.most:
            self.leave(stream)

    def everybody(self) -> list[Stream]:
        """All that have not left."""
        waiting = [stream for line in self._lines.values() for stream in line]
        return [*self._writing.values(), *(stream for _, stream in self._reading), *waiting]

    def statistics(self) -> SlotsStatistics:
        """How it stands."""
        return SlotsStatistics(len(self._writing), len(self._reading), self._waiting, len(self._free))
