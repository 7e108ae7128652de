"""Snappy decompression, for old tables. A block begins with its decompressed size."""

from __future__ import annotations

from aioflow.errors import DataLossError
from aioflow.formats.protobuf import read_number


def decompress(data: bytes, limit: int) -> bytes:
    """Decompress a block.

    Args:
        data: The compressed block.
        limit: Maximum decompressed size, in bytes.

    Raises:
        DataLossError: the block is damaged, or larger than `limit`.
    """
    size, at = read_number(data, 0, len(data))
    if size > limit:
        raise _damaged(f"{size} bytes where at most {limit} are expected")
    made = bytearray()
    end = len(data)
    while at < end:
        tag = data[at]
        at += 1
        # The lower two bits are the kind: 0 is a literal; 1, 2 and 3 are copies with 1, 2 and 4 further bytes.
        if tag & 3 == 0:
            length, at = _literal(data, tag >> 2, at)
            made += data[at : at + length]
            at += length
        else:
            length, back, at = _copy(data, tag, at)
            _repeat(made, back, length)
        # Checked for each element, so that a damaged block cannot fill the memory first.
        if len(made) > size:
            raise _damaged("more bytes than declared")
    if len(made) != size:
        raise _damaged(f"{len(made)} bytes instead of {size}")
    return bytes(made)


def _literal(data: bytes, length: int, at: int) -> tuple[int, int]:
    """Return the length of a literal, and the position of its bytes.

    Lengths from 60 on are in the next one to four bytes.
    """
    if length >= 60:
        wide = length - 59
        length, at = int.from_bytes(data[at : at + wide], "little"), at + wide
    if at + length + 1 > len(data):
        raise _damaged("a literal beyond the end")
    # The format stores the length minus one, here and in copies; short copies store it minus four.
    return length + 1, at


def _copy(data: bytes, tag: int, at: int) -> tuple[int, int, int]:
    """Return the length of a copy, its distance back, and the position after the element."""
    wide = (0, 1, 2, 4)[tag & 3]
    if at + wide > len(data):
        raise _damaged("a copy beyond the end")
    back = int.from_bytes(data[at : at + wide], "little")
    # The short copy has an 11-bit distance, of which the upper three bits are in the tag.
    if tag & 3 == 1:
        return (tag >> 2 & 7) + 4, tag >> 5 << 8 | back, at + wide
    return (tag >> 2) + 1, back, at + wide


def _repeat(made: bytearray, back: int, length: int) -> None:
    if not 0 < back <= len(made):
        raise _damaged("a copy from before the start")
    # A copy may reach into its own output: then its last `back` bytes repeat.
    piece = made[-back:] if back <= length else made[len(made) - back : len(made) - back + length]
    made += (piece * (length // back + 1))[:length]


def _damaged(why: str) -> DataLossError:
    return DataLossError(f"a compressed block is damaged: {why}")
