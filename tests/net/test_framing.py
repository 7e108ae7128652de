"""Frames: written messages are read however they are split, and any other input is a typed error in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aioflow.errors import DataLossError, InvalidArgumentError, OpError, ResourceExhaustedError, UnimplementedError
from aioflow.graph.dtypes import ALL
from aioflow.net.decoder import Decoder
from aioflow.net.framing import CHUNK_BYTES, INLINE_BYTES, FrameKind, WireMessage, bare_frame, encode
from aioflow.net.limits import Limits
from tests.support.random_examples import examples

PREFIX = struct.Struct("<4sBBHQIIQ")  # written out: the format is a promise to other versions


def wire(message: WireMessage, chunk_bytes: int = CHUNK_BYTES) -> bytes:
    encoded = encode(message)
    return encoded.head + b"".join(bytes(b) for frame in encoded.chunks(chunk_bytes) for b in frame)


def feed(decoder: Decoder, data: bytes, cuts: Iterator[int] | None = None) -> list[WireMessage]:
    found, position = [], 0
    while position < len(data):
        buffer = decoder.buffer()
        assert buffer.nbytes > 0
        count = min(buffer.nbytes, len(data) - position, next(cuts) if cuts is not None else len(data))
        buffer[:count] = data[position : position + count]
        position += count
        found += decoder.received(count)
    return found


def same(first: WireMessage, second: WireMessage) -> bool:
    pairs = zip(first.tensors, second.tensors, strict=True)
    equal = all(
        a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
        if a.dtype == object
        else a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in pairs
    )
    return equal and first[:3] == second[:3]


NUMPY_DTYPES = [d.np_dtype for d in ALL if d.is_plain]
DOCUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from([*NUMPY_DTYPES, None]))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    size = int(np.prod(shape))
    if dtype is None:
        array = np.empty(size, dtype=object)
        array[:] = draw(st.lists(st.binary(max_size=12), min_size=size, max_size=size))
        return array.reshape(shape)
    raw = np.frombuffer(draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize)), np.uint8)
    return (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape)


MESSAGES = st.builds(
    WireMessage,
    st.sampled_from([kind for kind in FrameKind if kind >= FrameKind.REQUEST]),
    st.integers(0, 2**64 - 1),
    DOCUMENTS,
    st.lists(tensors(), max_size=4),
)


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.lists(st.integers(1, 200), min_size=1))
@settings(deadline=None, max_examples=examples(60))
def test_messages_survive_any_split(messages: list[WireMessage], sizes: list[int]) -> None:
    data = b"".join(map(wire, messages))
    cuts = (sizes[i % len(sizes)] for i in range(len(data) + 1))
    decoder = Decoder()
    found = feed(decoder, data, cuts)
    assert len(found) == len(messages)
    assert all(map(same, messages, found))
    assert decoder.idle


@pytest.mark.parametrize("cut", [1, 7, 31, 32, 33, 4096, 65_536, 10**9])
def test_large_message_survives_splits_and_interleaved_messages(cut: int) -> None:
    large = WireMessage(
        FrameKind.PUSH, 5, {"x": 1}, (np.arange(3, dtype=np.int8), np.random.default_rng(0).random(40_000))
    )
    small = WireMessage(FrameKind.CANCEL, 6, {"y": 2}, (np.arange(4),))
    encoded = encode(large)
    chunks = [b"".join(map(bytes, c)) for c in encoded.chunks(100_000)]
    assert len(chunks) == 4
    between = bare_frame(FrameKind.HEARTBEAT) + wire(small)
    data = encoded.head + between.join(chunks) + wire(small)
    found = feed(Decoder(), data, (cut for _ in range(len(data))))
    heartbeats = [m for m in found if m.kind is FrameKind.HEARTBEAT]
    others = [m for m in found if m.kind is not FrameKind.HEARTBEAT]
    assert len(heartbeats) == 3
    assert [m.request for m in others] == [6, 6, 6, 5, 6]
    assert same(others[3], large)
    assert same(others[0], small)


def test_layout_is_as_documented() -> None:
    array, other = np.arange(3, dtype=np.float32), np.array([b"ab", b""], dtype=object)
    frame = wire(WireMessage(FrameKind.REQUEST, 7, {"k": "v"}, (array, other)))
    header = msgpack.packb([[["float32", [3], 12], ["string", [2], 10]], {"k": "v"}])
    start = -(-(32 + len(header)) // 64) * 64
    assert frame[:32] == PREFIX.pack(b"aiof", 2, 16, 0, 7, len(header), 2, 64 + 10)
    assert frame[32 : 32 + len(header)] == header
    assert frame[start : start + 12] == array.tobytes()
    assert frame[start + 64 :] == b"\x02\0\0\0\0\0\0\0ab"


def test_data_of_a_large_tensor_is_not_copied_on_either_side() -> None:
    array = np.arange(100_000.0)
    encoded = encode(WireMessage(FrameKind.PUSH, 1, {}, (array,)))
    assert np.shares_memory(np.frombuffer(encoded.payload[0], np.uint8), array)
    decoder = Decoder()
    feed(decoder, encoded.head)
    (chunk,) = encoded.chunks()
    prefix, data = bytes(chunk[0]), bytes(chunk[1])
    feed(decoder, prefix)
    place = np.frombuffer(decoder.buffer(), np.uint8)
    (message,) = feed(decoder, data)
    assert np.shares_memory(place, message.tensors[0])


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(body: bytes, payload: bytes = b"", tensors: int = 0, kind: int = 16, **changes: Any) -> bytes:
    fields = {"magic": b"aiof", "version": 2, "flags": 0, "request": 1, "header": len(body), "size": len(payload)}
    fields |= changes
    gap = bytes(-(32 + len(body)) % 64) if payload else b""
    prefix = PREFIX.pack(
        fields["magic"], fields["version"], kind, fields["flags"], fields["request"], fields["header"], tensors,
        fields["size"],
    )  # fmt: skip
    return prefix + body + gap + payload


EMPTY = msgpack.packb([[], {}])


def described(dtype: Any, shape: Any, nbytes: Any) -> bytes:
    packed: bytes = msgpack.packb([[[dtype, shape, nbytes]], {}])
    return packed


MALFORMED: dict[str, tuple[type[OpError], bytes]] = {
    "another protocol": (DataLossError, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "another version": (UnimplementedError, frame(EMPTY, version=1)),
    "an unknown kind": (DataLossError, frame(EMPTY, kind=99)),
    "unknown flags": (DataLossError, frame(EMPTY, flags=2)),
    "a header over the limit": (ResourceExhaustedError, frame(EMPTY, header=64 * 1024 + 1)),
    "tensors over the limit": (ResourceExhaustedError, frame(EMPTY, tensors=1025)),
    "a payload over the limit": (ResourceExhaustedError, frame(EMPTY, flags=1, size=(4 << 30) + 1)),
    "a payload too large for its frame": (DataLossError, frame(EMPTY, size=INLINE_BYTES + 1)),
    "a header that is none": (DataLossError, frame(b"\xc1\xc1")),
    "a header with more behind it": (DataLossError, frame(EMPTY + b"\xc0")),
    "a header that is cut": (DataLossError, frame(EMPTY[:-1])),
    "a header without a list": (DataLossError, frame(msgpack.packb({"a": 1}))),
    "a header with a third part": (DataLossError, frame(msgpack.packb([[], {}, 1]))),
    "a document that is no map": (DataLossError, frame(msgpack.packb([[], []]))),
    "bytes in the header": (DataLossError, frame(msgpack.packb([[], {"a": b"x"}]))),
    "bytes in a list in the header": (DataLossError, frame(msgpack.packb([[], {"a": [b"x"]}]))),
    "empty bytes in the header": (DataLossError, frame(msgpack.packb([[], {"a": b""}]))),
    "text that is not UTF-8": (DataLossError, frame(b"\x92\x90\x81\xa1a\xa1\xff")),
    "an extension": (DataLossError, frame(msgpack.packb([[], {"a": msgpack.ExtType(5, b"")}]))),
    "a timestamp": (DataLossError, frame(msgpack.packb([[], {"a": msgpack.Timestamp(1, 0)}]))),
    "a key that is a number": (DataLossError, frame(msgpack.packb([[], {1: 2}]))),
    "a key that comes twice": (DataLossError, frame(b"\x92\x90\x82\xa1a\x01\xa1a\x02")),
    "more tensors than described": (DataLossError, frame(EMPTY, bytes(4), 1)),
    "fewer tensors than described": (DataLossError, frame(described("int8", [4], 4), bytes(4), 0)),
    "bytes that do not fit the prefix": (DataLossError, frame(described("int8", [4], 4), bytes(5), 1)),
    "bytes that do not fit the shape": (DataLossError, frame(described("int8", [4], 5), bytes(5), 1)),
    "an unknown dtype": (DataLossError, frame(described("object", [1], 8), bytes(8), 1)),
    "a resource": (DataLossError, frame(described("resource", [1], 8), bytes(8), 1)),
    "a dtype that is no text": (DataLossError, frame(described(["int8"], [1], 1), bytes(1), 1)),
    "a negative size": (DataLossError, frame(described("int8", [-1, -4], 4), bytes(4), 1)),
    "a size that is a bool": (DataLossError, frame(described("int8", [True], 1), bytes(1), 1)),
    "a size that is a float": (DataLossError, frame(described("int8", [1.0], 1), bytes(1), 1)),
    "a shape that is a number": (DataLossError, frame(described("int8", 1, 1), bytes(1), 1)),
    "sizes that overflow": (DataLossError, frame(described("int8", [2**32, 2**32], 0), b"", 1)),
    "sizes that overflow beside a zero": (DataLossError, frame(described("int8", [2**62, 2**62, 0], 0), b"", 1)),
    "negative bytes": (DataLossError, frame(described("int8", [1], -1), b"", 1)),
    "a rank over the limit": (ResourceExhaustedError, frame(described("int8", [1] * 33, 1), bytes(1), 1)),
    "a bool that is 2": (DataLossError, frame(described("bool", [2], 2), b"\x01\x02", 1)),
    "more strings than bytes": (DataLossError, frame(described("string", [3], 4), bytes(4), 1)),
    "strings over the limit": (ResourceExhaustedError, frame(described("string", [2**30], 2**32), b"", 1)),
    "string lengths that are too long": (DataLossError, frame(described("string", [1], 5), b"\x02\0\0\0a", 1)),
    "string lengths that are too short": (DataLossError, frame(described("string", [1], 6), b"\x01\0\0\0ab", 1)),
    "string lengths that overflow": (DataLossError, frame(described("string", [2], 8), b"\xff" * 8, 1)),
    "a tensor that is not described": (DataLossError, frame(msgpack.packb([[1], {}]), b"", 1)),
    "something in the gap between tensors": (
        DataLossError,
        frame(msgpack.packb([[["int8", [1], 1], ["int8", [1], 1]], {}]), b"\x00" + b"\x07" * 63 + b"\x00", 2),
    ),
    "a chunk of nothing": (DataLossError, frame(b"", kind=3, size=5)),
    "a heartbeat with a content": (DataLossError, frame(b"", kind=1, size=5)),
    "a close with a number": (DataLossError, frame(b"", kind=2)),
    "a large message without a payload": (DataLossError, frame(EMPTY, flags=1)),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("cut", [1, 10**9])
def test_malformed_frame_raises_a_typed_error(name: str, cut: int) -> None:
    kind, data = MALFORMED[name]
    whole = data + 10 * bare_frame(FrameKind.HEARTBEAT)  # valid frames follow
    with pytest.raises(OpError) as caught:
        feed(Decoder(), whole, (cut for _ in range(len(whole))))
    assert type(caught.value) is kind
    assert len(str(caught.value)) < 1000


def large_head() -> bytes:
    return encode(WireMessage(FrameKind.PUSH, 5, {}, (np.zeros(70_000, np.uint8),))).head


@pytest.mark.parametrize(
    ("after", "left"),  # the bytes that would be missing if the frame were accepted
    [
        (frame(b"", kind=3, request=6, size=10) + bytes(10), 69_990),  # a chunk of another message
        (frame(b"", kind=3, request=5, size=0), 70_000),
        (frame(b"", kind=3, request=5, size=70_001) + bytes(70_001), 0),
        (frame(EMPTY, kind=3, request=5, size=10) + bytes(10), 69_990),
        (frame(b"", kind=3, request=5, size=10, flags=1) + bytes(10), 69_990),
        (frame(b"", kind=3, request=5, size=10, tensors=1) + bytes(10), 69_990),
        (large_head(), 70_000),  # a second message inside
    ],
    ids=["another number", "nothing", "too much", "header", "flags", "tensors", "a message inside"],
)
def test_malformed_chunk_raises_an_error(after: bytes, left: int) -> None:
    def chunk(size: int) -> bytes:
        return frame(b"", kind=3, request=5, size=size) + bytes(size)

    assert len(feed(Decoder(), large_head() + chunk(10) + chunk(69_990))) == 1
    with pytest.raises(DataLossError):
        feed(Decoder(), large_head() + after + chunk(left) * bool(left))


def test_gap_between_tensors_of_a_large_message_must_be_zeros() -> None:
    encoded = encode(WireMessage(FrameKind.PUSH, 5, {}, (np.ones(1, np.uint8), np.ones(70_000, np.uint8))))
    (chunk,) = encoded.chunks()
    data = bytearray(b"".join(map(bytes, chunk)))
    assert len(feed(Decoder(), encoded.head + bytes(data))) == 1
    data[32 + 5] = 1
    with pytest.raises(DataLossError):
        feed(Decoder(), encoded.head + bytes(data))


@given(MESSAGES, st.data())
@settings(deadline=None, max_examples=examples(120))
def test_altered_bytes_give_messages_or_a_typed_error(message: WireMessage, data: st.DataObject) -> None:
    altered = bytearray(wire(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(altered) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if change == "set":
            altered[position] = data.draw(st.integers(0, 255))
        elif change == "cut" and len(altered) > 1:
            del altered[position : position + data.draw(st.integers(1, 8))]
        else:
            altered[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        altered = altered or bytearray(1)
    try:
        found = feed(Decoder(), bytes(altered), iter([50] * (len(altered) + 1)))
    except (DataLossError, ResourceExhaustedError, UnimplementedError):
        return
    for received in found:
        if received.kind >= FrameKind.REQUEST:
            wire(received)  # each accepted message could be sent


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=examples(200))
def test_any_header_gives_a_message_or_a_typed_error(header: bytes) -> None:
    try:
        (message,) = feed(Decoder(), frame(header))
    except (DataLossError, ResourceExhaustedError):
        return
    assert isinstance(message.header, dict)


@pytest.mark.parametrize(
    "header",
    [
        b"\xdd\xff\xff\xff\xff",  # a list that claims 2**32 - 1 items
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x92\x90" + b"\xdc\x10\x00" * 20_000,  # lists in lists, each of which claims 4,096
        b"\x92\x90" + b"\x91" * 65_000,
        b"\x92\x90\x81\xa1a\xdc\x10\x00" + b"\x80" * 4096,  # as many empty maps as are allowed
        b"\x92\x90\x81\xa1a\xdc\xff\xff" + b"\x90" * 65_000,
    ],
    ids=["list", "map", "text", "nested claims", "nested", "maps", "lists"],
)
def test_msgpack_bomb_uses_little_memory(header: bytes) -> None:
    data = frame(header[: 64 << 10])
    tracemalloc.start()
    try:
        feed(Decoder(), data)
    except DataLossError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 48 << 20


def test_tensors_that_claim_too_much_together_allocate_nothing() -> None:
    header = msgpack.packb([[["uint8", [1 << 31], 1 << 31]] * 1000, {}])
    tracemalloc.start()
    with pytest.raises(DataLossError):
        feed(Decoder(), frame(header, flags=1, size=1 << 31, tensors=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_limits_are_bounded_themselves() -> None:
    for header_bytes in (0, (1 << 20) + 1):
        with pytest.raises(InvalidArgumentError):
            Limits(header_bytes=header_bytes)


def test_header_larger_than_the_staging_buffer_is_received() -> None:
    limits = Limits(header_bytes=1 << 20)
    document = {"text": "x" * 500_000}
    decoder = Decoder(limits)
    data = encode(WireMessage(FrameKind.REQUEST, 1, document), limits).head
    for cut in (100_000, 10**9):
        (message,) = feed(decoder, data, (cut for _ in range(len(data))))
        assert message.header == document
