"""Properties that `Scaffold` and `Supervisor` share: the nodes that training needs besides the model."""

from __future__ import annotations

from typing import Any

from aioflow.session.fetches import Feeds


class ModelNodes:
    """The nodes that training needs besides the model: initializers, readiness checks, summaries, a saver."""

    _init_op: Any
    _init_feed_dict: Feeds | None
    _ready_op: Any
    _ready_for_local_init_op: Any
    _summary_op: Any
    _saver: Any

    @property
    def init_op(self) -> Any:
        """The op that initializes the variables."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Feeds | None:
        """Feeds of `init_op`, or None."""
        return self._init_feed_dict

    @property
    def ready_op(self) -> Any:
        """Tensor of the names of variables that have no value yet; None to skip the check."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        """Tensor of the names of variables that `local_init_op` needs and that have no value yet; None for no check."""
        return self._ready_for_local_init_op

    @property
    def summary_op(self) -> Any:
        """The op that computes the summaries; None if there are no summaries."""
        return self._summary_op

    @property
    def saver(self) -> Any:
        """The saver of the variables; None in a `Scaffold` before `finalize`, unless it was passed."""
        return self._saver
