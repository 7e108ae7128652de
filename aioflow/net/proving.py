"""The layout of the hello, mutual authentication by the cluster's secret, and the tags of frames, all without I/O.

Tags detect forged frames.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from aioflow.errors import DataLossError, UnauthenticatedError, UnimplementedError
from aioflow.memory.values import Buffer
from aioflow.net.framing import OLDEST, VERSION, EncodedMessage

# ── authentication tags of frames ─────────────────────────────────────────────────────────────────────────────────────
#
# A tag is BLAKE2b(number · frame) with the direction's key, 16 bytes. The number counts the frames from 0: 64 bits,
# little-endian. Tags do not encrypt; that is the task of TLS.


TAG_BYTES: Final = 16
SEALED_CHUNK_BYTES: Final = 1 << 20  # hashing one takes about a millisecond of the event loop
_NUMBER: Final = struct.Struct("<Q")


class Seal:
    """The tags of one direction: created at one end, verified at the other.

    Args:
        key: 32 bytes, used for this connection and direction only.
    """

    __slots__ = ("_count", "_hash", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._hash: Any = None

    def begin(self, *parts: Buffer) -> None:
        """Start the tag of the next frame with these parts."""
        # The number is hashed but not sent: a frame that is repeated, left out or moved has a wrong tag.
        self._hash = hashlib.blake2b(_NUMBER.pack(self._count), key=self._key, digest_size=TAG_BYTES)
        self._count += 1
        for part in parts:
            self._hash.update(part)

    def update(self, part: Buffer) -> None:
        """Add a part of the frame."""
        self._hash.update(part)

    def check(self, tag: Buffer) -> None:
        """End the frame. Raises DataLossError unless the tag matches."""
        # In constant time, so that the duration tells nothing about the expected tag.
        if not hmac.compare_digest(self._hash.digest(), tag):
            raise DataLossError("wrong tag: the frame was not sent by the peer, or not at this position")

    def sealed(self, frame: Sequence[Buffer]) -> list[Buffer]:
        """Return the next frame followed by its tag."""
        self.begin(*frame)
        return [*frame, self._hash.digest()]

    def whole(self, encoded: EncodedMessage) -> list[Buffer]:
        """Return the buffers of a message with tags, in the form of `EncodedMessage.whole`.

        Frames are numbered, so send these before any other frame is sealed.
        """
        buffers = self.sealed([encoded.head])
        for chunk in encoded.chunks(SEALED_CHUNK_BYTES):
            buffers += self.sealed(chunk)
        return buffers


# ── the hello, the first 32 bytes in each direction: a fixed layout with the protocol version ─────────────────────────
#
# It precedes everything with a length field, and detects peers of another version and connections of other protocols.
# The incarnation is a random number per process, so that a restarted peer is not mistaken for its predecessor. If
# there is a secret, the proofs below follow.

_HELLO: Final = struct.Struct("<8sHHIQQ")  # magic, version, oldest version understood, flags, incarnation, reserved
_MAGIC: Final = b"aioflow\n"
HELLO_BYTES: Final = _HELLO.size
PROVES: Final = 1  # a nonce follows: this end has a secret, and both ends must prove that they know it
SEALS: Final = 2  # each later frame has a tag
CLIENT: Final = 4  # this end knows only a client's secret
TASK: Final = 8  # this end is a task of the cluster
SHARES: Final = 16  # this end supports the messages of `shared_memory`, and allows sharing memory with the peer
_KNOWN: Final = PROVES | SEALS | CLIENT | TASK | SHARES


class HelloFields(NamedTuple):
    """The fields of a hello."""

    incarnation: int
    version: int = VERSION
    oldest: int = OLDEST
    flags: int = 0

    def to_bytes(self) -> bytes:
        """Return the 32 bytes."""
        return _HELLO.pack(_MAGIC, self.version, self.oldest, self.flags, self.incarnation, 0)


def parse_hello(data: bytes | bytearray | memoryview) -> HelloFields:
    """Parse the hello of a peer.

    Raises:
        DataLossError: it is malformed.
        UnimplementedError: there is no version that both ends understand.
    """
    magic, version, oldest, flags, incarnation, reserved = _HELLO.unpack(data)
    if magic != _MAGIC:
        raise DataLossError("the peer does not speak aioflow's protocol", expected=_MAGIC, actual=magic)
    if max(oldest, OLDEST) > min(version, VERSION):
        raise UnimplementedError(
            "the peer speaks an incompatible version of the protocol", expected=VERSION, actual=f"{oldest} to {version}"
        )
    if flags & ~_KNOWN or reserved or (flags & (SEALS | CLIENT) and not flags & PROVES):
        raise DataLossError(
            "the peer requests unknown features", expected=f"bits of {_KNOWN}", actual=(flags, reserved)
        )
    return HelloFields(incarnation, version, oldest, flags)


# ── proofs of the secret ──────────────────────────────────────────────────────────────────────────────────────────────
#
#     opening   a hello and, if it has the flag PROVES, a nonce: 32 random bytes
#     proof     HMAC-SHA256(secret, label · opening of the connecting end · opening of the listening end)
#
# Each end sends its opening at once. Then the connecting end proves itself, and only after that the listening one: a
# client that merely connects gets nothing to test guesses of the secret against. A wrong proof is answered by 32 zeros.
# The label names the end, so that a proof sent back to its sender is not valid; the nonces make each proof valid for
# one connection. Versions, flags and incarnations are part of the proof, so nothing between the two ends can change
# them.
#
# A process that has only the clients' secret sets the flag CLIENT, and the other end derives that secret from its own:
#
#     clients' secret   "aioflow-client:" · HMAC-SHA256(secret, "aioflow client secret"), in hexadecimal digits
#
# So such a process cannot connect as a task of the cluster (TASK). The flag TASK is trusted by ends that have verified
# a proof, and by ends that have no secret.
#
# If one end has a secret and the other has none, both refuse; so do ends with different secrets. The keys of the frames
# (`Seal`) are derived in the same way with other labels.


WORD_BYTES: Final = HELLO_BYTES  # a hello, a nonce and a proof have the same length
NONCE_BYTES: Final = WORD_BYTES
_REFUSED: Final = bytes(WORD_BYTES)
_CLIENT: Final = b"aioflow-client:"


def client_secret(secret: bytes) -> bytes:
    """Derive the secret for clients of the cluster, from which the cluster's own secret cannot be found."""
    return _CLIENT + hmac.digest(secret, b"aioflow client secret", "sha256").hex().encode()


