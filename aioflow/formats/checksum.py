"""CRC-32C, in the disguise in which record files, tables and checkpoints store it."""

from __future__ import annotations

from typing import Final

import google_crc32c

from aioflow.graph.arrays import Array

__all__ = ["crc32c", "disguised", "masked_crc32c"]

_DELTA: Final = 0xA282EAD8


def crc32c(data: bytes | Array, before: int = 0) -> int:
    """The checksum of data (bytes, or a flat array of them), or of what came `before`, by its checksum, and this."""
    crc: int = google_crc32c.extend(before, data)
    return crc


def disguised(crc: int) -> int:
    """A checksum as it is stored: rotated by 15 bits, plus a constant.

    (The checksum of data that contains its own checksum would be of little use.)
    """
    return ((crc >> 15 | crc << 17) + _DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes | Array) -> int:
    """The disguised checksum of data."""
    return disguised(crc32c(data))
