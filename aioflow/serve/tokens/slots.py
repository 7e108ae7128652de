"""The schedule of the streams: which slot each has, and what is computed next. No event loop, arrays or clock.

The number of slots is fixed. A stream waits in a queue until a slot is free. Its prompt is then read, piece by piece.
After that, each step generates a token of it, together with all other streams whose prompts have been read. Between two
steps at most one piece of one prompt is read, and the prompts take turns. A long prompt therefore delays neither
streams that generate nor a short prompt.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioflow.errors import InvalidArgumentError, ResourceExhaustedError

_SOON: Final = 1.0  # seconds after which a refused client may try again


class TokenStream:
    """A stream of generated tokens.

    Args:
        prompt: Tokens to continue, at least one.
        most: Number of tokens to generate.
        client: Client of the stream. Clients take turns in the queue, regardless of their number of streams.

    Attributes:
        slot: Slot of the stream; None while it waits, and after it has left.
        read: Number of prompt tokens that have been read.
        made: Number of tokens that have been generated.
        has_left: Whether the stream has ended.
    """

    __slots__ = ("client", "has_left", "made", "most", "prompt", "read", "slot")

    def __init__(self, prompt: Sequence[int], most: int, client: str = "") -> None:
        if not prompt or most < 1:
            raise InvalidArgumentError(
                "a stream needs a prompt and tokens to generate",
                expected="a prompt of at least one token, and at least one token to generate",
                actual=f"a prompt of {len(prompt)} tokens, {most} to generate",
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
        """True if the whole prompt has been read."""
        return self.read == len(self.prompt)


class PromptPiece(NamedTuple):
    """The tokens `begin` to `end` of a stream's prompt, to be read in its slot."""

    stream: TokenStream
    slot: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SlotsStatistics:
    """The numbers of streams that generate, that read their prompts, and that wait; of free slots; of made tokens."""

    writing: int
    reading: int
    waiting: int
    free: int
    made: int = 0


class Slots:
    """The assignment of streams to slots.

    Args:
        count: Number of slots.
        piece: Number of prompt tokens that are read at once.
        most_waiting: Maximum number of waiting streams.
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
        self._free = list(range(count))  # a heap: the lowest is used first, to keep used slots contiguous
        self._lines: dict[str, deque[TokenStream]] = {}  # by client, the next turn first; never empty
        self._waiting = self._made = 0
        self._reading: deque[tuple[int, TokenStream]] = deque()  # with their slots, the next turn first
        self._writing: dict[int, TokenStream] = {}  # by slot

    def join(self, stream: TokenStream) -> None:
        """Add a stream to the queue.

        Raises:
            ResourceExhaustedError: the queue is full.
        """
        if self._waiting >= self._most_waiting + len(self._free):
            error = ResourceExhaustedError(
                "too many streams are waiting", expected=f"at most {self._most_waiting}", actual=self._waiting
            )
            error.retry_after = _SOON
            raise error
        self._lines.setdefault(stream.client, deque()).append(stream)
        self._waiting += 1

    def leave(self, stream: TokenStream) -> None:
        """Remove a stream that is complete or no longer wanted, and free its slot. Idempotent."""
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

    def place(self) -> list[TokenStream]:
        """Assign free slots to waiting streams and return these streams. Must be called between two steps."""
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

    def next_piece(self) -> PromptPiece | None:
        """Return the piece of a prompt to read next. A call of `was_read` or `leave` must follow."""
        if not self._reading:
            return None
        slot, stream = self._reading[0]
        self._reading.rotate(-1)
        return PromptPiece(stream, slot, stream.read, min(stream.read + self._piece, len(stream.prompt)))

    def was_read(self, piece: PromptPiece) -> bool:
        """Record that a piece was read. Return True if its prompt is complete, so that the stream now generates."""
        stream = piece.stream
        if stream.slot is None:
            return False
        stream.read = piece.end
        if not stream.is_read:
            return False
        self._reading.remove((stream.slot, stream))
        self._writing[stream.slot] = stream
        return True

    def writing(self) -> dict[int, TokenStream]:
        """Return the streams that generate a token in the next step, by slot."""
        return dict(self._writing)

    def wrote(self, stream: TokenStream) -> None:
        """Record that a token of the stream was generated. The stream leaves after its last token."""
        stream.made += 1
        self._made += 1
        if stream.made == stream.most:
            self.leave(stream)

    def streams(self) -> list[TokenStream]:
        """Return all streams that have not left."""
        waiting = [stream for line in self._lines.values() for stream in line]
        return [*self._writing.values(), *(stream for _, stream in self._reading), *waiting]

    def statistics(self) -> SlotsStatistics:
        """Return the current numbers of streams and free slots."""
        return SlotsStatistics(len(self._writing), len(self._reading), self._waiting, len(self._free), self._made)