def is_client_secret(secret: bytes) -> bool:
    """Return True if the secret is one made by `client_secret`."""
    return secret.startswith(_CLIENT)


class ConnectionEnd(enum.Enum):
    """The end of a connection."""

    CONNECTING = b"connecting"
    LISTENING = b"listening"

    @property
    def other(self) -> ConnectionEnd:
        """The opposite end."""
        return ConnectionEnd.LISTENING if self is ConnectionEnd.CONNECTING else ConnectionEnd.CONNECTING


class Proving:
    """One end of the handshake.

    Send `opening`, then read bytes into `buffer` and send what `filled` returns, until `done`.

    Args:
        role: The end of the connection that this is.
        incarnation: Incarnation of this process, for the hello.
        secret: The secret, or None if this process has none: then the peer must have none either.
        seals: Whether this end wants tags on frames. Tags are used if either end wants them.
        nonce: NONCE_BYTES unpredictable bytes that were not used before.
        is_task: Whether this end declares itself a task of the cluster.
        shares: Whether this end may share memory with the other.

    Attributes:
        opening: The bytes to send first.
        peer: The other end's hello, once received.
        done: Whether both ends have proved themselves.
        last_words: After an error, the bytes to send before the connection is closed.
    """

    def __init__(
        self,
        role: ConnectionEnd,
        incarnation: int,
        secret: bytes | None,
        seals: bool,
        nonce: bytes,
        is_task: bool = False,
        shares: bool = False,
    ) -> None:
        self._role = role
        self._secret = secret
        flags = _flags(secret, seals, is_task)
        self._hello = HelloFields(incarnation, flags=flags | SHARES if shares else flags)
        self.opening = self._hello.to_bytes() + (b"" if secret is None else nonce)
        self._peer_opening = b""
        self.peer: HelloFields | None = None
        self.done = False
        self.last_words = b""
        self._next: Callable[[bytes], bytes] = self._greeted
        self._word = bytearray(WORD_BYTES)
        self._count = 0

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes, which ends with the current word."""
        return memoryview(self._word)[self._count :]

    def filled(self, count: int) -> bytes:
        """Process `count` bytes written to `buffer()` and return the bytes to send. Raises as `received`."""
        self._count += count
        if self._count < WORD_BYTES:
            return b""
        self._count = 0
        return self.received(bytes(self._word))

    def received(self, word: bytes) -> bytes:
        """Process the next WORD_BYTES of the peer and return the bytes to send.

        Raises:
            DataLossError, UnimplementedError: as `parse_hello`.
            UnauthenticatedError: the peer does not know the secret, or has one while this process has none.
        """
        return self._next(word)

    @property
    def shares(self) -> bool:
        """True if both ends may share memory. Valid once `done`."""
        return self.peer is not None and bool(self._hello.flags & self.peer.flags & SHARES)

    def seals(self) -> tuple[Seal, Seal] | None:
        """Return the seals of outgoing and incoming frames, or None if frames have no tags. Valid once `done`."""
        if self._secret is None or self.peer is None or not (self._hello.flags | self.peer.flags) & SEALS:
            return None
        own, other = (Seal(self._derived(b"aioflow frames: ", role)) for role in (self._role, self._role.other))
        return own, other

    def _greeted(self, word: bytes) -> bytes:
        peer = parse_hello(word)
        if self._secret is None and peer.flags & PROVES:
            raise UnauthenticatedError(
                "the peer requires the cluster's secret, and this process has none",
                expected="AIOFLOW_SECRET_FILE, AIOFLOW_SECRET or aioflow.distributed.Credentials(...)",
            )
        if self._secret is not None and not peer.flags & PROVES:
            raise UnauthenticatedError("the peer has no secret, and this process requires the cluster's secret")
        if peer.flags & CLIENT:
            # Listening ends are tasks, which have the full secret: one with the clients' secret only is an impostor.
            if peer.flags & TASK or self._role is ConnectionEnd.CONNECTING:
                raise UnauthenticatedError("the peer has only the secret of clients and is not a task of the cluster")
            if self._secret is not None and not is_client_secret(self._secret):
                # The peer cannot derive anything from the full secret, so both ends use the clients' secret from here
                # on.
                self._secret = client_secret(self._secret)
        self.peer = peer
        if self._secret is None:
            self.done = True
        else:
            self._peer_opening = word
            self._next = self._challenged
        return b""

    def _challenged(self, word: bytes) -> bytes:
        self._peer_opening += word
        self._next = self._proved
        # The listening end answers only after this proof, so an unauthenticated client gets nothing from which it could
        # guess the secret offline.
        return self._proof(self._role) if self._role is ConnectionEnd.CONNECTING else b""

    def _proved(self, word: bytes) -> bytes:
        # In constant time, so that the duration tells nothing about the expected proof.
        if not hmac.compare_digest(word, self._proof(self._role.other)):
            if self._role is ConnectionEnd.LISTENING:
                # Tells the other end the cause; it would otherwise see a closed connection only.
                self.last_words = _REFUSED
            elif word == _REFUSED:
                raise UnauthenticatedError("the peer has a different secret: it rejected this process's proof")
            raise UnauthenticatedError("the peer did not prove that it has the cluster's secret")
        self.done = True
        return self._proof(self._role) if self._role is ConnectionEnd.LISTENING else b""

    @property
    def peer_is_task(self) -> bool:
        """True if the other end declares itself a task. To be trusted once `done`."""
        return self.peer is not None and bool(self.peer.flags & TASK)

    def _proof(self, role: ConnectionEnd) -> bytes:
        return self._derived(b"aioflow proof: ", role)

    def _derived(self, purpose: bytes, role: ConnectionEnd) -> bytes:
        # Both ends must hash the same bytes, so the connecting end's come first. The role in the text keeps the
        # listening end's proof from being a reflection of the other.
        openings = (self.opening, self._peer_opening)
        ordered = openings if self._role is ConnectionEnd.CONNECTING else openings[::-1]
        return hmac.digest(self._secret or b"", purpose + role.value + b"\n" + b"".join(ordered), "sha256")


def _flags(secret: bytes | None, seals: bool, is_task: bool) -> int:
    if secret is None:
        return TASK if is_task else 0
    is_client = is_client_secret(secret)
    return PROVES | (SEALS if seals else 0) | (CLIENT if is_client else TASK if is_task else 0)
