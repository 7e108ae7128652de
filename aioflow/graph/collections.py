"""Collections: named lists of a graph by which parts of a program share objects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from aioflow.arguments import check_kind, check_text
from aioflow.concurrency.forking import Locked


class GraphKeys:
    """Names of the standard collections."""

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    LOCAL_VARIABLES = "local_variables"
    MODEL_VARIABLES = "model_variables"
    METRIC_VARIABLES = "metric_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    LOSSES = "losses"
    REGULARIZATION_LOSSES = "regularization_losses"
    UPDATE_OPS = "update_ops"
    SUMMARIES = "summaries"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    ASSET_FILEPATHS = "asset_filepaths"
    SAVEABLE_OBJECTS = "saveable_objects"
    GLOBAL_STEP = "global_step"
    TRAIN_OP = "train_op"
    SAVERS = "savers"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    SUMMARY_OP = "summary_op"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"


class GraphCollections(Locked):
    """The collections of a graph, as a base class."""

    def __init__(self) -> None:
        super().__init__()
        self._collections: dict[str, list[Any]] = {}

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append `value` to the collection `name`."""
        with self.lock:
            self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Iterable[str] | str, value: Any) -> None:
        """Append `value` to each of the collections, once even to a collection that is named twice."""
        check_kind(names, Iterable, "the names of collections", "a list of names")
        for name in dict.fromkeys([names] if isinstance(names, str) else names):
            self.add_to_collection(name, value)

    def get_collection(self, name: str, scope: str | None = None) -> list[Any]:
        """Return a copy of the collection; with `scope`, only items whose name begins with a match of that pattern."""
        with self.lock:
            items = list(self._collections.get(name, ()))
        if scope is None:
            return items
        check_text(scope, "the scope of a collection")
        pattern = re.compile(scope)
        return [item for item in items if hasattr(item, "name") and pattern.match(item.name)]

    def get_collection_ref(self, name: str) -> list[Any]:
        """Return the collection itself, created if it is missing, so that changes to the list change the collection."""
        with self.lock:
            return self._collections.setdefault(name, [])

    def clear_collection(self, name: str) -> None:
        """Empty the collection."""
        with self.lock:
            self._collections.pop(name, None)

    @property
    def collections(self) -> list[str]:
        """The names of all non-empty collections."""
        return self.get_all_collection_keys()

    def get_all_collection_keys(self) -> list[str]:
        """Return the names of all non-empty collections."""
        with self.lock:
            return [k for k, v in self._collections.items() if v]
