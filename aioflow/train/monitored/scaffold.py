"""`Scaffold`: the nodes that training needs besides the model: initializers, readiness, a saver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aioflow.errors import FailedPreconditionError
from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.graph.tensor_like import NodeLike
from aioflow.ops.core import group
from aioflow.ops.variables.collections import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)
from aioflow.train.saver import Saver

__all__ = ["Scaffold"]


class Scaffold:
    """Collects what training needs besides the model, and makes what is missing.

    Args:
        init_op: Gives the variables their first values; by default an initializer of all global variables.
        init_feed_dict: Fed to `init_op`.
        init_fn: `init_fn(scaffold, session)`, called after `init_op`; may be a coroutine function.
        ready_op: A vector of strings, empty when everything has a value.
        ready_for_local_init_op: The same, of what `local_init_op` needs.
        local_init_op: Run in every new session; by default an initializer of local variables and tables.
        summary_op: Kept for whoever asks for it: there are no summaries.
        saver: Saves and restores the variables.
        copy_from_scaffold: What is not given is taken from this one.
        local_init_feed_dict: Fed to `local_init_op`.

    What is not given is taken from the standard collections of the default graph, or made and put there, when
    `finalize` is called.
    """

    def __init__(
        self,
        init_op: NodeLike | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Any], Any] | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        local_init_op: NodeLike | None = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        other = copy_from_scaffold
        if other is not None:
            check_kind(other, Scaffold, "copy_from_scaffold", "a Scaffold")
        self._init_op = init_op if other is None or init_op is not None else other.init_op
        self._init_feed_dict = init_feed_dict if other is None or init_feed_dict is not None else other.init_feed_dict
        if other is not None and init_fn is None:
            init_fn = other._user_init_fn
        self._user_init_fn: Callable[[Scaffold, Any], Any] | None = init_fn
        self._ready_op = ready_op if other is None or ready_op is not None else other.ready_op
        if other is not None and ready_for_local_init_op is None:
            ready_for_local_init_op = other.ready_for_local_init_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._local_init_op = local_init_op if other is None or local_init_op is not None else other.local_init_op
        if other is not None and local_init_feed_dict is None:
            local_init_feed_dict = other.local_init_feed_dict
        self._local_init_feed_dict = local_init_feed_dict
        self._summary_op = summary_op if other is None or summary_op is not None else other.summary_op
        self._saver = saver if other is None or saver is not None else other.saver

    def finalize(self) -> Scaffold:
        """Make what is missing, and finalize the default graph.

        Raises:
            FailedPreconditionError: a standard collection has several entries, so that it is not clear which is meant.
        """
        keys = GraphKeys
        if self._init_op is None:
            self._init_op = self.get_or_default("init_op", keys.INIT_OP, global_variables_initializer)
        if self._ready_op is None:
            self._ready_op = self.get_or_default("ready_op", keys.READY_OP, report_uninitialized_variables)
        if self._ready_for_local_init_op is None:
            self._ready_for_local_init_op = self.get_or_default(
                "ready_for_local_init_op",
                keys.READY_FOR_LOCAL_INIT_OP,
                lambda: report_uninitialized_variables(global_variables(), "report_uninitialized_variables_1"),
            )
        if self._local_init_op is None:
            self._local_init_op = self.get_or_default("local_init_op", keys.LOCAL_INIT_OP, self.default_local_init_op)
        if self._summary_op is None:
            self._summary_op = self.get_or_default("summary_op", keys.SUMMARY_OP, lambda: None)
        if self._saver is None:
            self._saver = self.get_or_default("saver", keys.SAVERS, lambda: Saver(allow_empty=True))
        self._saver.build()
        default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """The one entry of a collection of the default graph; where it is empty, what the constructor makes, put there.

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
        """A node that initializes local variables and tables."""
        tables = default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
        return group(local_variables_initializer(), *tables)

    @property
    def init_op(self) -> Any:
        """Gives the variables their first values."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Mapping[Any, Any] | None:
        """Fed to `init_op`."""
        return self._init_feed_dict

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        """The user's `init_fn` as a function of the session alone."""
        user = self._user_init_fn
        return None if user is None else lambda session: user(self, session)

    @property
    def ready_op(self) -> Any:
        """Names of what has no value yet."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        """Names of what `local_init_op` needs and has no value yet."""
        return self._ready_for_local_init_op

    @property
    def local_init_op(self) -> Any:
        """Run in every new session."""
        return self._local_init_op

    @property
    def local_init_feed_dict(self) -> Mapping[Any, Any] | None:
        """Fed to `local_init_op`."""
        return self._local_init_feed_dict

    @property
    def summary_op(self) -> Any:
        """What was given."""
        return self._summary_op

    @property
    def saver(self) -> Any:
        """Saves and restores the variables; None before `finalize`, unless it was given."""
        return self._saver
