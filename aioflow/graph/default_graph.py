"""The default graph (of the innermost `as_default` block, or else one per process), and the graph of given values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aioflow.concurrency.forking import Locked
from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.graph.graph import GRAPHS, Graph, Operation
from aioflow.graph.lookup_errors import of_another_graph


class _ProcessDefault(Locked):
    """The default graph outside of `as_default` blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = _new_graph()  # the one to use
        self._own = self.graph
        self._installed: list[Graph] = []

    def install(self, graph: Graph) -> None:
        """Make `graph` the default until it is uninstalled."""
        with self.lock:
            self._installed.append(graph)
            self.graph = graph

    def uninstall(self, graph: Graph) -> None:
        """End the last `install` of `graph`, in any order with those of other graphs."""
        with self.lock:
            position = len(self._installed) - 1 - self._installed[::-1].index(graph)
            del self._installed[position]
            self.graph = self._installed[-1] if self._installed else self._own

    def renew(self) -> None:
        """Replace the graph by a new one. Raise FailedPreconditionError if another graph is installed."""
        with self.lock:
            if self._installed:
                raise FailedPreconditionError(
                    "reset_default_graph cannot be called while an interactive session has a graph of its own",
                    expected="`await session.close()` first",
                    actual=repr(self.graph),
                )
            self.graph = self._own = _new_graph()


def _new_graph() -> Graph:
    graph = Graph()
    graph.source = None  # the user who imports aioflow has not created it
    return graph


_PROCESS: Final = _ProcessDefault()


install_graph: Final = _PROCESS.install
uninstall_graph: Final = _PROCESS.uninstall


def default_graph() -> Graph:
    """Return the graph to which new nodes are added."""
    return GRAPHS.innermost() or _PROCESS.graph


get_default_graph: Final = default_graph  # the public name

_SEVERAL: Final = (list, tuple)  # a constant, because `list | tuple` would be built anew for each input of each node


def graph_of(values: Iterable[Any]) -> Graph:
    """Return the graph that these values belong to, or the default one if none belongs to a graph.

    Args:
        values: Tensors, nodes, variables and the like, and lists and tuples of them. Other values are ignored.

    Raises:
        InvalidArgumentError: they belong to several graphs.
    """
    found: Graph | None = None
    for value in values:
        for each in value if isinstance(value, _SEVERAL) else (value,):
            graph = getattr(each, "graph", None)
            if graph is None or graph is found or not isinstance(graph, Graph):
                continue
            if found is not None:
                raise _of_another(found, each, graph)
            found = graph
    return default_graph() if found is None else found


def _of_another(graph: Graph, value: Any, actual: Graph) -> InvalidArgumentError:
    op = getattr(value, "op", value)
    if isinstance(op, Operation):
        return of_another_graph(graph, op, f"{'node' if op is value else 'tensor'} {value.name!r}")
    return InvalidArgumentError(f"{value!r} is from another graph", expected=repr(graph), actual=repr(actual))


def reset_default_graph() -> None:
    """Replace the process's default graph with a new, empty one.

    Raises:
        FailedPreconditionError: a `with graph.as_default()` block is open, or an interactive session has a graph of its
            own.
    """
    if GRAPHS.innermost() is not None:
        raise FailedPreconditionError("reset_default_graph cannot be called inside `with graph.as_default()`")
    _PROCESS.renew()
