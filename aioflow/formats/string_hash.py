"""String hashes that are equal in every process and in TensorFlow: MurmurHash64A, and SipHash with a key."""

from __future__ import annotations

import struct
from itertools import chain
from typing import Final

from aioflow.concurrency.stopping import batches

_MASK: Final = 2**64 - 1
_SEED: Final = 0xDECAFCAFFE  # TensorFlow's seed
# The constants m and r of MurmurHash64A.
_FACTOR: Final = 0xC6A4A7935BD1E995
_SHIFT: Final = 47
_WORDS: Final = 4096  # words between two checkpoints


def murmur_hash(data: bytes, seed: int = _SEED) -> int:
    """Return Austin Appleby's MurmurHash64A, as an unsigned number."""
    state = seed ^ (len(data) * _FACTOR & _MASK)
    whole = len(data) & ~7
    for (word,) in batches(struct.iter_unpack("<Q", data[:whole]), _WORDS):
        mixed = word * _FACTOR & _MASK
        mixed = (mixed ^ mixed >> _SHIFT) * _FACTOR & _MASK
        state = (state ^ mixed) * _FACTOR & _MASK
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    state = (state ^ state >> _SHIFT) * _FACTOR & _MASK
    return state ^ state >> _SHIFT


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a, c = (a + b) & _MASK, (c + d) & _MASK
    b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
    a = _turned(a, 32)
    c, a = (c + b) & _MASK, (a + d) & _MASK
    b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
    return a, b, _turned(c, 32), d


def sip_hash(data: bytes, key: tuple[int, int]) -> int:
    """Return SipHash-2-4 by Jean-Philippe Aumasson and Daniel J. Bernstein, as an unsigned number."""
    low, high = (part & _MASK for part in key)
    state = (
        # "somepseudorandomlygeneratedbytes" in ASCII, as the algorithm prescribes.
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    )
    whole = len(data) & ~7
    # The last word has the remaining bytes, and the length modulo 256 in its highest byte.
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for (word,) in chain(batches(struct.iter_unpack("<Q", data[:whole]), _WORDS), [(last,)]):
        a, b, c, d = state
        # Two rounds for each word and four at the end: the 2 and the 4 of SipHash-2-4.
        a, b, c, d = _round(*_round(a, b, c, d ^ word))
        state = (a ^ word, b, c, d)
    a, b, c, d = state
    state = (a, b, c ^ 0xFF, d)
    for _ in range(4):
        state = _round(*state)
    a, b, c, d = state
    return a ^ b ^ c ^ d
