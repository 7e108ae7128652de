"""How a variable behaves where it is replicated: part of the published signatures, without effect on one replica."""

from __future__ import annotations

from enum import Enum

__all__ = ["VariableAggregation", "VariableSynchronization"]


class VariableSynchronization(Enum):
    """When replicas' copies of a variable are brought together. There is one copy, so each value means the same."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """How replicas' updates of a variable are combined. One process has one replica, so each value means the same."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3
