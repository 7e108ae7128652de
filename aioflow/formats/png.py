"""PNG encoding with 8 or 16 bits per channel, and decoding of several 16-bit channels, which Pillow lacks."""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.memory.values import Array

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
MOST_PIXELS: Final = (1 << 29) // 3  # Pillow's own limit; a small file may declare an image of any size
# Width, height, bit depth, color type, compression method, filter method, interlace method.
_HEADER: Final = struct.Struct(">IIBBBBB")
_KINDS: Final = {1: 0, 2: 4, 3: 2, 4: 6}  # the format's color types, by number of channels
_CHANNELS: Final = {kind: count for count, kind in _KINDS.items()}


def _chunk(kind: bytes, data: bytes) -> bytes:
    # The length counts the data only; the CRC-32 covers the kind and the data.
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(image: Array, compression: int) -> bytes:
    """Encode an image, [height, width, channels] uint8 or uint16, as a PNG file.

    Each row is stored as its difference from the row above (filter type 2). `compression` is zlib's level.
    """
    height, width, channels = image.shape
    header = _HEADER.pack(width, height, image.dtype.itemsize * 8, _KINDS[channels], 0, 0, 0)
    rows = np.ascontiguousarray(image.astype(image.dtype.newbyteorder(">"))).view(np.uint8).reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), dtype=np.uint8)
    filtered[:, 0] = 2
    filtered[:1, 1:] = rows[:1]
    # Differences wrap around in uint8, as the format requires.
    filtered[1:, 1:] = rows[1:] - rows[:-1]
    packed = zlib.compress(filtered.tobytes(), compression)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def is_deep(data: bytes) -> bool:
    """Return True if the PNG file has 16 bits per channel and more than one channel."""
    # IHDR comes first: bytes 16 to 28 are width, height, bit depth, color type and three methods.
    return len(data) >= 29 and data[24] == 16 and data[25] in _CHANNELS and data[25] != 0


def read_deep_png(data: bytes) -> Array:
    """Decode a PNG file for which `is_deep` is True to [height, width, channels] uint16.

    Raises:
        InvalidArgumentError: the file is damaged, or the image is too large.
        UnimplementedError: the image is interlaced.
    """
    width, height, _, kind, _, _, interlaced = _HEADER.unpack_from(data, 16)
    if not 0 < width * height <= MOST_PIXELS:
        raise InvalidArgumentError(
            "the PNG image has no pixels, or too many", expected=f"1..{MOST_PIXELS}", actual=(height, width)
        )
    if interlaced:
        raise UnimplementedError("PNG images of 16 bits are not read where they are interlaced")
    channels = _CHANNELS[kind]
    packed = b"".join(_contents(data))
    size = height * (width * channels * 2 + 1)
    try:
        # The limit bounds the memory, however large the data would become.
        raw = zlib.decompressobj().decompress(packed, size)
    except zlib.error as error:
        raise InvalidArgumentError("the PNG image is damaged", expected="whole data", actual=str(error)) from error
    if len(raw) != size:
        raise InvalidArgumentError("the PNG image is cut short", expected=f"{size} bytes", actual=len(raw))
    rows = np.frombuffer(raw, np.uint8).reshape(height, -1)
    made = np.zeros((height, width * channels * 2), dtype=np.uint8)
    above = made[0] * 0
    for number, row in enumerate(rows):
        made[number] = above = _unfiltered(int(row[0]), row[1:], above, channels * 2)
    return made.view(">u2").astype(np.uint16).reshape(height, width, channels)


def _contents(data: bytes) -> list[bytes]:
    """Return the contents of the IDAT chunks."""
    found: list[bytes] = []
    at = len(SIGNATURE)
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            found.append(data[at + 8 : at + 8 + length])
        at += 12 + length
    return found


def _unfiltered(kind: int, row: Array, above: Array, step: int) -> Array:
    """Undo the filter of one row.

    Args:
        kind: The filter type, 0 to 4.
        row: The filtered bytes: differences from a prediction by neighboring bytes.
        above: The decoded row above.
        step: Bytes per pixel, the distance to the neighbor on the left.
    """
    if kind == 0:
        return row
    if kind == 1:
        # The sums wrap around in uint8, as the format requires.
        return np.cumsum(row.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return row + above
    if kind not in (3, 4):
        raise InvalidArgumentError("the PNG image is damaged", expected="a filter 0..4", actual=kind)
    predict = _mean if kind == 3 else _paeth
    # Byte by byte: each prediction needs the decoded neighbor on the left.
    made, up = [0] * step + row.tolist(), [0] * step + above.tolist()
    for at in range(step, len(made)):
        made[at] = (made[at] + predict(made[at - step], up[at], up[at - step])) & 0xFF
    return np.array(made[step:], dtype=np.uint8)


def _mean(left: int, above: int, corner: int) -> int:
    return (left + above) // 2


def _paeth(left: int, above: int, corner: int) -> int:
    """Return the neighbor that is nearest to `left + above - corner` (the Paeth predictor)."""
    to_left, to_above, to_corner = abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)
    if to_left <= to_above and to_left <= to_corner:
        return left
    return above if to_above <= to_corner else corner
