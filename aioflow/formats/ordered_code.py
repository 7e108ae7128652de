"""Order-preserving encoding of names and numbers, as TensorFlow's checkpoints use it for the keys of tensor slices."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from aioflow.errors import DataLossError
from aioflow.formats.protobuf import PIECE, VARINT, read_fields
from aioflow.formats.tensor_slice import TensorSlice

_WHOLE: Final = -1


class Extent(NamedTuple):
    """The range of a slice along one axis: its start, and its length, or -1 for the whole axis."""

    start: int = 0
    length: int = _WHOLE


def slice_key(name: str, extents: tuple[Extent, ...]) -> bytes:
    """Return the table key of a slice of a tensor."""
    parts = [_number(0), _text(name.encode()), _number(len(extents))]
    parts += [_signed(extent.start) + _signed(extent.length) for extent in extents]
    return b"".join(parts)


def _number(value: int) -> bytes:
    """Encode an unsigned number: the count of its bytes, then the bytes in big-endian order."""
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _text(value: bytes) -> bytes:
    """Encode a string: escape the bytes 0x00 and 0xFF, and append the terminator."""
    return re.sub(rb"[\x00\xff]", lambda found: found[0] + bytes([255 - found[0][0]]), value) + b"\0\1"


def _signed(value: int) -> bytes:
    """Encode a signed number so that the encodings sort like the numbers.

    The length is a prefix of ones, one for each byte; the number follows in two's complement. For a negative number the
    prefix is inverted.
    """
    size = next(n for n in range(1, 11) if (~value if value < 0 else value).bit_length() <= 7 * n - 1)
    header = ((1 << size) - 1) << (8 * size - size)  # `size` ones; the highest one also marks the sign
    return (value & (1 << 8 * size) - 1 ^ header).to_bytes(size, "big")


def read_extents(data: bytes, begin: int, end: int) -> tuple[Extent, ...]:
    """Return the extents of a TensorSliceProto.

    Raises:
        DataLossError: the message is damaged.
    """
    found = []
    for number, wire, start, stop in read_fields(data, begin, end):
        if (number, wire) == (1, PIECE):
            fields = {field: value for field, kind, value, _ in read_fields(data, start, stop) if kind == VARINT}
            found.append(Extent(fields.get(1, 0), fields.get(2, _WHOLE)))
    return tuple(found)


def slice_of(extents: tuple[Extent, ...], shape: tuple[int, ...]) -> TensorSlice:
    """Return the slice that the extents select from a tensor of this shape.

    Raises:
        DataLossError: the slice lies outside of the tensor.
    """
    lengths = tuple(
        size if extent.length == _WHOLE else extent.length for extent, size in zip(extents, shape, strict=False)
    )
    offsets = tuple(extent.start for extent in extents)
    inside = all(o >= 0 and n >= 0 and o + n <= s for o, n, s in zip(offsets, lengths, shape, strict=False))
    if len(extents) != len(shape) or not inside:
        raise DataLossError("a slice lies outside its tensor", expected=f"inside {shape}", actual=list(extents))
    return TensorSlice(shape, offsets, lengths)
