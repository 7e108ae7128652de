"""Scopes and collections of the default graph as functions, as in the published API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.graph import DeviceLike
from aioflow.graph.tensor_like import NodeLike

__all__ = [
    "add_to_collection",
    "add_to_collections",
    "colocate_with",
    "container",
    "control_dependencies",
    "device",
    "get_collection",
    "get_collection_ref",
    "init_scope",
    "name_scope",
    "op_scope",
]


def device(device_name_or_function: DeviceLike) -> AbstractContextManager[None]:
    """Request a device for new nodes: a name, a function of the node, or None to cancel the outer scopes."""
    return default_graph().device(device_name_or_function)


def control_dependencies(control_inputs: Iterable[NodeLike] | None) -> AbstractContextManager[None]:
    """Make new nodes wait for these nodes or tensors; None cancels the outer blocks."""
    return default_graph().control_dependencies(control_inputs)


def colocate_with(op: NodeLike | None, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """Place new nodes on the device of `op`."""
    return default_graph().colocate_with(op, ignore_existing)


def container(container_name: str) -> AbstractContextManager[str]:
    """Keep the resources of new stateful nodes in the container with this name."""
    return default_graph().container(container_name)


@contextmanager
def name_scope(
    name: str | None, default_name: str | None = None, values: Iterable[object] | None = None
) -> Iterator[str]:
    """Prefix the names of new nodes, and make the graph of `values` the default.

    Args:
        name: The prefix; if None, `default_name` is used. A name that ends in "/" is used as it is.
        default_name: The prefix if `name` is None.
        values: Tensors that the nodes in the block will read.

    Yields:
        The full prefix with its "/".

    Raises:
        InvalidArgumentError: `values` is given without a name or default, or `values` belong to several graphs.
    """
    chosen = default_name if name is None else name
    if chosen is None and values is not None:
        raise InvalidArgumentError("a name scope needs a name", expected="name or default_name", actual=None)
    graph = graph_of(values or ())
    with graph.as_default(), graph.name_scope(chosen) as scope:
        yield scope


def op_scope(
    values: Iterable[object], name: str | None, default_name: str | None = None
) -> AbstractContextManager[str]:
    """Open a `name_scope`; an older form with the values first."""
    return name_scope(name, default_name=default_name, values=values)


@contextmanager
def init_scope() -> Iterator[None]:
    """Make new nodes ignore the outer control dependencies, as initializers require."""
    with default_graph().control_dependencies(None):
        yield


def add_to_collection(name: str, value: object) -> None:
    """Append `value` to the default graph's collection with this name."""
    default_graph().add_to_collection(name, value)


def add_to_collections(names: Iterable[str] | str, value: object) -> None:
    """Append `value` to each of the default graph's collections."""
    default_graph().add_to_collections(names, value)


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """Return a copy of the default graph's collection.

    With `scope`, a regular expression, it contains only the items whose names match.
    """
    return default_graph().get_collection(key, scope)


def get_collection_ref(key: str) -> list[Any]:
    """Return the default graph's collection itself."""
    return default_graph().get_collection_ref(key)
