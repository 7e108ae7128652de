"""The wire format of protocol buffers, as far as aioflow needs it.

It supports varints, fixed 32 and 64 bits, and length-delimited fields. Everything else is rejected: lengths beyond the
end, varints of more than ten bytes, groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aioflow.errors import DataLossError

# The wire types; 3 and 4, the ends of a group, occur only in proto2.
VARINT, FIXED64, PIECE, FIXED32 = 0, 1, 2, 5
MASK64: Final = 2**64 - 1


def damaged(what: str) -> DataLossError:
    """Return the error for a message that cannot be decoded."""
    return DataLossError(f"damaged message: {what}")


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a varint. Return its value and the position after it.

    Raises:
        DataLossError: the varint does not end before `end`, or has more than ten bytes.
    """
    # Most varints have one byte, which needs no loop.
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    while True:
        # Ten bytes of seven bits hold any number of 64 bits.
        if at >= end or shift > 63:
            raise damaged("an unterminated varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & MASK64, at
        shift += 7


def read_fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield field number, wire type, and begin and end of the contents of each field.

    For a varint, the last two are its value and 0.

    Raises:
        DataLossError: the bytes are not a message.
    """
    while at < end:
        # Most tags are one byte: they are decoded without a call.
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_number(data, at - 1, end)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise damaged("a field with the number 0")
        if wire == VARINT:
            value, at = read_number(data, at, end)
            yield number, wire, value, 0
            continue
        if wire == PIECE:
            size, at = read_number(data, at, end)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise damaged(f"wire type {wire}")
        if size > end - at:
            raise damaged("a field longer than the remaining bytes")
        yield number, wire, at, at + size
        at += size


def write_number(value: int) -> bytes:
    """Encode an unsigned number of at most 64 bits as a varint."""
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def write_piece(field: int, data: bytes) -> bytes:
    """Encode a length-delimited field: text, a message, or packed numbers."""
    return write_number(field << 3 | PIECE) + write_number(len(data)) + data
