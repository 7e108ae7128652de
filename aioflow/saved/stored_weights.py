"""The weights of a model folder, each verified against its digest: variables, large constants, and lookup tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from aioflow.arguments import brief
from aioflow.errors import DataLossError, OpError
from aioflow.formats.checkpoint import CheckpointReader, data_file
from aioflow.formats.manifests import MANIFEST as CHECKPOINT_MANIFEST
from aioflow.formats.manifests import files_of, read_manifest
from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.graphdef import GraphDef, NodeDef, TensorData
from aioflow.interop import safetensors
from aioflow.memory.values import Array
from aioflow.ops.apply import constant, make_list
from aioflow.ops.lookup.definitions import is_kept_table
from aioflow.ops.lookup.mutable import ExportedTable, SavedColumn
from aioflow.saved.manifest import FileEntry
from aioflow.saved.places import ModelFolder
from aioflow.train.saved_variables import Saved, check_saved


class StoredWeights:
    """The checkpoint of a folder. Its manifest is verified, and its files are inside the folder.

    A local file is mapped by the constructor: the values stay valid if the file is replaced or deleted.

    Attributes:
        prefix: The full name of the checkpoint.

    Raises:
        OpError: as for `ModelFolder.read`; a file leads out of the folder, is damaged, or needs a later release.
    """

    def __init__(self, place: ModelFolder, weights: FileEntry) -> None:
        # First the digest of the manifest, then what it says about the files.
        place.check(weights)
        self._reader: CheckpointReader | None = None
        self._store, self._name = place.store(weights.name.removesuffix(CHECKPOINT_MANIFEST))
        self.prefix = place.path(weights.name.removesuffix(CHECKPOINT_MANIFEST))
        manifest = read_manifest(self._store, self._name)
        try:
            for file in files_of(manifest):
                place.check_inside(file)
        except ValueError as error:
            if isinstance(error, OpError):
                raise
            raise DataLossError(f"{self.prefix} is damaged", expected="a checkpoint", actual=str(error)) from error
        # None in a store, and for a checkpoint with values in blocks.
        self._file = None if place.is_remote or manifest["version"] != 1 else data_file(self.prefix, manifest)
        if self._file is not None:
            # While the version is known to exist: a mapped file outlives its deletion.
            self._file.map_whole()

    def are_there(self) -> bool:
        """Return True if the checkpoint has not been deleted."""
        return self._store.size(self._name + CHECKPOINT_MANIFEST) is not None

    def constant(self, name: str) -> Array:
        """Return a constant, as an array over the mapped file, or in separate memory if no file is mapped.

        Raises:
            NotFoundError: there is no constant of that name.
            DataLossError: the bytes are not those that were written.
        """
        if self._file is not None:
            self._file.check(name)
            return self._file.map(name)
        self._reader = self._reader or CheckpointReader(self.prefix)
        return self._reader.read(name)

    def values(self, names: list[str]) -> safetensors.Weights | None:
        """Return the values of variables as arrays over the mapped file, or None if no file is mapped.

        Raises:
            DataLossError: the file has been changed since it was written.
        """
        if self._file is None:
            return None
        for name in names:
            self._file.check(name)
        return safetensors.Weights({str(self._file.path): self._file}, dict.fromkeys(names, self._file))


# ── large constants, stored under names of their own, to which the graph refers ───────────────────────────────────────
#
# The graph stays small, constants are mapped like the weights, and equal ones are stored once.


LARGE: Final = 4096  # in bytes: smaller constants stay in the graph
_STORED: Final = "_stored_"  # prefix of an attribute whose value is the name of a stored constant


def without_constants(definition: GraphDef) -> tuple[GraphDef, dict[str, Array]]:
    """Return the definition without its large constants, and the constants by name.

    The name states where the first such constant is: "constant:node:attribute", or "constant:function:node:attribute".
    No variable has such a name, since names of nodes contain no colons.
    """
    names: dict[TensorData, str] = {}

    def taken(nodes: Iterable[NodeDef], where: str = "") -> tuple[NodeDef, ...]:
        return tuple(_without(node, where, names) for node in nodes)

    # `names` is filled by both calls, so constants of functions and of the graph are shared.
    nodes = taken(definition.nodes)
    functions = tuple(replace(f, nodes=taken(f.nodes, f"{f.name}:")) for f in definition.functions)
    values = {name: data.to_array() for data, name in names.items()}
    return replace(definition, nodes=nodes, functions=functions), values


def _without(node: NodeDef, where: str, names: dict[TensorData, str]) -> NodeDef:
    large = [key for key, value in node.attrs.items() if isinstance(value, TensorData) and _is_large(value)]
    if not large:
        return node
    attrs: dict[str, Any] = dict(node.attrs)
    for key in large:
        # Equal constants share the name of the first.
        attrs[_STORED + key] = names.setdefault(attrs.pop(key), f"constant:{where}{node.name}:{key}")
    return replace(node, attrs=attrs)


def _is_large(value: TensorData) -> bool:
    """Return True if the constant is moved to the weights.

    Quantized constants stay in the graph: among the weights they would be plain integers.
    """
    # A tuple holds strings, which are no bytes of a tensor file.
    return not isinstance(value.data, tuple) and len(value.data) >= LARGE and not value.dtype.is_quantized


def with_constants(definition: GraphDef, read: Callable[[str], Array]) -> GraphDef:
    """Return the definition with its stored constants. Calls `read` once for each name.

    Raises:
        DataLossError: the name of a constant is not text.
    """
    found: dict[str, TensorData] = {}
    for name in _spoken_of(definition):
        if not isinstance(name, str):
            raise DataLossError("a constant has no name", expected="text", actual=brief(name))
        if name not in found:
            found[name] = TensorData.of(read(name))
    if not found:
        return definition
    functions = tuple(replace(f, nodes=tuple(_with(node, found) for node in f.nodes)) for f in definition.functions)
    return replace(definition, nodes=tuple(_with(node, found) for node in definition.nodes), functions=functions)


def _spoken_of(definition: GraphDef) -> Iterator[object]:
    for node in (*definition.nodes, *(node for function in definition.functions for node in function.nodes)):
        yield from (value for key, value in node.attrs.items() if key.startswith(_STORED))


def _with(node: NodeDef, found: Mapping[str, TensorData]) -> NodeDef:
    if not any(key.startswith(_STORED) for key in node.attrs):
        return node
    attrs: dict[str, Any] = {
        key.removeprefix(_STORED): found[str(value)] if key.startswith(_STORED) else value
        for key, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)


# ── lookup tables: their keys and values, whatever their initializers ─────────────────────────────────────────────────


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
