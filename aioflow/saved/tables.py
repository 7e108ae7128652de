"""Lookup tables of a model folder: their keys and values are stored among the weights, whatever their initializers."""

from __future__ import annotations

from aioflow.errors import DataLossError
from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.graphdef import GraphDef
from aioflow.ops.apply import constant, make_list
from aioflow.ops.lookup.definitions import is_kept_table
from aioflow.ops.lookup.mutable import ExportedTable, SavedColumn
from aioflow.train.saved_variables import Saved, check_saved


def columns_of(graph: Graph, definition: GraphDef) -> list[SavedColumn]:
    """Return the stored columns of the tables of a definition, whose names are those of the graph's nodes."""
    nodes = [graph.get_operation_by_name(node.name) for node in definition.nodes if is_kept_table(node.op)]
    return [column for node in nodes for column in _columns(node)]


def _columns(node: Operation) -> list[SavedColumn]:
    """Return the columns for keys and values. Their names contain a colon, so they never equal a variable's name."""
    table = ExportedTable(node.outputs[0], node.attrs["key_dtype"], node.attrs["value_dtype"])
    return table.columns(f"{node.name}:table")


def exports(columns: list[SavedColumn]) -> list[Tensor]:
    """Return tensors with the columns. Both columns of a table come from one export, so they are consistent."""
    made: dict[ExportedTable, list[Tensor]] = {}
    for column in columns:
        if column.table not in made:
            # Outside of control dependencies that may be open in the caller's code.
            with column.graph.as_default(), column.graph.control_dependencies(None):
                made[column.table] = column.table.exported()
    return [made[column.table][column.index] for column in columns]


def table_initializers(graph: Graph, prefix: str | None) -> list[Operation]:
    """Create operations that fill the tables of a graph, and add them to the collection TABLE_INITIALIZERS.

    Args:
        graph: The graph.
        prefix: Prefix of the checkpoint with the weights; None if there is no checkpoint.

    Raises:
        DataLossError: there are tables, but no checkpoint.
        NotFoundError, DTypeError: the checkpoint lacks columns, or has other dtypes.
    """
    tables = [_columns(node) for node in graph.get_operations() if is_kept_table(node.type)]
    columns = [column for table in tables for column in table]
    if not columns:
        return []
    if prefix is None:
        raise DataLossError("the tables have no entries", expected=[c.name for c in columns][:8], actual="no weights")
    check_saved(prefix, [Saved(column.name, column) for column in columns], reshape=False)
    with graph.as_default(), graph.name_scope("restored_tables"):
        names = constant([column.name for column in columns], dtypes.string, name="tensor_names")
        slices = constant([""] * len(columns), dtypes.string, name="slices")
        wanted = [column.dtype for column in columns]
        values = make_list("RestoreV2", constant(prefix, name="prefix"), names, slices, dtypes=wanted)
        # Each table has two columns, keys and values, in this order.
        made = [table[0].table.imported(*values[2 * i : 2 * i + 2]) for i, table in enumerate(tables)]
    for node in made:
        graph.add_to_collection(GraphKeys.TABLE_INITIALIZERS, node)
    return made
