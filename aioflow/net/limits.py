"""What a peer may ask of this process: sizes and counts, checked before memory is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aioflow.errors import InvalidArgumentError

__all__ = ["DEFAULT_LIMITS", "Limits"]

_MOST_HEADER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection. Both ends have their own: a message is checked where it is sent and where it arrives.

    Attributes:
        header_bytes: The encoded header of a message; at most 1 MiB, since decoding one can take 75 times its size.
        header_items: Length of any list or map in a header.
        tensor_bytes: Tensor bytes of one message.
        tensors: Tensors of one message.
        rank: Rank of a tensor.
        strings: Elements of a string tensor.
        unread_bytes: Received, and not yet taken by `receive`. Beyond it the connection is not read, which in the end
            stops the sender. What is held is at most this and one message.
        open_requests: Requests of one peer that have not been answered.
        plan_bytes: The nodes of one plan.
    """

    header_bytes: int = 64 << 10
    header_items: int = 4096
    tensor_bytes: int = 4 << 30
    tensors: int = 1024
    rank: int = 32
    strings: int = 1 << 22
    unread_bytes: int = 64 << 20
    open_requests: int = 1024
    plan_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 0 < self.header_bytes <= _MOST_HEADER_BYTES:
            raise InvalidArgumentError(
                "header_bytes is out of range", expected=f"1..{_MOST_HEADER_BYTES}", actual=self.header_bytes
            )


DEFAULT_LIMITS: Final = Limits()
