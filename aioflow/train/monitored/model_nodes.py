"""What `Scaffold` and `Supervisor` both have, and show in the same way: the nodes beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ModelNodes"]


class ModelNodes:
    """Initializers, readiness, summaries, a saver."""

    _init_op: Any
    _init_feed_dict: Mapping[Any, Any] | None
    _ready_op: Any
    _ready_for_local_init_op: Any
    _summary_op: Any
    _saver: Any

    @property
    def init_op(self) -> Any:
        """Gives the variables their first values."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Mapping[Any, Any] | None:
        """Fed to `init_op`."""
        return self._init_feed_dict

    @property
    def ready_op(self) -> Any:
        """Names of what has no value yet."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        """Names of what `local_init_op` needs and has no value yet."""
        return self._ready_for_local_init_op

    @property
    def summary_op(self) -> Any:
        """Makes the summaries; None where there are none."""
        return self._summary_op

    @property
    def saver(self) -> Any:
        """Saves and restores the variables; None in a `Scaffold` before `finalize`, unless it was given."""
        return self._saver
