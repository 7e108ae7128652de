"""Limits for a single request."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from aioflow.arguments import check_number, check_whole


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for a single request, checked before it is read or memory is allocated for it.

    Attributes:
        body_bytes: Size of a request, binary tensors included.
        json_bytes: Size of its JSON.
        rank: Axes of a tensor.
        elements: Elements of a tensor.
        tensors: Inputs of a request, or outputs that it names.
        body_seconds: Time in which the body must arrive after the head.
        pending_bytes: Size of all requests that are being read or answered. Further requests are told to retry later.

    Raises:
        InvalidArgumentError: a limit is not a positive number.
    """

    body_bytes: int = 64 << 20
    json_bytes: int = 8 << 20
    rank: int = 16
    elements: int = 1 << 28
    tensors: int = 256
    body_seconds: float = 30.0
    pending_bytes: int = 1 << 30

    def within(self, budget: int) -> Limits:
        """Return these limits for a process with `budget` bytes for models and requests."""
        return replace(self, pending_bytes=min(self.pending_bytes, max(1, budget)))

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, float):
                check_number(value, f"Limits.{each.name}", "a number of seconds", above=0.0)
            else:
                check_whole(value, f"Limits.{each.name}", 1)
