"""Settings for replicated variables, which the published signatures contain. They have no effect on one replica."""

from __future__ import annotations

from enum import Enum

__all__ = ["VariableAggregation", "VariableSynchronization"]


class VariableSynchronization(Enum):
    """The time at which copies of a variable are synchronized. There is only one copy, so all values are equivalent."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """The combination of replicas' updates of a variable. A process has one replica, so all values are equivalent."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3
