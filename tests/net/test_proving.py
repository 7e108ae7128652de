"""The proof of a secret and the tags of frames, without I/O: against openssl's HMAC and BLAKE2, and forged."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.errors import DataLossError, OpError, UnauthenticatedError, UnimplementedError
from aioflow.net.decoder import Decoder
from aioflow.net.framing import CHUNK_BYTES, FrameKind, WireMessage, bare_frame, encode
from aioflow.net.proving import ConnectionEnd, Proving, Seal, client_secret, is_client_secret
from tests.net.test_framing import feed
from tests.support.random_examples import examples

SECRET = bytes(range(32))
HELLO = struct.Struct("<8sHHIQQ")  # written out: the format is a promise to other versions
CONNECTING = HELLO.pack(b"aioflow\n", 2, 2, 3, 0x1111, 0) + b"\xaa" * 32
LISTENING = HELLO.pack(b"aioflow\n", 2, 2, 1, 0x2222, 0) + b"\xbb" * 32


def connecting(secret: bytes | None = SECRET, seals: bool = True, nonce: bytes = b"\xaa" * 32) -> Proving:
    return Proving(ConnectionEnd.CONNECTING, 0x1111, secret, seals, nonce)


def listening(secret: bytes | None = SECRET, seals: bool = False, nonce: bytes = b"\xbb" * 32) -> Proving:
    return Proving(ConnectionEnd.LISTENING, 0x2222, secret, seals, nonce)


def say(to: Proving, data: bytes) -> bytes:
    """Feed bytes in words of 32 and return the answers."""
    assert len(data) % 32 == 0
    return b"".join(to.received(data[start : start + 32]) for start in range(0, len(data), 32))


def proved(first: Proving, second: Proving) -> None:
    assert say(second, first.opening) == b""
    proof = say(first, second.opening)
    answer = say(second, proof)
    assert second.done
    assert not first.done
    assert say(first, answer) == b""
    assert first.done


# ── the proof ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_handshake_is_as_documented() -> None:
    """Compare with `openssl mac -digest SHA256 -macopt hexkey:0001…1f HMAC`."""
    first, second = connecting(), listening()
    assert first.opening == CONNECTING
    assert second.opening == LISTENING
    proof = bytes.fromhex("3C48B2D5DD2349D0BAEA255B3916EB740694A860369E30634F53A10F7B183B9F")
    answer = bytes.fromhex("57FDB804CCBB300D8FCE31507805452469525CB840C283F134304C5460BFA790")
    assert say(first, LISTENING) == proof
    assert say(second, CONNECTING) == b"", "who merely connects is told nothing"
    assert say(second, proof) == answer
    say(first, answer)
    assert first.peer is not None
    assert second.peer is not None
    assert (first.peer.incarnation, second.peer.incarnation) == (0x2222, 0x1111)


def test_handshake_without_a_secret_is_the_hello_alone() -> None:
    first, second = connecting(None), listening(None)
    assert len(first.opening) == 32
    assert say(first, second.opening) == b""
    assert first.done
    assert first.seals() is None


@pytest.mark.parametrize(("one", "other", "tags"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, True)])
def test_frames_have_tags_if_either_end_requires_them(one: bool, other: bool, tags: bool) -> None:
    first, second = connecting(seals=one), listening(seals=other)
    proved(first, second)
    ours, theirs = first.seals(), second.seals()
    assert (ours is not None) == (theirs is not None) == tags
    if ours is not None and theirs is not None:
        for sending, receiving in ((ours[0], theirs[1]), (theirs[0], ours[1])):
            frame = bare_frame(FrameKind.HEARTBEAT, 1)
            (tag,) = sending.sealed([frame])[1:]
            receiving.begin(frame)
            receiving.check(tag)


@pytest.mark.parametrize(("end", "other"), [(connecting, listening), (listening, connecting)])
def test_ends_with_and_without_a_secret_refuse_each_other(
    end: Callable[..., Proving], other: Callable[..., Proving]
) -> None:
    with pytest.raises(UnauthenticatedError, match="the peer has no secret"):
        say(end(), other(None).opening)
    with pytest.raises(UnauthenticatedError, match="this process has none"):
        say(end(None), other().opening)


def test_wrong_secret_is_refused_and_reported_to_both_ends() -> None:
    first, second = connecting(b"x" * 32), listening()
    say(second, first.opening)
    with pytest.raises(UnauthenticatedError, match="did not prove"):
        say(second, say(first, second.opening))
    assert second.last_words == bytes(32), "nothing that was made with the secret"
    assert not second.done
    with pytest.raises(UnauthenticatedError, match="a different secret"):
        say(first, second.last_words)


def test_listener_without_the_secret_is_refused() -> None:
    first = connecting()
    say(first, LISTENING)
    with pytest.raises(UnauthenticatedError, match="did not prove"):
        say(first, b"\x01" * 32)
    assert not first.done
    assert not first.last_words


def test_proof_is_invalid_on_another_connection() -> None:
    first, second = connecting(), listening()
    say(second, first.opening)
    proof = say(first, second.opening)
    again = listening(nonce=b"\xcc" * 32)
    say(again, CONNECTING)
    with pytest.raises(UnauthenticatedError):
        say(again, proof)


def test_reflected_proof_is_refused() -> None:
    first = connecting()
    proof = say(first, first.opening)
    with pytest.raises(UnauthenticatedError):
        say(first, proof)


@pytest.mark.parametrize("place", [8, 10, 12, 16, 32, 63], ids=["version", "oldest", "flags", "incarnation", "a", "z"])
def test_changed_opening_invalidates_the_proof(place: int) -> None:
    first, second = connecting(), listening()
    altered = bytearray(first.opening)
    altered[place] ^= 1 if place == 10 else 2  # changes that still give a hello
    proof = say(first, second.opening)
    with pytest.raises(OpError) as caught:
        say(second, bytes(altered) + proof)
    assert type(caught.value) in (UnauthenticatedError, UnimplementedError)


# ── the tags ─────────────────────────────────────────────────────────────────────────────────────────────────────────

KEY = bytes.fromhex("5270E23410D4D37BC70F2921DDA636318D693B18268497E89E10C90104DAD683")


def test_tags_are_as_documented() -> None:
    """Compare with openssl's BLAKE2BMAC of 16 bytes; the key is that of the connecting end in the vector above."""
    seal = Seal(KEY)
    frame = struct.pack("<4sBBHQIIQ", b"aiof", 2, 1, 0, 7, 0, 0, 0)
    tags = [bytes(seal.sealed([frame])[1]) for _ in range(2)]
    assert [tag.hex().upper() for tag in tags] == [
        "B538D18CC092B092F6D8441097B5BFEB",
        "A4F2DE602E43288AE6FEBA06274867BB",
    ]
    first, second = connecting(), listening()
    proved(first, second)
    seals = first.seals()
    assert seals is not None
    assert seals[0].sealed([frame])[1] == tags[0], "the vector's connection has this key"


