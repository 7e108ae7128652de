"""Bookkeeping of exported tensors, without I/O: which may be exported, were returned, or became unreachable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from aioflow.graph.dtypes import DType
from aioflow.memory.segments import SHARED, Loan, loan_of
from aioflow.memory.values import Array
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.limits import Limits
from aioflow.net.shared_memory.ring import SLOTS, SPOILED, TURNS, PeerRing
from aioflow.net.tensor_format import dtype_of


class _Exported:
    """A tensor exported to the other end."""

    __slots__ = ("array", "arrived", "loan", "turn")

    def __init__(self, array: Array, loan: Loan, turn: int) -> None:
        self.array, self.loan, self.turn = array, loan, turn  # references keep the memory from reuse
        self.arrived = False


class _Place(NamedTuple):
    """The location of a tensor, as in a LENT."""

    segment: int
    fd: int
    file_bytes: int
    offset: int
    slot: int
    turn: int


def large(message: WireMessage) -> bool:
    """Return True if a message has a tensor that may be worth exporting."""
    return any(getattr(tensor, "nbytes", 0) >= SHARED.smallest for tensor in message.tensors)


class Exporter:
    """The exporting side of one end.

    Args:
        ring: The other end's ring.
        most: Maximum bytes exported at a time, in whole segments.
        unread: Maximum bytes in transit at a time; if none are, a message may have more.
        limits: Limits of this end.
    """

    def __init__(self, ring: PeerRing, most: int, unread: int, limits: Limits) -> None:
        self._ring = ring
        self._most, self._unread, self._limits = most, unread, limits
        self._exported: dict[int, _Exported] = {}
        self._turns = [0] * SLOTS
        self._ready = False
        SHARED.connected(1)

    @property
    def bytes(self) -> int:
        """Exported bytes, in whole segments."""
        return sum(_segments(self._exported.values()).values())

    def collect(self) -> None:
        """Read the other end's ring, and release the tensors that have been returned."""
        for slot, exported in list(self._exported.items()):
            exported.arrived = exported.arrived or self._ring.arrived(slot) == exported.turn
            came = self._ring.returned(slot)
            # Another turn is that of an earlier tensor in this slot.
            if came & TURNS == exported.turn:
                if came & SPOILED:
                    _spoil(exported)
                del self._exported[slot]

    def picked(self, message: WireMessage) -> dict[int, tuple[DType, Array]]:
        """Return the tensors of a message that may be exported, by index.

        Until the other end is ready, or if the message exceeds a limit, the result is empty.
        """
        self._ready = self._ready or self._ring.ready
        tensors, limits = message.tensors, self._limits
        if not self._ready or message.kind < FrameKind.REQUEST or not isinstance(message.header, Mapping):
            return {}
        if len(tensors) > limits.tensors or sum(getattr(t, "nbytes", 0) for t in tensors) > limits.tensor_bytes:
            return {}
        self.collect()
        found = {}
        for index, array in enumerate(tensors):
            if isinstance(array, np.ndarray) and array.nbytes >= SHARED.smallest and array.ndim <= limits.rank:
                dtype = dtype_of(array)
                # Not every byte is a valid bool, and the receiver does not read the memory to check it.
                if dtype is not None and not dtype.is_bool:
                    found[index] = dtype, array
        return self._within(found)

    def _within(self, found: dict[int, tuple[DType, Array]]) -> dict[int, tuple[DType, Array]]:
        """Return those tensors for which there is room."""
        # With nothing in transit, a message of any size may be exported: otherwise it could never be.
        on_way = sum(exported.array.nbytes for exported in self._exported.values() if not exported.arrived)
        if on_way and on_way + sum(array.nbytes for _, array in found.values()) > self._unread:
            return {}
        room, slots = self._most - self.bytes, SLOTS - len(self._exported)
        chosen = {}
        for index, (dtype, array) in found.items():
            loan = loan_of(array)
            # A copy goes to a new segment, which may be up to a quarter larger than the array.
            size = array.nbytes * 5 // 4 if loan is None or loan.segment is None else loan.segment.size
            if size <= room and slots:
                room -= size
                slots -= 1
                chosen[index] = dtype, array
        return chosen

    def export(self, arrays: Mapping[int, tuple[DType, Array]]) -> Iterator[tuple[int, list[object]]]:
        """Export arrays that lie in segments, and yield the slot and the LENT entry of each."""
        free = iter(sorted(set(range(SLOTS)).difference(self._exported)))
        for index, (dtype, array) in arrays.items():
            loan = loan_of(array)
            if loan is None or loan.segment is None:
                continue
            segment, slot = loan.segment, next(free)
            # From 1 to 127, since 0 is what an unused slot of the ring contains.
            self._turns[slot] = turn = self._turns[slot] % TURNS + 1
            self._exported[slot] = _Exported(array, loan, turn)
            offset = int(array.__array_interface__["data"][0]) - segment.address
            place = _Place(segment.number, segment.fd, segment.file_bytes, offset, slot, turn)
            yield slot, [index, dtype.name, list(array.shape), array.nbytes, list(place)]

    def revoke(self, slots: Iterable[int]) -> None:
        """Take back tensors whose message has not been sent."""
        for slot in slots:
            del self._exported[slot]

    def end(self) -> None:
        """Retire the exported segments: the connection has ended, so the other end can no longer return them."""
        for exported in self._exported.values():
            _spoil(exported)
        self._exported.clear()
        SHARED.connected(-1)


def _segments(all_exported: Iterable[_Exported]) -> dict[int, int]:
    """Return the sizes of the tensors' segments, by number."""
    return {
        exported.loan.segment.number: exported.loan.segment.size
        for exported in all_exported
        if exported.loan.segment is not None
    }


def _spoil(exported: _Exported) -> None:
    if exported.loan.segment is not None:
        exported.loan.segment.spoiled = True
