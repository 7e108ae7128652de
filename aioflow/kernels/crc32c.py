"""CRC-32C (the Castagnoli polynomial), which record files use and Python's standard library lacks.

A checksum register is linear over GF(2), so a long message is summed as a tree: the registers of all its 16-bit words
first, then of pairs of neighbours, and so on, each level by table lookups over whole arrays. Joining two blocks means
to shift the left one's register past the right one's length and to XOR; the tables of that shift are made once a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

__all__ = ["crc32c", "masked_crc32c"]

_POLYNOMIAL: Final = 0x82F63B78  # bits reversed, as the register shifts right
_ONES: Final = 0xFFFFFFFF
_SHORT: Final = 384  # bytes: below this the plain loop is faster
_WIDE_LEVELS: Final = 6  # levels that are large enough for tables of 64 Ki entries to pay
_MASK_DELTA: Final = 0xA282EAD8


def _byte_register(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_BYTES: Final = tuple(_byte_register(b) for b in range(256))


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC-32C of the data."""
    if len(data) < _SHORT:
        register = _ONES
        for byte in bytes(data):
            register = _BYTES[(register ^ byte) & 0xFF] ^ (register >> 8)
        return register ^ _ONES
    return _tree(data) ^ _ONES


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC-32C in the disguise in which record files store it: rotated by 15 bits, plus a constant.

    (The checksum of data that contains its own checksum would be of little use.)
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ONES


def _tree(data: bytes | bytearray | memoryview) -> int:
    size = len(data)
    start = size % 2
    padded = np.zeros(start + size, np.uint8)  # zeros in front leave an empty register empty
    padded[start:] = np.frombuffer(data, np.uint8)
    padded[start : start + 4] ^= 0xFF  # the same as a register that starts with ones
    registers = _word_table()[padded.view("<u2")]
    level = 1
    while registers.size > 1:
        if registers.size % 2:
            registers = np.concatenate([np.zeros(1, np.uint32), registers])
        pairs = registers.reshape(-1, 2)
        registers = _shifted(pairs[:, 0], _shift_tables(level)) ^ pairs[:, 1]
        level += 1
    return int(registers[0])


def _shifted(registers: Any, tables: Sequence[Any]) -> Any:
    bits = 32 // len(tables)
    mask = np.uint32((1 << bits) - 1)
    result = tables[0][registers & mask]
    for i in range(1, len(tables)):
        result ^= tables[i][(registers >> np.uint32(i * bits)) & mask]
    return result


@cache
def _word_table() -> Any:
    """The register after each possible pair of bytes, the first one in the low bits."""
    after_one = np.array(_BYTES, np.uint32)
    low = after_one[np.arange(256)]  # the first byte's register, moved on by a zero byte, then the second's
    moved = after_one[low & np.uint32(0xFF)] ^ (low >> np.uint32(8))
    return (moved[None, :] ^ after_one[:, None]).reshape(-1)


@cache
def _shift_images(level: int) -> tuple[int, ...]:
    """Where each bit of a register goes when 2**level zero bytes follow."""
    if level == 0:
        return tuple(_BYTES[(1 << b) & 0xFF] ^ ((1 << b) >> 8) for b in range(32))
    half = _shift_images(level - 1)
    return tuple(_apply(half, image) for image in half)


def _apply(images: Sequence[int], register: int) -> int:
    result = 0
    for bit, image in enumerate(images):
        if register >> bit & 1:
            result ^= image
    return result


@cache
def _shift_tables(level: int) -> tuple[Any, ...]:
    bits = 16 if level <= _WIDE_LEVELS else 8
    images = _shift_images(level)
    return tuple(_span(images[first : first + bits]) for first in range(0, 32, bits))


def _span(images: Sequence[int]) -> Any:
    """For each subset of bits the XOR of their images."""
    table = np.zeros(1, np.uint32)
    for image in images:
        table = np.concatenate([table, table ^ np.uint32(image)])
    return table
