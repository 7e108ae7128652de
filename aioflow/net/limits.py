"""What a peer may ask of this process: sizes and counts, checked before memory is taken."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from aioflow.checks.numbers import check_seconds, check_whole
from aioflow.errors import InvalidArgumentError

__all__ = ["DEFAULT_LIMITS", "Limits"]

_MOST_HEADER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection, and of what a worker keeps for all of them. Both ends have their own: a message is
    checked where it is sent and where it arrives.

    Attributes:
        header_bytes: The encoded header of a message; at most 1 MiB, since decoding one can take 75 times its size.
        header_items: Length of any list or map in a header.
        tensor_bytes: Tensor bytes of one message.
        tensors: Tensors of one message.
        rank: Rank of a tensor.
        strings: Elements of a string tensor.
        unread_bytes: Received, and not yet taken by `receive`. Beyond it the connection is not read, which in the end
            stops the sender. What is held is at most this and one message.
        open_requests: Requests of one peer that have not been answered. If it does not read that there are too many
            either, its connection ends.
        open_bytes: The tensors of those requests.
        all_open_bytes: Those of all clients of a worker.
        unsent_bytes: Answers that wait for one peer to read them, and values that wait for one task; what is more is an
            error.
        steps: Steps of one client that run at a time.
        step_seconds: How long a step may run; None for as long as its client waits.
        plan_bytes: The nodes of one plan.
        parts: Parts that one client has registered and not deregistered.
        part_bytes: What those parts take: their constants, and four KiB for a node.
        nodes: Nodes of one part.
        all_arriving_bytes: What has come of messages that have not come whole, by all connections of a listener.
        early_bytes: Values that one connection has brought, and that no step has asked for yet.
        all_early_bytes: Those of all connections of a worker.
        name_bytes: The name of a container, a resource, a device or a task, in UTF-8.
        rows: Resources of one message that asks where they are.
        resources: Resources whose places a worker keeps for the cluster.
        resource_bytes: Their names and places.
        places: Devices on which resources of one name are.
        shared_bytes: Tensors that one end has lent to the other in shared memory, and that are still held there, each
            way of a connection; what is more goes by the connection.
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
