"""The default graph: the innermost `as_default` block's, or else one that the process shares."""

from __future__ import annotations

from typing import Final

from aioflow.errors import FailedPreconditionError
from aioflow.forking import Locked
from aioflow.graph.graph import Graph
from aioflow.graph.scopes import innermost_graph

__all__ = ["default_graph", "get_default_graph", "reset_default_graph"]


class _ProcessDefault(Locked):
    """The graph that is the default where no `as_default` is open."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = _new_graph()


def _new_graph() -> Graph:
    graph = Graph()
    graph.source = None  # whoever imports aioflow has not made it
    return graph


_PROCESS: Final = _ProcessDefault()


def default_graph() -> Graph:
    """The graph that new nodes go to."""
    return innermost_graph() or _PROCESS.graph


get_default_graph: Final = default_graph  # its public name


def reset_default_graph() -> None:
    """Put a new, empty graph in the place of the process's default one.

    Raises:
        FailedPreconditionError: a `with graph.as_default()` is open here.
    """
    if innermost_graph() is not None:
        raise FailedPreconditionError("reset_default_graph cannot be called inside `with graph.as_default()`")
    with _PROCESS.lock:
        _PROCESS.graph = _new_graph()
