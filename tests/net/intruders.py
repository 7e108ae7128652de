"""Connections that must get nothing: each opens one, sends hostile bytes, and waits for the end."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from tests.net.mutations import mutated
from tests.net.plain_wire import CONNECTING, PROVES, REQUEST, SEALS, SHARES, bare, frames, hello, proof

__all__ = ["UNAUTHENTICATED", "Place", "Silent", "exchange", "hostile_frames", "recorded_words"]

Place: TypeAlias = tuple[str, int]
Words: TypeAlias = Callable[[random.Random, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_SECONDS: Final = 20.0  # timeout: the other end must have closed the connection long before


async def exchange(
    where: Place, say: Words, chance: random.Random, tls: ssl.SSLContext | None = None, waits: bool = True
) -> bytes:
    """Open a connection, send the words, and return what arrives until the end."""
    heard = b""
    with suppress(OSError, asyncio.IncompleteReadError):
        host = None if tls is None else where[0]
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(*where, ssl=tls, server_hostname=host)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await say(chance, reader, writer)
                if waits:
                    async with asyncio.timeout(_SECONDS):
                        heard = await reader.read(1 << 20)
        finally:
            writer.transport.abort()
    return heard


async def _garbage(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(chance.randbytes(chance.choice((32, 100, 5000))))


async def _another_protocol(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\n\r\n")


async def _another_version(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"aioflow\n\x09\0\x09\0" + hello(5, PROVES)[12:] + chance.randbytes(32))


async def _no_secret(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(hello(5) + b"".join(frames(REQUEST, 1, {"kind": "hello", "timeout": 1.0, "body": {}})))


async def _wrong_secret(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    ours = hello(chance.getrandbits(60) + 1, PROVES) + chance.randbytes(32)
    writer.write(ours)
    theirs = await reader.readexactly(64)
    writer.write(proof(b"another secret of 32 characters.", CONNECTING, ours, theirs))


async def _reflected(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the worker's own bytes back: its hello, then its nonce in place of a proof."""
    theirs = await reader.readexactly(64)
    writer.write(theirs)
    writer.write(theirs[32:])


async def _zeros(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(hello(5, PROVES | SEALS) + bytes(64))


UNAUTHENTICATED: Final[dict[str, Words]] = {
    "garbage": _garbage,
    "another protocol": _another_protocol,
    "another version": _another_version,
    "no secret": _no_secret,
    "a wrong secret": _wrong_secret,
    "reflected": _reflected,
    "zeros": _zeros,
}


def recorded_words(secret: bytes) -> Callable[[random.Random], Words]:
    """Return words that replay an honest client's recorded connection, whatever the worker now sends."""

    def replayed(chance: random.Random) -> Words:
        ours = hello(77, PROVES) + b"\x11" * 32
        theirs = hello(78, PROVES) + b"\x22" * 32  # the worker's opening at that time

        async def say(_: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = b"".join(frames(REQUEST, 1, {"kind": "hello", "timeout": 1.0, "body": {}}))
            writer.write(ours + proof(secret, CONNECTING, ours, theirs) + request)

        return say

    return replayed


def hostile_frames(secret: bytes | None, streams: Sequence[list[bytes]]) -> Words:
    """Return words that complete the handshake and then send malformed or unwanted frames."""

    async def say(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flags = (PROVES if secret else 0) | chance.choice((0, SHARES))
        ours = hello(chance.getrandbits(60) + 1, flags) + (chance.randbytes(32) if secret else b"")
        writer.write(ours)
        theirs = await reader.readexactly(len(ours))
        if secret:
            writer.write(proof(secret, CONNECTING, ours, theirs))
            await reader.readexactly(32)
        for _ in range(4):
            writer.write(mutated(chance, streams))
        writer.write(bare(9))  # an unknown kind
        await writer.drain()

    return say


class Silent:
    """Connections that stay open and send nothing, or one byte per call of `drip`."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._writers: list[asyncio.StreamWriter] = []
        self._words = hello(5, PROVES) + bytes(64)

    async def open(self, count: int) -> None:
        """Open `count` more connections."""
        for _ in range(count):
            _, writer = await asyncio.open_connection(*self._where)
            self._writers.append(writer)

    def drip(self, number: int) -> None:
        """Send byte `number` of the handshake on every second connection."""
        for writer in self._writers[::2]:
            with suppress(OSError):
                writer.write(self._words[number : number + 1])

    def close(self) -> None:
        """Abort all connections."""
        for writer in self._writers:
            writer.transport.abort()
