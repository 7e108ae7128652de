"""The fields of an encoded message, without what is inside them: large ones are found where they lie, and not copied.

A protocol buffer is a row of fields: each has its number and its wire type in one whole number of seven bits a byte,
and then what it holds. The order of fields means nothing, but for those of one number among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from aioflow.serve.protocol import MalformedRequestError

__all__ = ["BYTES", "Field", "field_head", "fields_of"]

BYTES: Final = 2  # the wire type of what has its length before it: bytes, text, messages
_VARINT: Final = 0
_FIXED: Final = {1: 8, 5: 4}  # bytes of the wire types that have a size
_MOST: Final = 10  # bytes of a whole number of 64 bits


class Field(NamedTuple):
    """A field: its number and wire type, and where it begins, where what it holds begins, and where that ends."""

    number: int
    kind: int
    begin: int
    inside: int
    end: int


def fields_of(data: Any) -> Iterator[Field]:
    """The fields of a message, one after the other. Raises MalformedRequestError: the bytes are no message."""
    at, total = 0, len(data)
    while at < total:
        begin = at
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
            raise _wrong(begin)  # a group, which no message has here, or nothing that there is
        if end > total or not number:
            raise _wrong(begin)
        yield Field(number, kind, begin, at, end)
        at = end


def _whole(data: Any, at: int, total: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    value = 0
    for index in range(_MOST):
        if at + index >= total:
            break
        byte = data[at + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise _wrong(at)


def _wrong(at: int) -> MalformedRequestError:
    return MalformedRequestError("the request is no protocol buffer", expected="a field", actual=f"others at byte {at}")


def field_head(number: int, size: int) -> bytes:
    """What stands before `size` bytes that are a field of that number."""
    return _encoded(number << 3 | BYTES) + _encoded(size)


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
