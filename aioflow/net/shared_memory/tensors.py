"""Tensors in shared memory, without I/O: those exported to the other end, and those imported from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import DataLossError, ResourceExhaustedError
from aioflow.graph.dtypes import DType, string
from aioflow.memory.segments import SHARED, TRAILER, Loan, is_forking, loan_of, spoil_at_fork
from aioflow.memory.values import Array
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.limits import Limits
from aioflow.net.shared_memory.rings import SLOTS, SPOILED, TURNS, Opened, PeerRing, Process, Ring
from aioflow.net.tensor_format import TensorHeader, dtype_of, parse_spec

# ── exported tensors: which may be exported, were returned, or became unreachable ─────────────────────────────────────


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


# ── imported tensors: arrays over the other end's memory, and their return when they are freed ────────────────────────
#
# The description of an array comes over the connection and is checked. The contents of the memory are never trusted,
# since the owner may change them at any time. Segments stay mapped for later arrays until their owner retires them.


_PLACE: Final = 6  # numbers


class _Imported(Array):
    """The array over another process's memory that all other arrays over it have as their base."""

    ticket: _Ticket | None = None  # None for views of the array, which return nothing themselves

    # A default argument, since globals of the module may be gone when the interpreter exits.
    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.ticket is not None and not is_over():
            self.ticket.give_back()


class _Ticket:
    """The record of one imported array."""

    __slots__ = ("_importer", "file", "number", "size", "slot", "spoiled", "turn")

    def __init__(self, importer: Importer, slot: int, turn: int, number: int, file: tuple[int, ...], size: int) -> None:
        self._importer = importer
        self.slot, self.turn, self.number, self.file, self.size = slot, turn, number, file, size
        self.spoiled = False  # True if a forked child may hold the array

    def give_back(self) -> None:
        """Return the array to its owner. Thread-safe."""
        self._importer.give_back(self)


class Importer:
    """The importing side of one end.

    Args:
        process: The process at the other end.
        ring: This end's ring, by which imported tensors are returned.
        limits: Limits of this end.
    """

    def __init__(self, process: Process, ring: Ring, limits: Limits) -> None:
        self._process = process
        self._ring = ring
        self._limits = limits
        self._held: dict[int, _Ticket] = {}
        self._mapped: dict[int, Opened] = {}  # by number of the segment, least recently used first
        spoil_at_fork(self)

    @property
    def bytes(self) -> int:
        """Bytes of the imported arrays in use, in whole segments."""
        # A copy, since `give_back` may be called by any thread meanwhile.
        return sum({ticket.number: ticket.size for ticket in list(self._held.values())}.values())

    @property
    def mapped(self) -> int:
        """Bytes that are mapped, in use or not."""
        return sum(opened.bytes.nbytes for opened in self._mapped.values())

    def import_array(self, description: object, own: bool = False) -> tuple[int, Array]:
        """Import an array and return its index among the message's tensors, and the array.

        Args:
            description: The entry of a LENT that describes the array.
            own: Whether to map the array privately, so that it is writable; otherwise it is read-only.

        Raises:
            DataLossError: the description is malformed, or does not fit the memory.
            ResourceExhaustedError: a limit is exceeded.
            UnavailableError: the memory no longer exists.
        """
        index, spec, place = _parsed(description, self._limits)
        number, fd, file_bytes, offset, slot, turn = place
        size = file_bytes - TRAILER
        itemsize = spec.dtype.np_dtype.itemsize
        if not (0 < spec.nbytes <= size - offset and offset % itemsize == 0 and slot < SLOTS and 0 < turn <= TURNS):
            raise DataLossError("a shared tensor exceeds its segment", expected=f"{size} bytes", actual=place)
        # The owner reuses a slot only after the ring has shown its return.
        if slot in self._held:
            raise DataLossError("a slot for a shared tensor was used twice", actual=slot)
        memory = self._memory(number, fd, file_bytes, own)
        # Limits are counted by segment number, and two files with one number would evade them.
        if any(ticket.number == number and ticket.file != memory.file for ticket in list(self._held.values())):
            raise DataLossError("two shared-memory segments have the same number", actual=number)
        imported = _Imported(spec.shape, spec.dtype.np_dtype, memory.bytes, offset)
        ticket = _Ticket(self, slot, turn, number, memory.file, size)
        self._held[slot] = imported.ticket = ticket
        self._ring.arrived(slot, turn)
        return index, imported.view(np.ndarray)

    def _memory(self, number: int, fd: int, file_bytes: int, own: bool) -> Opened:
        # A private mapping is not kept for later arrays: it may have been written to.
        if own:
            self._make_room(number, file_bytes - TRAILER)
            return self._process.open(fd, file_bytes, own=True)
        found = self._mapped.pop(number, None)
        if found is None:
            self._make_room(number, file_bytes - TRAILER)
            found = self._process.open(fd, file_bytes)
        elif found.bytes.nbytes != file_bytes:
            raise DataLossError(
                "a shared-memory segment changed its size", expected=found.bytes.nbytes, actual=file_bytes
            )
        self._mapped[number] = found
        return found

    def _make_room(self, number: int, size: int) -> None:
        most = self._limits.shared_bytes
        held = {ticket.number for ticket in list(self._held.values())}
        if number not in held and self.bytes + size > most:
            raise ResourceExhaustedError(
                "shared-memory bytes exported by the peer", expected=f"at most {most}", actual=size
            )
        for idle in [number for number in self._mapped if number not in held]:
            if self.mapped + size <= most:
                break
            del self._mapped[idle]

    def give_back(self, ticket: _Ticket) -> None:
        """Return an array that is no longer held to its owner."""
        # Before the ring: the owner may reuse the slot once the ring is written.
        self._held.pop(ticket.slot, None)
        spoiled = ticket.spoiled or is_forking()
        self._ring.returned(ticket.slot, ticket.turn + (SPOILED if spoiled else 0))

    def spoil(self) -> None:
        """Mark all imported arrays before a fork: the child will hold them, too."""
        for ticket in list(self._held.values()):
            ticket.spoiled = True

    def trim(self) -> None:
        """Unmap the segments that their owner has retired."""
        for number, opened in list(self._mapped.items()):
            # The owner sets the first byte of the trailer when it retires the segment.
            if opened.bytes[-TRAILER]:
                del self._mapped[number]

    def end(self) -> None:
        """Stop importing; arrays that are held stay valid."""
        self._mapped.clear()
        self._process.close()


def _parsed(description: object, limits: Limits) -> tuple[int, TensorHeader, list[int]]:
    if not (isinstance(description, list) and len(description) == 5):
        raise DataLossError("a malformed description of a shared tensor", actual=brief(description))
    index, *spec, place = description
    if not (isinstance(place, list) and len(place) == _PLACE and all(_is_number(item) for item in (index, *place))):
        raise DataLossError("a malformed location of a shared tensor", expected="numbers", actual=brief(description))
    parsed = parse_spec(spec, limits)
    if parsed.dtype is string or parsed.dtype.is_bool:
        raise DataLossError(
            "a dtype that cannot be in shared memory", expected="a numeric dtype", actual=parsed.dtype.name
        )
    return index, parsed, place


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
