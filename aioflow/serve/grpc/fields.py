"""The top-level fields of an encoded message. Large fields are located in place, without a copy.

A protocol buffer is a sequence of fields. Each begins with its number and wire type as one varint (seven bits a byte),
followed by its value. Only fields with the same number have an order among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from aioflow.serve.protocol import MalformedRequestError

BYTES: Final = 2  # wire type of length-prefixed values: bytes, text, messages
_VARINT: Final = 0
_FIXED: Final = {1: 8, 5: 4}  # size in bytes of the wire types with a fixed size
_MOST: Final = 10  # bytes of a 64-bit varint


class WireField(NamedTuple):
    """A field: number, wire type, and the offsets of its begin, of its value, and of its end."""

    number: int
    kind: int
    begin: int
    inside: int
    end: int


def fields_of(data: bytes) -> Iterator[WireField]:
    """Yield the fields of a message in order. Raise MalformedRequestError if the bytes are not a message."""
    at, total = 0, len(data)
    while at < total:
        begin = at
        # The low three bits of the tag are the wire type, the others the field number.
        tag, at = _whole(data, at, total)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            size, at = _whole(data, at, total)
            end = at + size
        elif kind == _VARINT:
            end = _whole(data, at, total)[1]
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        else:
            # A group, which no message here has, or an unknown wire type.
            raise _wrong(begin)
        # Field number 0 is invalid in every protocol buffer.
        if end > total or not number:
            raise _wrong(begin)
        yield WireField(number, kind, begin, at, end)
        at = end


def _whole(data: bytes, at: int, total: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset of its end."""
    value = 0
    for index in range(_MOST):
        if at + index >= total:
            break
        byte = data[at + index]
        # The least significant seven bits come first; the highest bit of a byte says that another follows.
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise _wrong(at)


def _wrong(at: int) -> MalformedRequestError:
    return MalformedRequestError("the request is no protocol buffer", expected="a field", actual=f"others at byte {at}")


def field_head(number: int, size: int) -> bytes:
    """Return the bytes that precede a value of `size` bytes in a field of this number."""
    return _encoded(number << 3 | BYTES) + _encoded(size)


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
