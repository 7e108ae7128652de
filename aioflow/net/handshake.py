"""The first 32 bytes each way: a fixed hello with the protocol's version, before anything that has a length.

A peer of another version, or something that is not a peer at all, is told apart here. The incarnation is a random
number for each start of a process, so that a restarted peer is not taken for the one before. What follows where there
is a secret is in `proving`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from aioflow.errors import DataLossError, UnimplementedError
from aioflow.net.framing import OLDEST, VERSION

__all__ = ["CLIENT", "HELLO_BYTES", "PROVES", "SEALS", "SHARES", "TASK", "Hello", "parse_hello"]

_HELLO: Final = struct.Struct("<8sHHIQQ")  # magic, version, oldest version understood, flags, incarnation, reserved
_MAGIC: Final = b"aioflow\n"
HELLO_BYTES: Final = _HELLO.size
PROVES: Final = 1  # a nonce follows: this end has a secret, and both prove that they know it
SEALS: Final = 2  # and each frame after that has a tag
CLIENT: Final = 4  # what this end knows is the secret of clients alone
TASK: Final = 8  # this end is a task of the cluster
SHARES: Final = 16  # this end may share memory with the other (`shared_memory`), and understands what it says of that
_KNOWN: Final = PROVES | SEALS | CLIENT | TASK | SHARES


class Hello(NamedTuple):
    """What a peer says of itself."""

    incarnation: int
    version: int = VERSION
    oldest: int = OLDEST
    flags: int = 0

    def to_bytes(self) -> bytes:
        """The 32 bytes."""
        return _HELLO.pack(_MAGIC, self.version, self.oldest, self.flags, self.incarnation, 0)


def parse_hello(data: bytes | bytearray | memoryview) -> Hello:
    """The hello of a peer.

    Raises:
        DataLossError: it is not one.
        UnimplementedError: the peer speaks only versions that this process does not.
    """
    magic, version, oldest, flags, incarnation, reserved = _HELLO.unpack(data)
    if magic != _MAGIC:
        raise DataLossError("the peer does not speak aioflow's protocol", expected=_MAGIC, actual=magic)
    if max(oldest, OLDEST) > min(version, VERSION):
        raise UnimplementedError(
            "the peer speaks another version of the protocol", expected=VERSION, actual=f"{oldest} to {version}"
        )
    if flags & ~_KNOWN or reserved or (flags & (SEALS | CLIENT) and not flags & PROVES):
        raise DataLossError(
            "the peer asks for something unknown", expected=f"bits of {_KNOWN}", actual=(flags, reserved)
        )
    return Hello(incarnation, version, oldest, flags)
