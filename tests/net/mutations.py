"""Damaged frames: changed bits, lengths, counts, nesting of MessagePack, dtypes and order of chunks."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack

from tests.net.plain_wire import PREFIX

__all__ = ["bytes_changed", "mutated"]

Stream = list[bytes]
Change = Callable[[random.Random, Stream], None]

_SIZES: Final = (0, 1, 2, 31, 63, 64, 65, 255, 4095, 4096, 65_535, 65_536, 65_537, 1 << 20, 1 << 22, 2**31, 2**32 - 1)
_WIDE: Final = (*_SIZES, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_NAMES: Final = (b"float32", b"float64", b"string", b"bool", b"int8", b"uint64", b"bfloat16", b"complex64", b"resource")
_ATOMS: Final = (
    b"\xc0",
    b"\xc1",  # never used in MessagePack
    b"\xc2",
    b"\xc3",
    b"\xc4\x00",
    b"\xc7\x00\x05",
    b"\xca\x7f\xc0\x00\x00",  # NaN
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # infinity
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\x00" * 7,
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\x00\x01\x00\x00",
    b"\xdf\xff\xff\xff\xff",
    b"\x90",
    b"\x80",
    b"\xa0",
    b"\xa1\xff",  # invalid UTF-8
)


def bytes_changed(chance: random.Random, data: bytes) -> bytes:
    """Change, remove, insert or repeat some bits or bytes; the result always differs."""
    altered = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(len(altered) + 1)
        end = min(len(altered), place + chance.choice((1, 2, 4, 8, 32)))
        match chance.randrange(5):
            case 0 if place < len(altered):
                altered[place] ^= 1 << chance.randrange(8)
            case 1 if place < len(altered):
                altered[place] = chance.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xFF, chance.randrange(256)))
            case 2:
                del altered[place:end]
            case 3:
                altered[place:place] = altered[place:end]
            case _:
                altered[place:place] = chance.randbytes(chance.choice((1, 2, 8)))
    return bytes(altered) if altered != data else data + b"\0"


def _bits(chance: random.Random, stream: Stream) -> None:
    index = chance.randrange(len(stream))
    stream[index] = bytes_changed(chance, stream[index])


def _in_the_header(chance: random.Random, stream: Stream) -> None:
    """Change the header, and make the prefix fit."""
    index = chance.randrange(len(stream))
    header, rest = _parts(stream[index])
    stream[index] = _joined(stream[index], bytes_changed(chance, header), rest)


def _atoms(chance: random.Random, stream: Stream) -> None:
    """Insert or overwrite a value in the header, possibly by a nested one."""
    index = chance.randrange(len(stream))
    header, rest = _parts(stream[index])
    place = chance.randrange(len(header) + 1)
    nest = chance.choice((b"\x91", b"\x81\xa1a", b"\xdc\x10\x00")) * chance.choice((0, 0, 3, 40, 600, 20_000))
    new = nest[:60_000] + chance.choice(_ATOMS)
    stream[index] = _joined(
        stream[index], header[:place] + new + header[place + chance.choice((0, 1, len(new))) :], rest
    )


def _dtypes(chance: random.Random, stream: Stream) -> None:
    """Replace one dtype by another."""
    index = chance.randrange(len(stream))
    header, rest = _parts(stream[index])
    there = [name for name in _NAMES if name in header]
    if not there:
        return _in_the_header(chance, stream)
    old, new = chance.choice(there), chance.choice(_NAMES)
    changed = header.replace(bytes([0xA0 + len(old)]) + old, bytes([0xA0 + len(new)]) + new, chance.choice((1, -1)))
    stream[index] = _joined(stream[index], changed, rest)


def _prefix(chance: random.Random, stream: Stream) -> None:
    """Change a field of the prefix."""
    index = chance.randrange(len(stream))
    fields = list(PREFIX.unpack_from(stream[index]))
    which = chance.randrange(1, 8)
    wide, bits = which in (4, 7), {1: 8, 2: 8, 3: 16, 4: 64, 5: 32, 6: 32, 7: 64}[which]
    near = fields[which] + chance.choice((-1, 1, -64, 64))
    value = chance.choice((near, chance.choice(_WIDE if wide else _SIZES), chance.getrandbits(8)))
    fields[which] = value % (1 << bits)
    stream[index] = PREFIX.pack(*fields) + stream[index][PREFIX.size :]


def _payload(chance: random.Random, stream: Stream) -> None:
    """Change bytes behind the header: elements, gaps or chunks."""
    index = chance.randrange(len(stream))
    header, rest = _parts(stream[index])
    if not rest:
        return _prefix(chance, stream)
    place = chance.randrange(len(rest))
    words = (0, 1, 2, 0xFF, 2**31, 2**32 - 1)
    changed = rest[:place] + struct.pack("<I", chance.choice(words)) + rest[place + 4 :]
    stream[index] = stream[index][: PREFIX.size] + header + changed[: len(rest)]


def _nudged(chance: random.Random, stream: Stream) -> None:
    """Change one or two bytes of the header or the rest, so that it mostly stays well-formed."""
    index = chance.randrange(len(stream))
    header, rest = _parts(stream[index])
    changed = bytearray(rest if rest and chance.random() < 0.5 else header)
    if not changed:
        return _prefix(chance, stream)
    in_rest = len(changed) == len(rest) and bytes(changed) == rest
    for _ in range(chance.choice((1, 1, 2))):
        place = chance.randrange(len(changed))
        values = (
            (changed[place] + chance.choice((-1, 1))) % 256,
            chance.choice((0, 1, 7, 0x7F, 0x90, 0x80, 0xA0, 0xC0)),
        )
        changed[place] = chance.choice((*values, 0xC2, 0xFF))
    parts = (header, bytes(changed)) if in_rest else (bytes(changed), rest)
    stream[index] = stream[index][: PREFIX.size] + b"".join(parts)


_PLAIN: Final = (None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64 - 1, 1.5, float("nan"), "", "float32", b"")
_VALUES: Final[tuple[Any, ...]] = (*_PLAIN, [], {}, [0], [1, -1], [3, "f"], [6, 0])


def _tree_changed(chance: random.Random, value: Any) -> Any:
    """Return the value with something inside it replaced, repeated or removed."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or chance.random() < 0.15:
        near = [value + 1, value - 1] if type(value) is int else []
        return chance.choice([*_VALUES, *near, [value, value]])
    changed, key = value.copy(), chance.choice(keys)
    match chance.randrange(8):
        case 0:
            del changed[key]
        case 1 if isinstance(changed, list):
            changed.insert(key, changed[chance.choice(keys)])
        case 2:
            changed[key] = changed[chance.choice(keys)]
        case _:
            changed[key] = _tree_changed(chance, changed[key])
    return changed


