"""What one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from aioflow.checks.numbers import check_number, check_whole

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for; what is more is refused before it is read, or before memory is taken for it.

    Attributes:
        body_bytes: Of a request, binary tensors included.
        json_bytes: Of its JSON.
        rank: Sizes of a tensor's shape.
        elements: Of a tensor.
        tensors: Inputs of a request, or outputs that it names.
        body_seconds: In which a request must have come after its head.
        pending_bytes: Of all requests that are being read or answered; a further one is to come again later.
    """

    body_bytes: int = 64 << 20
    json_bytes: int = 8 << 20
    rank: int = 16
    elements: int = 1 << 28
    tensors: int = 256
    body_seconds: float = 30.0
    pending_bytes: int = 1 << 30

    def within(self, budget: int) -> Limits:
        """These, for a process that has so many bytes for models and requests."""
        return replace(self, pending_bytes=min(self.pending_bytes, max(1, budget)))

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, float):
                check_number(value, f"Limits.{each.name}", "a number of seconds", above=0.0)
            else:
                check_whole(value, f"Limits.{each.name}", 1)
