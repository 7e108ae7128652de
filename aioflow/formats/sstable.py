"""Tables of sorted keys and values, in LevelDB's layout: the indexes of TensorFlow's checkpoints.

A table consists of blocks, each followed by a byte for its compression and a checksum; an index block with the
positions of the others; and a footer with the position of the index. A key in a block omits the prefix that it shares
with the key before it, except at the restart points, whose positions are at the end of the block.

The functions work on bytes and open no files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from aioflow.concurrency.stopping import batches, checkpoint, reserve
from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.checksum import masked_crc32c
from aioflow.formats.protobuf import read_number, write_number
from aioflow.formats.snappy import decompress

MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
# Two handles of at most 20 bytes each, padded to 40, and the magic number.
_FOOTER: Final = 48
# One byte for the compression, four for the masked CRC-32C of the block with that byte.
_TRAILER: Final = 5
_BLOCK: Final = 1 << 18  # size in bytes at which a new block is started
_LARGEST: Final = 1 << 30  # maximum size in bytes of a decompressed block, and of all keys and values
_SHARED: Final = 64  # maximum bytes of keys per byte of a block: writers share prefixes in at most 15 of 16 keys
_RESTART: Final = 16  # keys between two restart points
_PLAIN, _SNAPPY = 0, 1


class _Handle(NamedTuple):
    """The position of a block."""

    offset: int
    size: int

    def packed(self) -> bytes:
        return write_number(self.offset) + write_number(self.size)


def _handle(data: bytes, at: int) -> tuple[_Handle, int]:
    offset, at = read_number(data, at, len(data))
    size, at = read_number(data, at, len(data))
    return _Handle(offset, size), at


def _damaged(why: str) -> DataLossError:
    return DataLossError(f"the table is damaged: {why}")


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Table:
    """A table, of which only the requested blocks are read.

    Args:
        size: Size of the table, in bytes.
        read: Returns the bytes at an offset, given the offset and their number.

    Raises:
        DataLossError: the table is truncated or altered. A block is verified when it is read.
    """

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._end = size - _FOOTER
        self._read = read
        footer = read(self._end, _FOOTER) if self._end >= 0 else b""
        if len(footer) < _FOOTER or not footer.endswith(MAGIC):
            raise _damaged("it does not end as a table does")
        about, at = _handle(footer[:-8], 0)
        where, _ = _handle(footer[:-8], at)
        self._block(about)  # the metaindex has no content that is needed here, but must be intact
        self._blocks = [(key, _handle(value, 0)[0]) for key, value in self._entries(where)]
        _require_order([key for key, _ in self._blocks])

    @classmethod
    def of(cls, data: bytes) -> Table:
        """Open the table that these bytes hold.

        Raises:
            DataLossError: the table is truncated or altered.
        """
        return cls(len(data), lambda begin, size: data[begin : begin + size])

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, in the order of the keys.

        Raises:
            DataLossError: a block is damaged, the keys are not in order, or keys and values exceed 1 GiB.
        """
        before: bytes | None = None
        total = 0
        for _, where in self._blocks:
            for key, value in self._entries(where):
                total += len(key) + len(value)
                if total > _LARGEST:
                    raise _damaged(f"keys and values of more than {_LARGEST} bytes")
                # `find` relies on the order, so a table without it is refused instead of being read wrongly.
                if before is not None and key <= before:
                    raise _damaged(f"key {key!r} after {before!r}")
                before = key
                yield key, value

    def find(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if there is no such key. Reads only the block that would hold the key.

        Raises:
            DataLossError: the block is damaged.
        """
        # The key of a block in the index is at least its last key, so the first such block is the only candidate.
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle][0] < key:
                low = middle + 1
            else:
                high = middle
        if low == len(self._blocks):
            return None
        return next((value for found, value in self._entries(self._blocks[low][1]) if found == key), None)

    def _entries(self, where: _Handle) -> Iterator[tuple[bytes, bytes]]:
        block = self._block(where)
        if len(block) < 4:
            raise _damaged("a block without restart points")
        (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
        # The restart points (uint32 each) and their number follow the entries.
        end = len(block) - 4 - 4 * restarts
        if end < 0:
            raise _damaged("more restart points than the block has room for")
        at, key = 0, b""
        # Three bytes can repeat a shared prefix of any length, so the sum of the keys needs its own bound.
        left = _SHARED * len(block)
        for _ in batches(block):  # an entry has at least three bytes, so this bounds the loop
            if at >= end:
                break
            shared, at = read_number(block, at, end)
            added, at = read_number(block, at, end)
            size, at = read_number(block, at, end)
            # A slice would silently be shorter than these lengths promise.
            if shared > len(key) or added + size > end - at:
                raise _damaged("a key or a value that is longer than its block")
            key = key[:shared] + block[at : at + added]
            at += added + size
            left -= len(key)
            if left < 0:
                raise _damaged("keys that are much longer than their block")
            yield key, block[at - size : at]

    def _block(self, where: _Handle) -> bytes:
        checkpoint()
        size = where.size + _TRAILER
        if where.offset + size > self._end:
            raise _damaged("a block beyond its end")
        reserve(size)
        data = self._read(where.offset, size)
        if len(data) != size:
            raise _damaged("a block that is cut off")
        block, stored = data[:-4], int.from_bytes(data[-4:], "little")  # `block` includes the byte for its compression
        if masked_crc32c(block) != stored:
            raise _damaged(f"the block at {where.offset} has another checksum than {stored:#010x}")
        if block[-1] == _PLAIN:
            return block[:-1]
        if block[-1] == _SNAPPY:
            # No Snappy element expands by more than a factor of 64.
            return decompress(block[:-1], min(_LARGEST, 64 * where.size + 64))
        raise _damaged(f"a block of compression {block[-1]}")


def _require_order(keys: Iterable[bytes]) -> None:
    for before, key in pairwise(keys):
        if key < before:
            raise _damaged(f"a block of keys up to {key!r} after one up to {before!r}")


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _BlockWriter:
    """A writer of one block."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._made = bytearray()
        self._restarts: list[int] = []
        self._count = 0
        self.last = b""

    def __len__(self) -> int:
        return len(self._made)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        # The key of a restart point is whole, so that LevelDB can begin a binary search there.
        if self._count % self._interval == 0:
            self._restarts.append(len(self._made))
        else:
            most = min(len(key), len(self.last))
            shared = next((i for i in range(most) if key[i] != self.last[i]), most)
        self._made += write_number(shared) + write_number(len(key) - shared) + write_number(len(value))
        self._made += key[shared:] + value
        self._count += 1
        self.last = key

    def sealed(self) -> bytes:
        """Return the block with its compression byte and checksum."""
        # As in LevelDB, where an empty block has one restart point, too.
        restarts = self._restarts or [0]
        block = bytes(self._made) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + bytes([_PLAIN])
        return block + struct.pack("<I", masked_crc32c(block))


def write_table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the table of these keys and values, which must be in the order of the keys.

    Raises:
        InvalidArgumentError: the keys are not in order.
    """
    made = bytearray()
    # As in LevelDB, each entry of the index is a restart point: its keys share no prefixes.
    index, block = _BlockWriter(1), _BlockWriter(_RESTART)
    before: bytes | None = None

    def finished(writer: _BlockWriter) -> bytes:
        sealed = writer.sealed()
        where = _Handle(len(made), len(sealed) - _TRAILER)
        made.extend(sealed)
        return where.packed()

    for key, value in entries:
        if before is not None and key <= before:
            raise InvalidArgumentError("the keys of a table are in order", expected=f"after {before!r}", actual=key)
        block.add(key, value)
        before = key
        if len(block) >= _BLOCK:
            index.add(block.last, finished(block))
            block = _BlockWriter(_RESTART)
    if len(block):
        index.add(block.last, finished(block))
    # Readers verify the metaindex block, so it is written although it is empty.
    handles = finished(_BlockWriter(1)) + finished(index)
    return bytes(made) + handles.ljust(_FOOTER - len(MAGIC), b"\0") + MAGIC
