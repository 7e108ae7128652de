"""Limits on the requests of peers: sizes and counts, checked before memory is allocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aioflow.arguments import check_seconds, check_whole
from aioflow.errors import InvalidArgumentError, ResourceExhaustedError

_MOST_HEADER_BYTES: Final = 1 << 20  # upper bound of the setting `header_bytes`


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one connection, and of what a worker keeps for all connections.

    Each end has its own limits: a message is checked both when it is sent and when it arrives.

    Attributes:
        header_bytes: Size of an encoded header; at most 1 MiB, since decoding one can take 75 times its size.
        header_items: Length of any list or map in a header.
        tensor_bytes: Bytes of the tensors of one message.
        tensors: Number of tensors of one message.
        rank: Rank of a tensor.
        strings: Number of elements of a string tensor.
        unread_bytes: Received bytes that `receive` has not returned yet. Above the limit, the connection is not read,
            which eventually blocks the sender. At most this and one message are held.
        open_requests: Unanswered requests of one peer. Further ones are rejected; if the peer does not read the
            rejections either, its connection ends.
        open_bytes: Bytes of the tensors of those requests.
        all_open_bytes: The same, for all clients of a worker.
        unsent_bytes: Answers that wait for one peer to read them, and values that wait to be sent to one task. Beyond
            the limit, sending fails.
        steps: Concurrent steps of one client.
        step_seconds: Time limit of a step in seconds; None for as long as its client waits.
        plan_bytes: Bytes of the nodes of one plan.
        parts: Registered parts of one client.
        part_bytes: Memory of those parts: their constants, and 4 KiB per node.
        nodes: Nodes of one part.
        all_arriving_bytes: Bytes of partially received messages, over all connections of a listener.
        early_bytes: Bytes of the values that one connection has sent and no step has requested yet.
        all_early_bytes: The same, over all connections of a worker.
        name_bytes: Size in UTF-8 of the name of a container, resource, device or task.
        rows: Resources in one message of the resource directory.
        resources: Resources that a worker keeps in the directory of the cluster.
        resource_bytes: Size of their names and devices.
        places: Devices with resources of one name.
        shared_bytes: Bytes of tensors that one end has exported to the other through shared memory and that are still
            held there, per direction of a connection. Further tensors are sent over the connection.
    """

    header_bytes: int = 64 << 10
    header_items: int = 4096
    tensor_bytes: int = 4 << 30
    tensors: int = 1024
    rank: int = 32
    strings: int = 1 << 22
    unread_bytes: int = 64 << 20
    open_requests: int = 1024
    open_bytes: int = 8 << 30
    all_open_bytes: int = 16 << 30
    unsent_bytes: int = 8 << 30
    steps: int = 1024
    step_seconds: float | None = None
    plan_bytes: int = 64 << 20
    parts: int = 1 << 14
    part_bytes: int = 8 << 30
    nodes: int = 1 << 19
    all_arriving_bytes: int = 8 << 30
    early_bytes: int = 2 << 30
    all_early_bytes: int = 8 << 30
    name_bytes: int = 4096
    rows: int = 1 << 14
    resources: int = 1 << 18
    resource_bytes: int = 64 << 20
    places: int = 1024
    shared_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name != "step_seconds":
                check_whole(getattr(self, field.name), f"Limits.{field.name}", 0)
        check_seconds(self.step_seconds, "Limits.step_seconds")
        if not 0 < self.header_bytes <= _MOST_HEADER_BYTES:
            raise InvalidArgumentError(
                "header_bytes is out of range", expected=f"1..{_MOST_HEADER_BYTES}", actual=self.header_bytes
            )


DEFAULT_LIMITS: Final = Limits()


# ── a limit on the number of items and on their total bytes ───────────────────────────────────────────────────────────


class Quota:
    """A counter of items and their bytes, with a limit on both.

    Args:
        what: Description of the items, for the error.
        count: Maximum number of items.
        size: Maximum total bytes.

    Attributes:
        taken: Current number of items and their bytes.
    """

    def __init__(self, what: str, count: int, size: int) -> None:
        self._what = what
        self._most = count, size
        self.taken = 0, 0

    def take(self, count: int, size: int) -> None:
        """Count more items. Raises ResourceExhaustedError, and counts nothing, if a limit would be exceeded."""
        after = self.taken[0] + count, self.taken[1] + size
        if after[0] > self._most[0] or after[1] > self._most[1]:
            raise ResourceExhaustedError(
                self._what,
                expected="at most " + _format(*self._most, self._most[1]),
                actual=_format(*after, self._most[1]),
            )
        self.taken = after

    def add(self, count: int, size: int) -> None:
        """Count items without checking the limits, within room held by `reserved`."""
        self.taken = self.taken[0] + count, self.taken[1] + size

    def give(self, count: int, size: int) -> None:
        """Subtract items."""
        self.taken = self.taken[0] - count, self.taken[1] - size

    @contextmanager
    def reserved(self, count: int, size: int) -> Iterator[None]:
        """Hold room for the items during a block. Raises as `take`."""
        self.take(count, size)
        try:
            yield
        finally:
            self.give(count, size)


def _format(count: int, size: int, most: int) -> str:
    """Format a count, with the bytes only if they are limited."""
    return f"{count}, of {size} bytes" if most else str(count)
