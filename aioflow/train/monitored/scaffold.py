"""`Scaffold`: the nodes that training needs besides the model: initializers, checks, summaries and a saver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from aioflow.arguments import check_kind
from aioflow.errors import FailedPreconditionError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.graph.tensor_like import NodeLike
from aioflow.ops.core import group
from aioflow.ops.summary import merge_all
from aioflow.ops.variables.collections import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)
from aioflow.session.fetches import Feeds
from aioflow.train.saver import Saver

# ── nodes that `Scaffold` and `Supervisor` share ──────────────────────────────────────────────────────────────────────


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


# ── the scaffold ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Scaffold(ModelNodes):
    """The nodes that training needs besides the model; missing ones are created.

    Args:
        init_op: Initializes the variables; by default an initializer of all global variables.
        init_feed_dict: Feeds of `init_op`.
        init_fn: `init_fn(scaffold, session)`, called after `init_op`; may be a coroutine function.
        ready_op: A vector of strings, empty when every variable has a value.
        ready_for_local_init_op: The same for the variables that `local_init_op` needs.
        local_init_op: Run in every new session; by default an initializer of local variables and tables.
        summary_op: Computes the summaries; by default a merge of the collection of summaries, if it is not empty.
        saver: Saves and restores the variables.
        copy_from_scaffold: Scaffold that supplies the arguments that are None.
        local_init_feed_dict: Feeds of `local_init_op`.

    `finalize` takes missing nodes from the standard collections of the default graph, or creates them and adds them to
    these collections.
    """

    def __init__(
        self,
        init_op: NodeLike | None = None,
        init_feed_dict: Feeds | None = None,
        init_fn: Callable[[Scaffold, Any], object] | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        local_init_op: NodeLike | None = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Feeds | None = None,
    ) -> None:
        other = copy_from_scaffold
        if other is not None:
            check_kind(other, Scaffold, "copy_from_scaffold", "a Scaffold")
        self._init_op = _given(init_op, other, "init_op")
        self._init_feed_dict = _given(init_feed_dict, other, "init_feed_dict")
        self._init_fn = _given(init_fn, other, "_init_fn")
        self._ready_op = _given(ready_op, other, "ready_op")
        self._ready_for_local_init_op = _given(ready_for_local_init_op, other, "ready_for_local_init_op")
        self._local_init_op = _given(local_init_op, other, "local_init_op")
        local_init_feed_dict = _given(local_init_feed_dict, other, "local_init_feed_dict")
        self._local_init_feed_dict = local_init_feed_dict
        self._summary_op = _given(summary_op, other, "summary_op")
        self._saver = _given(saver, other, "saver")

    def finalize(self) -> Scaffold:
        """Create the missing nodes and finalize the default graph.

        Raises:
            FailedPreconditionError: a standard collection has several entries, so the choice is ambiguous.
        """
        for name, (key, make) in _MISSING.items():
            if getattr(self, f"_{name}") is None:
                setattr(self, f"_{name}", self.get_or_default(name, key, make))
        # A deferred saver must create its nodes before the graph is finalized.
        self._saver.build()
        default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], object]) -> Any:
        """Return the only entry of a collection of the default graph. If it is empty, construct one and add it.

        Args:
            arg_name: Name of the argument of `Scaffold`, for the error message.
            collection_key: Key of the collection.
            default_constructor: Function that makes the entry.

        Raises:
            FailedPreconditionError: the collection has several entries.
        """
        graph = default_graph()
        found = graph.get_collection(collection_key)
        if len(found) > 1:
            raise FailedPreconditionError(
                f"collection {collection_key!r} has several entries",
                expected=f"one, or Scaffold({arg_name}=...)",
                actual=len(found),
            )
        if found:
            return found[0]
        made = default_constructor()
        if made is not None:
            graph.add_to_collection(collection_key, made)
        return made

    @staticmethod
    def default_local_init_op() -> Operation:
        """Return a node that initializes local variables and tables."""
        tables = default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
        return group(local_variables_initializer(), *tables)

    @property
    def init_fn(self) -> Callable[[Any], object] | None:
        """The user's `init_fn` as a function of the session alone."""
        user = self._init_fn
        return None if user is None else lambda session: user(self, session)

    @property
    def local_init_op(self) -> Any:
        """The op that runs in every new session."""
        return self._local_init_op

    @property
    def local_init_feed_dict(self) -> Feeds | None:
        """Feeds of `local_init_op`."""
        return self._local_init_feed_dict


def _given(value: Any, other: Scaffold | None, name: str) -> Any:
    """Return `value`, or, if it is None, the attribute `name` of the other scaffold."""
    return value if value is not None or other is None else getattr(other, name)


# Attributes that `finalize` takes from a collection, or creates and adds to it, in this order.
_MISSING: Final[Mapping[str, tuple[str, Callable[[], object]]]] = {
    "init_op": (GraphKeys.INIT_OP, global_variables_initializer),
    "ready_op": (GraphKeys.READY_OP, report_uninitialized_variables),
    "ready_for_local_init_op": (
        GraphKeys.READY_FOR_LOCAL_INIT_OP,
        lambda: report_uninitialized_variables(global_variables(), "report_uninitialized_variables_1"),
    ),
    "local_init_op": (GraphKeys.LOCAL_INIT_OP, Scaffold.default_local_init_op),
    "summary_op": (GraphKeys.SUMMARY_OP, merge_all),
    "saver": (GraphKeys.SAVERS, lambda: Saver(allow_empty=True)),
}
