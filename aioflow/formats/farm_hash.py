"""FarmHash's Fingerprint64, by Geoff Pike, the hash of TensorFlow's fast string buckets. It never changes."""

from __future__ import annotations

from typing import Final

_MASK: Final = 2**64 - 1
# FarmHash's constants k0, k1 and k2: primes between 2^63 and 2^64.
_K0: Final = 0xC3A5C85C97CB3127
_K1: Final = 0xB492B66FBE98F273
_K2: Final = 0x9AE16A3B2F90404F


def fingerprint(data: bytes) -> int:
    """Return the fingerprint, an unsigned number of 64 bits."""
    if len(data) <= 16:
        return _short(data)
    if len(data) <= 32:
        return _to_32(data)
    return _to_64(data) if len(data) <= 64 else _long(data)


def _at(data: bytes, begin: int, size: int = 8) -> int:
    return int.from_bytes(data[begin : begin + size], "little")


def _turned(value: int, bits: int) -> int:
    """Rotate to the right."""
    value &= _MASK
    return (value >> bits | value << (64 - bits)) & _MASK


def _shifted(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _joined(u: int, v: int, factor: int) -> int:
    # `HashLen16` of FarmHash, derived from Murmur.
    a = _shifted(((u ^ v) & _MASK) * factor)
    b = _shifted(((v ^ a) & _MASK) * factor)
    return b * factor & _MASK


def _short(data: bytes) -> int:
    size = len(data)
    # `HashLen0to16` of FarmHash.
    factor = _K2 + size * 2
    if size >= 8:
        a, b = _at(data, 0) + _K2, _at(data, size - 8)
        c, d = _turned(b, 37) * factor + a, (_turned(a, 25) + b) * factor
        return _joined(c & _MASK, d & _MASK, factor)
    if size >= 4:
        return _joined(size + (_at(data, 0, 4) << 3), _at(data, size - 4, 4), factor)
    if size:
        y, z = data[0] + (data[size >> 1] << 8), size + (data[-1] << 2)
        return _shifted(y * _K2 ^ z * _K0) * _K2 & _MASK
    return _K2


def _to_32(data: bytes) -> int:
    # `HashLen17to32` of FarmHash.
    factor = _K2 + len(data) * 2
    a, b = _at(data, 0) * _K1, _at(data, 8)
    c, d = _at(data, len(data) - 8) * factor, _at(data, len(data) - 16) * _K2
    u = _turned(a + b, 43) + _turned(c, 30) + d
    return _joined(u & _MASK, (a + _turned(b + _K2, 18) + c) & _MASK, factor)


def _to_64(data: bytes) -> int:
    size = len(data)
    # `HashLen33to64` of FarmHash.
    factor = _K2 + size * 2
    a, b = _at(data, 0) * _K2, _at(data, 8)
    c, d = _at(data, size - 8) * factor, _at(data, size - 16) * _K2
    y = (_turned(a + b, 43) + _turned(c, 30) + d) & _MASK
    z = _joined(y, (a + _turned(b + _K2, 18) + c) & _MASK, factor)
    e, f = _at(data, 16) * factor, _at(data, 24)
    g, h = (y + _at(data, size - 32)) * factor, (z + _at(data, size - 24)) * factor
    u = _turned(e + f, 43) + _turned(g, 30) + h
    return _joined(u & _MASK, (e + _turned(f + a, 18) + g) & _MASK, factor)


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """Return the weak hash of 32 bytes, with seeds."""
    # `WeakHashLen32WithSeeds` of FarmHash.
    w, x, y, z = (_at(data, at + i) for i in (0, 8, 16, 24))
    a += w
    b = _turned(b + a + z, 21)
    c = a
    a += x + y
    b += _turned(a, 44)
    return (a + z) & _MASK, (b + c) & _MASK


def _long(data: bytes) -> int:
    size = len(data)
    # 81 is the fixed seed of the fingerprint.
    y = 81 * _K1 + 113
    z = _shifted(y * _K2 + 113) * _K2
    state = (81 * _K2 + _at(data, 0), y, z, (0, 0), (0, 0))
    # The last 1 to 64 bytes are mixed in below, as a whole block that overlaps the one before it.
    last = (size - 1) // 64 * 64
    for at in range(0, last, 64):
        state = _mixed(data, at, state, _K1, 1)
    x, y, z, v, w = state
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + ((size - 1) & 63), w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x, y, z, v, w = _mixed(data, size - 64, (x, y, z, v, w), factor, 9)
    first = _joined(v[0], w[0], factor) + _shifted(y) * _K0 + z
    return _joined(first & _MASK, (_joined(v[1], w[1], factor) + x) & _MASK, factor)


_State = tuple[int, int, int, tuple[int, int], tuple[int, int]]


def _mixed(data: bytes, at: int, state: _State, factor: int, times: int) -> _State:
    """Return the state after 64 more bytes."""
    x, y, z, v, w = state
    x = _turned(x + y + v[0] + _at(data, at + 8), 37) * factor & _MASK
    y = _turned(y + v[1] + _at(data, at + 48), 42) * factor & _MASK
    x ^= w[1] * times & _MASK
    y = (y + v[0] * times + _at(data, at + 40)) & _MASK
    z = _turned(z + w[0], 33) * factor & _MASK
    v = _weak(data, at, v[1] * factor, x + w[0])
    w = _weak(data, at + 32, z + w[1], y + _at(data, at + 16))
    return z, y, x, v, w