SMALL = WireMessage(FrameKind.PUSH, 1, {"x": [1, "text"]}, (np.arange(5.0), np.array([b"ab", b""], dtype=object)))
LARGE = WireMessage(
    FrameKind.REQUEST, 2, {"y": 2}, (np.arange(3, dtype=np.int8), np.random.default_rng(0).random(40_000))
)


def frames() -> list[bytes]:
    """Return frames with tags: a small message, a large one in chunks with a heartbeat in between, and a small one."""
    seal, large = Seal(KEY), encode(LARGE)
    chunks = [b"".join(map(bytes, chunk)) for chunk in large.chunks(100_000)]
    plain = [
        encode(SMALL).head,
        large.head,
        chunks[0],
        bare_frame(FrameKind.HEARTBEAT, 3),
        *chunks[1:],
        encode(SMALL).head,
    ]
    return [b"".join(map(bytes, seal.sealed([frame]))) for frame in plain]


@given(st.lists(st.integers(1, 70_000), min_size=1))
@settings(deadline=None, max_examples=examples(40))
def test_sealed_messages_survive_any_split(sizes: list[int]) -> None:
    data = b"".join(frames())
    decoder = Decoder(seal=Seal(KEY))
    found = feed(decoder, data, (sizes[i % len(sizes)] for i in range(len(data))))
    assert [message.request for message in found] == [1, 3, 2, 1]
    np.testing.assert_array_equal(found[2].tensors[1], LARGE.tensors[1])
    assert found[0].tensors[1].tolist() == [b"ab", b""]
    assert decoder.idle
    assert not decoder.mid_frame


@pytest.mark.parametrize("cut", [1, 7, 15, 16, 17])
def test_tag_may_arrive_in_pieces(cut: int) -> None:
    data = b"".join(frames())
    assert len(feed(Decoder(seal=Seal(KEY)), data, (cut for _ in data))) == 4


def test_whole_seals_a_message_for_the_other_end() -> None:
    message = WireMessage(FrameKind.PUSH, 9, {}, (np.arange(CHUNK_BYTES, dtype=np.uint8),))
    data = b"".join(map(bytes, Seal(KEY).whole(encode(message))))
    (found,) = feed(Decoder(seal=Seal(KEY)), data)
    np.testing.assert_array_equal(found.tensors[0], message.tensors[0])


