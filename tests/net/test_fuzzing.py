"""Mutated frames: each gives messages or a typed error, in bounded memory, before and after the proof.

`tox -e fuzz` runs a million. A failure names the seed and the bytes.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from aioflow.errors import DataLossError, OpError, ResourceExhaustedError, UnauthenticatedError, UnimplementedError
from aioflow.net import messages as services
from aioflow.net.arriving import Arrivals
from aioflow.net.decoder import Decoder
from aioflow.net.errors_codec import decode_error
from aioflow.net.framing import FrameKind, WireMessage, encode
from aioflow.net.messages import parse
from aioflow.net.plan_codec import decode_part
from aioflow.net.proving import HELLO_BYTES, TAG_BYTES, ConnectionEnd, Proving
from tests.net.mutations import bytes_changed, mutated
from tests.net.plain_wire import CONNECTING, LISTENING, PROVES, SEALS, Sealing, frame_key, hello, proof
from tests.net.recording import Stream, recorded

SEED: Final = 12
SECRET: Final = bytes(range(32))
REFUSALS: Final = (DataLossError, ResourceExhaustedError, UnimplementedError)
ROOM: Final = 192 << 20  # bytes by which the process may grow

BODIES: Final[Mapping[str, type[Any]]] = {
    services.REGISTER: services.Register,
    services.DEREGISTER: services.Handle,
    services.RUN: services.Run,
    services.WANTED: services.Wanted,
    services.REPORT: services.Wanted,
    services.ABORT: services.Abort,
    services.DELIVER: services.Deliver,
    services.RESET: services.Reset,
}


@pytest.fixture(scope="module")
def streams() -> list[Stream]:
    found = recorded()
    assert {stream[0][5] for stream in found} >= {int(kind) for kind in FrameKind} - {FrameKind.CHUNK}
    assert any(len(stream) > 2 for stream in found), "one in chunks"
    short = [stream for stream in found if len(stream) == 1]
    plans = [stream for stream in short if b"register" in stream[0]]  # those with the richest contents
    assert plans
    return short * 6 + found + plans * 40


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fed(decoder: Decoder, data: bytes, cut: int) -> list[WireMessage]:
    found: list[WireMessage] = []
    view = memoryview(data)
    while view:
        buffer = decoder.buffer()
        count = min(cut, buffer.nbytes, len(view))
        buffer[:count] = view[:count]
        view = view[count:]
        found += decoder.received(count)
    return found


def taken(message: WireMessage) -> None:
    """Decode and validate a message as the services do before they use its contents."""
    if message.kind < FrameKind.REQUEST:
        return
    encode(message)  # each accepted message could be sent
    if message.kind is FrameKind.FAILURE:
        decode_error(message.header, "ps")
    kind, body = message.header.get("kind"), message.header.get("body")
    if isinstance(kind, str) and isinstance(body, dict) and kind in BODIES:
        asked = parse(BODIES[kind], body)
        if isinstance(asked, services.Register):
            services.config_of(asked.config)
            decode_part(asked.part, list(message.tensors))
        if isinstance(asked, services.Abort):
            decode_error(asked.error, "ps")


def each(count: int, seed: int, one: Callable[[random.Random], bytes]) -> None:
    """Run `count` cases; a failure names the seed and the bytes that reproduce it."""
    before = resident()
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        try:
            data = one(chance)
        except Exception as error:
            error.add_note(f"seed {seed}, number {number}")
            raise
        assert resident() - before < ROOM or number % 64, (seed, number, data.hex()[:200])


def after_the_proof(streams: list[Stream]) -> Callable[[random.Random], bytes]:
    arrivals = Arrivals(8 << 20)

    def one(chance: random.Random) -> bytes:
        data = mutated(chance, streams)
        decoder = Decoder(arriving=arrivals.one(lambda error: None))
        cut = chance.choice((1 << 20, 1 << 20, 50, 7)) if len(data) < 4096 else 1 << 20
        try:
            with suppress(*REFUSALS):
                for message in fed(decoder, data, cut):
                    with suppress(OpError):
                        taken(message)
        except BaseException as error:
            error.add_note(data[:4096].hex())
            raise
        finally:
            decoder.drop()
        assert arrivals.bytes == 0
        return data

    return one


def before_the_proof(chance: random.Random) -> bytes:
    """Feed an almost valid handshake to a listener, which must accept only the valid one."""
    opening, listening = hello(5, PROVES | SEALS) + b"\xaa" * 32, hello(6, PROVES) + b"\xbb" * 32
    said = opening + proof(SECRET, CONNECTING, opening, listening)
    match chance.randrange(4):
        case 0:
            data = said[:64] + chance.choice((bytes(32), listening[:32], listening[32:], said[:32], opening[32:]))
        case 1:
            data = said[: chance.randrange(len(said))] + chance.randbytes(chance.randrange(96))
        case _:
            data = bytes_changed(chance, said)
    proving = Proving(ConnectionEnd.LISTENING, 6, SECRET, False, b"\xbb" * 32)
    answered = b""
    try:
        for start in range(0, len(data) - HELLO_BYTES + 1, HELLO_BYTES):
            if proving.done:
                break
            answered += proving.received(data[start : start + HELLO_BYTES])
    except (*REFUSALS, UnauthenticatedError):
        assert not proving.done
    assert proving.done == (data[: len(said)] == said), data.hex()
    if not proving.done:
        assert answered == b"", "who has proved nothing is told nothing"
    return data


def with_tags(streams: list[Stream]) -> Callable[[random.Random], bytes]:
    """Return a case for frames with tags: only unchanged frames are accepted, in order, up to the change."""
    opening, listening = hello(5, PROVES | SEALS) + b"\xaa" * 32, hello(6, PROVES) + b"\xbb" * 32
    key = frame_key(SECRET, CONNECTING, opening, listening)

    def one(chance: random.Random) -> bytes:
        sent = [frame for _ in range(3) for frame in chance.choice(streams)]
        sealing = Sealing(key)
        sealed = [frame + sealing.tag(frame) for frame in sent]
        match chance.randrange(3):
            case 0:
                place, other = chance.randrange(len(sealed)), chance.randrange(len(sealed))
                sealed[place], sealed[other] = sealed[other], sealed[place]
            case 1:
                place = chance.randrange(len(sealed))
                sealed.insert(place, sealed[chance.randrange(len(sealed))])
            case _:
                place = chance.randrange(len(sealed))
                sealed[place] = bytes_changed(chance, sealed[place])
        data = b"".join(sealed)
        decoder, honest = Decoder(seal=_listener()), Decoder()
        wanted = fed(honest, b"".join(sent), 1 << 20)
        found: list[WireMessage] = []
        with suppress(*REFUSALS):
            for start in range(0, len(data), 4096):
                found += fed(decoder, data[start : start + 4096], 1 << 20)
        assert len(found) <= len(wanted)
        for ours, theirs in zip(found, wanted, strict=False):
            assert ours[:3] == theirs[:3]
            assert [t.tolist() for t in ours.tensors] == [t.tolist() for t in theirs.tensors]
        return data

    def _listener() -> Any:
        proving = Proving(ConnectionEnd.LISTENING, 6, SECRET, False, b"\xbb" * 32)
        for word in (opening[:32], opening[32:], proof(SECRET, CONNECTING, opening, listening)):
            answer = proving.received(word)
        assert answer == proof(SECRET, LISTENING, opening, listening)
        seals = proving.seals()
        assert seals is not None
        assert TAG_BYTES == 16
        return seals[1]

    return one


linux = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")


@linux
@pytest.mark.parametrize(("part", "count"), [("after", 12_000), ("before", 5000), ("tags", 3000)])
def test_mutated_frames_give_messages_or_typed_errors(part: str, count: int, streams: list[Stream]) -> None:
    _run(part, count, streams)


@linux
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("part", "count"), [("after", 70_000), ("before", 20_000), ("tags", 10_000)])
def test_a_million_mutated_frames_give_messages_or_typed_errors(
    part: str, count: int, seed: int, streams: list[Stream]
) -> None:
    _run(part, count, streams, 1000 + seed)


def _run(part: str, count: int, streams: list[Stream], seed: int = SEED) -> None:
    print(f"{count} of {part}, seed {seed}")
    parts: dict[str, Callable[[random.Random], bytes]] = {
        "after": after_the_proof(streams),
        "before": before_the_proof,
        "tags": with_tags(streams),
    }
    each(count, seed, parts[part])
