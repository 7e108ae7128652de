"""The compiler's view of the devices that a plan may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The devices that a plan may use.

    Attributes:
        devices: Their full names, the preferred ones first.
        allow_soft_placement: See `SessionConfig.allow_soft_placement`.
        pins: The devices of stateful nodes that were placed by earlier steps, by name.
        home: The devices in the process that builds the graph; None if all are.
        own: The device of the client itself, for nodes that cannot run anywhere else; "" if it has no device.
        files: The devices on which files may be opened; None if all are.
        on_request: The devices that nodes get only if they request them, or if no other device has their kernels.
    """

    devices: tuple[str, ...]
    allow_soft_placement: bool = False
    pins: Mapping[str, str] = field(default_factory=dict)
    home: frozenset[str] | None = None
    own: str = ""
    files: frozenset[str] | None = None
    on_request: frozenset[str] = frozenset()
