"""What the compiler knows of the devices that a plan may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ClusterView"]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The devices that a plan may use.

    Attributes:
        devices: Their full names, the preferred ones first.
        home: Of these, the ones in the process that builds the graph; None where all are.
        own: Of these, that of the client itself, for what cannot be anywhere else; "" where it has none.
        allow_soft_placement: As `SessionConfig.allow_soft_placement`.
        pins: The devices of nodes that keep state and have been placed before, by name.
        files: Of the devices, those on which files may be opened; None where that is all.
        on_request: Of the devices, those that nodes get only by asking for them, or where no other has their kernels.
    """

    devices: tuple[str, ...]
    allow_soft_placement: bool = False
    pins: Mapping[str, str] = field(default_factory=dict)
    home: frozenset[str] | None = None
    own: str = ""
    files: frozenset[str] | None = None
    on_request: frozenset[str] = frozenset()
