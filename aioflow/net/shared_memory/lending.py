"""What one end has lent to the other, without I/O: what may be lent, what has come back, what is lost with the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType
from aioflow.net.framing import Kind, Message
from aioflow.net.limits import Limits
from aioflow.net.shared_memory.board import SLOTS, SPOILED, TURNS, PeerBoard
from aioflow.net.tensor_format import dtype_of
from aioflow.work.segments import SHARED, Loan, loan_of

__all__ = ["Lender", "large"]


class _Lent:
    """A tensor at the other end."""

    __slots__ = ("array", "arrived", "loan", "turn")

    def __init__(self, array: Array, loan: Loan, turn: int) -> None:
        self.array, self.loan, self.turn = array, loan, turn  # held, so that nobody overwrites it
        self.arrived = False


class _Place(NamedTuple):
    """Where a tensor is, as a LENT says it."""

    segment: int
    fd: int
    file_bytes: int
    offset: int
    slot: int
    turn: int


def large(message: Message) -> bool:
    """Whether a message has a tensor that may be worth lending."""
    return any(getattr(tensor, "nbytes", 0) >= SHARED.smallest for tensor in message.tensors)


class Lender:
    """One end's.

    Args:
        board: The other end's.
        most: Bytes that may be lent at a time, in whole segments.
        unread: Bytes that may be on their way at a time, beside a first message.
        limits: This end's own.
    """

    def __init__(self, board: PeerBoard, most: int, unread: int, limits: Limits) -> None:
        self._board = board
        self._most, self._unread, self._limits = most, unread, limits
        self._lent: dict[int, _Lent] = {}
        self._turns = [0] * SLOTS
        self._ready = False
        SHARED.connected(1)

    @property
    def bytes(self) -> int:
        """What is lent, in whole segments."""
        return sum(_segments(self._lent.values()).values())

    def collect(self) -> None:
        """See what has come back."""
        for slot, lent in list(self._lent.items()):
            lent.arrived = lent.arrived or self._board.arrived(slot) == lent.turn
            came = self._board.returned(slot)
            if came & TURNS == lent.turn:
                if came & SPOILED:
                    _spoil(lent)
                del self._lent[slot]

    def picked(self, message: Message) -> dict[int, tuple[DType, Array]]:
        """The tensors of a message that may be lent, with their places; none where it cannot be sent at all."""
        self._ready = self._ready or self._board.ready
        tensors, limits = message.tensors, self._limits
        if not self._ready or message.kind < Kind.REQUEST or not isinstance(message.header, Mapping):
            return {}
        if len(tensors) > limits.tensors or sum(getattr(t, "nbytes", 0) for t in tensors) > limits.tensor_bytes:
            return {}
        self.collect()
        found = {}
        for index, array in enumerate(tensors):
            if isinstance(array, np.ndarray) and array.nbytes >= SHARED.smallest and array.ndim <= limits.rank:
                dtype = dtype_of(array)
                if dtype is not None and not dtype.is_bool:
                    found[index] = dtype, array
        return self._within(found)

    def _within(self, found: dict[int, tuple[DType, Array]]) -> dict[int, tuple[DType, Array]]:
        """Those for which there is room."""
        on_way = sum(lent.array.nbytes for lent in self._lent.values() if not lent.arrived)
        if on_way and on_way + sum(array.nbytes for _, array in found.values()) > self._unread:
            return {}
        room, slots = self._most - self.bytes, SLOTS - len(self._lent)
        chosen = {}
        for index, (dtype, array) in found.items():
            loan = loan_of(array)
            size = array.nbytes * 5 // 4 if loan is None or loan.segment is None else loan.segment.size
            if size <= room and slots:
                room -= size
                slots -= 1
                chosen[index] = dtype, array
        return chosen

    def lend(self, arrays: Mapping[int, tuple[DType, Array]]) -> Iterator[tuple[int, list[Any]]]:
        """Lend arrays that lie in segments: the slot of each, and what a LENT says of it."""
        free = iter(sorted(set(range(SLOTS)).difference(self._lent)))
        for index, (dtype, array) in arrays.items():
            loan = loan_of(array)
            if loan is None or loan.segment is None:
                continue
            segment, slot = loan.segment, next(free)
            self._turns[slot] = turn = self._turns[slot] % TURNS + 1
            self._lent[slot] = _Lent(array, loan, turn)
            offset = int(array.__array_interface__["data"][0]) - segment.address
            place = _Place(segment.number, segment.fd, segment.file_bytes, offset, slot, turn)
            yield slot, [index, dtype.name, list(array.shape), array.nbytes, list(place)]

    def revoke(self, slots: Iterable[int]) -> None:
        """What was lent has not been sent."""
        for slot in slots:
            del self._lent[slot]

    def end(self) -> None:
        """The connection has ended, and nobody says any more whether the other end holds what was lent."""
        for lent in self._lent.values():
            _spoil(lent)
        self._lent.clear()
        SHARED.connected(-1)


def _segments(all_lent: Iterable[_Lent]) -> dict[int, int]:
    """Their segments, and the size of each."""
    return {lent.loan.segment.number: lent.loan.segment.size for lent in all_lent if lent.loan.segment is not None}


def _spoil(lent: _Lent) -> None:
    if lent.loan.segment is not None:
        lent.loan.segment.spoiled = True
