"""The hello, the first 32 bytes in each direction: a fixed layout with the protocol version.

It precedes everything with a length field, and detects peers of another version and connections of other protocols. The
incarnation is a random number per process, so that a restarted peer is not mistaken for its predecessor. The
authentication that follows, if there is a secret, is in `proving`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from aioflow.errors import DataLossError, UnimplementedError
from aioflow.net.framing import OLDEST, VERSION

_HELLO: Final = struct.Struct("<8sHHIQQ")  # magic, version, oldest version understood, flags, incarnation, reserved
_MAGIC: Final = b"aioflow\n"
HELLO_BYTES: Final = _HELLO.size
PROVES: Final = 1  # a nonce follows: this end has a secret, and both ends must prove that they know it
SEALS: Final = 2  # each later frame has a tag
CLIENT: Final = 4  # this end knows only a client's secret
TASK: Final = 8  # this end is a task of the cluster
SHARES: Final = 16  # this end supports the messages of `shared_memory`, and allows sharing memory with the peer
_KNOWN: Final = PROVES | SEALS | CLIENT | TASK | SHARES


class Hello(NamedTuple):
    """The fields of a hello."""

    incarnation: int
    version: int = VERSION
    oldest: int = OLDEST
    flags: int = 0

    def to_bytes(self) -> bytes:
        """Return the 32 bytes."""
        return _HELLO.pack(_MAGIC, self.version, self.oldest, self.flags, self.incarnation, 0)


def parse_hello(data: bytes | bytearray | memoryview) -> Hello:
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
    return Hello(incarnation, version, oldest, flags)
