"""CRC-32C, in the masked form in which record files, tables and checkpoints store it."""

from __future__ import annotations

from typing import Final

import google_crc32c

from aioflow.memory.values import Array

# `kMaskDelta` of LevelDB, and so of TensorFlow.
_DELTA: Final = 0xA282EAD8


def crc32c(data: bytes | Array, before: int = 0) -> int:
    """Return the checksum of data (bytes, or a flat array of them), continued from the checksum `before`."""
    crc: int = google_crc32c.extend(before, data)
    return crc


def disguised(crc: int) -> int:
    """Return the stored form of a checksum: rotated right by 15 bits, plus a constant.

    The mask is needed because the CRC of data that contains its own CRC would be of little use.
    """
    return ((crc >> 15 | crc << 17) + _DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes | Array) -> int:
    """Return the stored form of the checksum of data."""
    return disguised(crc32c(data))
