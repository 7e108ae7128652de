"""What the compiler knows of the devices that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClusterView"]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The devices that a plan may use, by their full names, the preferred ones first."""

    devices: tuple[str, ...]
    allow_soft_placement: bool = False