@given(st.data())
@settings(deadline=None, max_examples=examples(150))
def test_altered_byte_is_detected_before_its_message_is_delivered(data: st.DataObject) -> None:
    sent = frames()
    index = data.draw(st.integers(0, len(sent) - 1))
    place = data.draw(st.integers(0, len(sent[index]) - 1))
    altered = bytearray(sent[index])
    altered[place] ^= data.draw(st.integers(1, 255))
    decoder = Decoder(seal=Seal(KEY))
    honest = [message.request for message in feed(Decoder(seal=Seal(KEY)), b"".join(sent[:index]))]
    found: list[WireMessage] = []
    try:
        found += feed(decoder, b"".join(sent[:index]))
        found += feed(decoder, bytes(altered))
        found += feed(decoder, b"".join(sent[index + 1 :]))
    except OpError:
        pass
    assert [message.request for message in found] == honest, "or it waits for a frame that is longer, and ends"


FORGERIES = {
    "left out": lambda f: [*f[:3], *f[4:]],
    "twice": lambda f: [*f[:1], *f],
    "changed places": lambda f: [f[0], f[1], f[3], f[2], *f[4:]],
    "without a tag": lambda f: [f[0][:-16], *f[1:]],
    "of another key": lambda f: [b"".join(map(bytes, Seal(b"k" * 32).sealed([f[0][:-16]]))), *f[1:]],
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_frames_are_refused(forgery: str) -> None:
    with pytest.raises(DataLossError, match="wrong tag"):
        feed(Decoder(seal=Seal(KEY)), b"".join(FORGERIES[forgery](frames())))


def test_forged_header_allocates_no_memory() -> None:
    """Check the tag before the declared size of a large tensor is used."""
    large = encode(WireMessage(FrameKind.PUSH, 1, {}, (np.zeros(64 << 20, np.uint8),)))
    decoder = Decoder(seal=Seal(KEY))
    tracemalloc.start()
    try:
        with pytest.raises(DataLossError, match="wrong tag"):
            feed(decoder, large.head + bytes(16))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# ── tasks and clients ────────────────────────────────────────────────────────────────────────────────────────────────


def test_client_secret_is_as_documented() -> None:
    """Compare with `openssl mac -digest SHA256 -macopt hexkey:0001…1f HMAC` of "aioflow client secret"."""
    digits = "A6098EFB46DBC70CCE9BAF8884D10B5C9D000BF6B804D254DCAB813463046027"
    assert client_secret(SECRET) == b"aioflow-client:" + digits.lower().encode()
    assert is_client_secret(client_secret(SECRET))
    assert not is_client_secret(SECRET)


@pytest.mark.parametrize("is_task", [False, True])
def test_holder_of_the_secret_may_declare_itself_a_task(is_task: bool) -> None:
    first = Proving(ConnectionEnd.CONNECTING, 0x1111, SECRET, False, b"\xaa" * 32, is_task)
    second = listening()
    proved(first, second)
    assert second.peer_is_task == is_task
    assert not first.peer_is_task


def test_holder_of_the_client_secret_is_never_a_task() -> None:
    known = client_secret(SECRET)
    for claims in (False, True):
        first, second = Proving(ConnectionEnd.CONNECTING, 0x1111, known, False, b"\xaa" * 32, claims), listening()
        proved(first, second)
        assert not second.peer_is_task
    ours, theirs = connecting(known), listening()
    proved(ours, theirs)
    assert ours.seals() is not None


@pytest.mark.parametrize("flags", [1 | 8, 1 | 4 | 8, 1])
def test_false_claims_of_a_client_are_refused(flags: int) -> None:
    """Claim to be a task, or to know the cluster's secret."""
    first, second = connecting(client_secret(SECRET), seals=False), listening()
    lie = HELLO.pack(b"aioflow\n", 2, 2, flags, 0x1111, 0) + b"\xaa" * 32
    first.opening = lie
    with pytest.raises(UnauthenticatedError):
        say(second, lie + say(first, second.opening))
    assert not second.done


@pytest.mark.parametrize("secret", [SECRET, client_secret(SECRET)])
def test_listener_with_only_the_client_secret_is_refused(secret: bytes) -> None:
    """Refuse it, so that a client cannot stand in for a task."""
    first, second = connecting(secret), listening(client_secret(SECRET))
    with pytest.raises(UnauthenticatedError, match="not a task"):
        say(first, second.opening)


@pytest.mark.parametrize("flags", [2, 4, 6, 32, 33, 1 << 31])
def test_unknown_flags_are_refused(flags: int) -> None:
    with pytest.raises(DataLossError, match="unknown features"):
        say(listening(), HELLO.pack(b"aioflow\n", 2, 2, flags, 0x1111, 0))