def _values(chance: random.Random, stream: Stream) -> None:
    """Change a value of the document, or of a record of a plan, in a well-formed frame."""
    index = chance.randrange(len(stream))
    header, rest = _parts(stream[index])
    try:
        described, document = msgpack.unpackb(header)
        if document["kind"] == "register" and rest and chance.random() < 0.8:
            records = msgpack.Unpacker()
            records.feed(rest[-(PREFIX.size + len(header)) % 64 :])
            whole = list(records)
            place = chance.randrange(len(whole))
            whole[place] = _tree_changed(chance, whole[place])
            data = b"".join(map(msgpack.packb, whole))
            described, rest = [["uint8", [len(data)], len(data)]], data
        else:
            document = _tree_changed(chance, document)
        changed = msgpack.packb([described, document])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # an earlier change has broken the frame
        return _in_the_header(chance, stream)
    fields = list(PREFIX.unpack_from(stream[index]))
    if is_other := rest != _parts(stream[index])[1]:
        fields[7] = len(rest)
    gap = b"" if fields[3] or not rest else bytes(-(PREFIX.size + len(changed)) % 64)
    old = 0 if is_other or not gap else -(PREFIX.size + len(header)) % 64
    fields[5] = len(changed)
    stream[index] = PREFIX.pack(*fields) + changed + gap + rest[old:]


def _order(chance: random.Random, stream: Stream) -> None:
    """Reorder, repeat or remove frames."""
    index, other = chance.randrange(len(stream)), chance.randrange(len(stream))
    match chance.randrange(4):
        case 0:
            stream[index], stream[other] = stream[other], stream[index]
        case 1:
            stream.insert(other, stream[index])
        case 2 if len(stream) > 1:
            del stream[index]
        case _:
            chance.shuffle(stream)


def _cut(chance: random.Random, stream: Stream) -> None:
    """Cut the stream at a random position, and perhaps drop the rest."""
    index = chance.randrange(len(stream))
    stream[index] = stream[index][: chance.randrange(len(stream[index]))]
    if chance.random() < 0.5:
        del stream[index + 1 :]


def _crossed(chance: random.Random, stream: Stream) -> None:
    """Put the header of one frame before the rest of another."""
    index, other = chance.randrange(len(stream)), chance.randrange(len(stream))
    header, _ = _parts(stream[index])
    stream[other] = _joined(stream[other], header, _parts(stream[other])[1])


def _parts(frame: bytes) -> tuple[bytes, bytes]:
    if len(frame) < PREFIX.size:
        return b"", b""
    end = PREFIX.size + PREFIX.unpack_from(frame)[5]
    return frame[PREFIX.size : end], frame[end:]


def _joined(frame: bytes, header: bytes, rest: bytes) -> bytes:
    """Return the frame with another header, and with prefix and gap adjusted to it."""
    if len(frame) < PREFIX.size:
        return header + rest
    fields = list(PREFIX.unpack_from(frame))
    gap = -(PREFIX.size + fields[5]) % 64 if fields[7] and not fields[3] else 0
    fields[5] = len(header)
    new = -(PREFIX.size + len(header)) % 64 if gap or (rest and not fields[3]) else 0
    return PREFIX.pack(*fields) + header + bytes(new) + rest[gap:]


_CHANGES: Final[Sequence[Change]] = (
    _bits,
    _in_the_header,
    _atoms,
    _dtypes,
    _prefix,
    _payload,
    _nudged,
    _nudged,
    _values,
    _values,
    _values,
    _values,
    _order,
    _cut,
    _crossed,
)


def mutated(chance: random.Random, streams: Sequence[Stream]) -> bytes:
    """Return the bytes of one to three messages, of which at least one is changed."""
    stream = [frame for _ in range(chance.choice((1, 1, 2, 3))) for frame in chance.choice(streams)]
    for _ in range(chance.choice((1, 1, 2, 3))):
        whole = [index for index, frame in enumerate(stream) if len(frame) >= PREFIX.size]
        if not whole or whole != list(range(len(stream))):
            break  # a cut frame has no parts any more
        chance.choice(_CHANGES)(chance, stream)
        stream = stream or [b"\0"]
    return b"".join(stream)
