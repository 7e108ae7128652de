"""The node that initializes all tables of a graph."""

from __future__ import annotations

from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Operation
from aioflow.ops.core import group, no_op

__all__ = ["initialize_all_tables", "tables_initializer"]


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """Return a node that initializes all static tables of the default graph.

    Tables that have their entries already stay unchanged. A `MonitoredSession` runs the node in every new session, as
    part of its `local_init_op`.
    """
    nodes = default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
    return group(*nodes, name=name) if nodes else no_op(name=name)


def initialize_all_tables(name: str = "init_all_tables") -> Operation:
    """Return `tables_initializer(name)`. The older name."""
    return tables_initializer(name)
