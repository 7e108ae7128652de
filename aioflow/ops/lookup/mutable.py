"""Mutable lookup tables: steps change them, and checkpoints save them."""

from __future__ import annotations

from typing import Final

from aioflow.graph import dtypes
from aioflow.graph.default_graph import graph_of
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.graph.signature.attributes import Attrs
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list, make_op
from aioflow.ops.lookup import definitions as _definitions  # noqa: F401  # defines the ops used here
from aioflow.ops.lookup.initializers import LookupInterface
from aioflow.ops.lookup.tables import container_of

_COLUMNS: Final = ("-keys", "-values")  # suffixes of the names in a checkpoint


class ExportedTable:
    """A table whose contents can be exported and imported.

    Attributes:
        handle: Resource handle of the table.
        key_dtype, value_dtype: Dtypes of the two columns.
    """

    def __init__(self, handle: Tensor, key_dtype: DType, value_dtype: DType) -> None:
        self.handle = handle
        self.key_dtype = key_dtype
        self.value_dtype = value_dtype

    @property
    def graph(self) -> Graph:
        """The graph of the handle."""
        graph: Graph = self.handle.graph
        return graph

    def columns(self, name: str) -> list[SavedColumn]:
        """Return the columns that a checkpoint saves; `name` is the name of the table in the checkpoint."""
        return [SavedColumn(self, name, index) for index in range(len(_COLUMNS))]

    def exported(self) -> list[Tensor]:
        """Return all keys and all values."""
        with self.graph.colocate_with(self.handle.op):
            # One node exports both columns, so that they are of the same moment.
            return make_list("LookupTableExportV2", self.handle, Tkeys=self.key_dtype, Tvalues=self.value_dtype)

    def imported(self, *columns: Tensor) -> Operation:
        """Return a node that replaces all entries of the table by these columns."""
        with self.graph.colocate_with(self.handle.op):
            return make_op("LookupTableImportV2", self.handle, *columns)


class SavedColumn:
    """All keys or all values of a table, as a checkpoint saves them.

    Attributes:
        name: Name in the checkpoint.
        table: The table of the column.
        index: 0 for the keys, 1 for the values.
    """

    def __init__(self, table: ExportedTable, name: str, index: int) -> None:
        self.name = name + _COLUMNS[index]
        self.table = table
        self.index = index

    @property
    def handle(self) -> Tensor:
        """The table's handle."""
        return self.table.handle

    @property
    def graph(self) -> Graph:
        """The graph of the handle."""
        return self.table.graph

    @property
    def dtype(self) -> DType:
        """Dtype of the tensor."""
        return (self.table.key_dtype, self.table.value_dtype)[self.index]

    @property
    def shape(self) -> TensorShape:
        """Unknown: a table has any number of entries."""
        return TensorShape(None)

    @property
    def dims(self) -> None:
        """None, like `shape`."""
        return None


class MutableHashTable(LookupInterface):
    """A table that steps change by running `insert` and `remove`.

    Each op is atomic: a lookup reads the table as it is before or after an insertion.

    Args:
        key_dtype: int32, int64 or string.
        value_dtype: int32, int64, float32, float64, string or bool.
        default_value: The value of missing keys: a scalar, or a vector for a table of such vectors.
        name: Name of the node. The checkpoint entries are "name-keys" and "name-values".
        checkpoint: Whether a `Saver` without an explicit list saves the table.
        experimental_is_anonymous: Whether each step has a table of its own, which is not saved in checkpoints.
    """

    _kinds = ("MutableHashTable", "MutableHashTableOfTensors")

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(key_dtype, value_dtype)
        graph = graph_of([default_value])
        with graph.as_default(), graph.control_dependencies(None):
            self._default_value = convert_to_tensor(default_value, self._value_dtype)
            self._handle = self._made(name, checkpoint, experimental_is_anonymous)
        self.saved = ExportedTable(self._handle, self._key_dtype, self._value_dtype)
        self.saved_name = name
        if checkpoint and not experimental_is_anonymous:
            graph.add_to_collection(GraphKeys.SAVEABLE_OBJECTS, self)

    def _made(self, name: str, checkpoint: bool, is_anonymous: bool) -> Tensor:
        attrs: dict[str, object] = {"key_dtype": self._key_dtype, "value_dtype": self._value_dtype}
        kind = self._kinds[0]
        if self._default_value.dims != ():
            # A default value that is no scalar makes it a table of tensors.
            kind = self._kinds[1]
            attrs["value_shape"] = self._default_value.dims
        return self._node(kind, name, attrs, checkpoint, is_anonymous)

    def _node(self, kind: str, name: str, attrs: Attrs, checkpoint: bool, is_anonymous: bool) -> Tensor:
        if is_anonymous:
            return make(f"Anonymous{kind}", *self._reserved(), name=name, **attrs)
        shared = {"container": container_of(), "use_node_name_sharing": checkpoint}
        return make(f"{kind}V2", *self._reserved(), name=name, **shared, **attrs)

    def _reserved(self) -> tuple[Tensor, ...]:
        return ()

    @property
    def name(self) -> str:
        """Name of the node that creates the table, without its scopes."""
        return self._handle.op.name.rpartition("/")[2]

    @property
    def graph(self) -> Graph:
        """The graph of the handle."""
        graph: Graph = self._handle.graph
        return graph

    @property
    def resource_handle(self) -> Tensor:
        """The resource handle of the table."""
        return self._handle

    @property
    def default_value(self) -> Tensor:
        """The value of missing keys."""
        return self._default_value

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of entries, an int64 scalar."""
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_Size"):
            return make("LookupTableSizeV2", self._handle)

    def lookup(
        self, keys: TensorLike, dynamic_default_values: TensorLike | None = None, name: str | None = None
    ) -> Tensor:
        """Return the values of the keys.

        Args:
            keys: A tensor.
            dynamic_default_values: Replaces the default value: one value of its shape, or one for each key.
            name: Name scope of the nodes.

        Returns:
            A tensor of the shape of the keys followed by the shape of a value.

        Raises, in a run:
            InvalidArgumentError: the default values do not fit.
        """
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_lookup_table_find"):
            wanted = convert_to_tensor(keys, self._key_dtype, name="keys")
            given = self._default_value if dynamic_default_values is None else dynamic_default_values
            return make("LookupTableFindV2", self._handle, wanted, convert_to_tensor(given, self._value_dtype))

    def insert(self, keys: TensorLike, values: TensorLike, name: str | None = None) -> Operation:
        """Return a node that sets the values of keys, replacing the values of existing keys.

        Args:
            keys: A tensor of any shape. If a key occurs twice, the last value counts.
            values: A tensor of the shape of the keys followed by the shape of a value.
            name: Name scope of the node.
        """
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_lookup_table_insert"):
            wanted = convert_to_tensor(keys, self._key_dtype, name="keys")
            return make_op(
                "LookupTableInsertV2",
                self._handle,
                wanted,
                convert_to_tensor(values, self._value_dtype, name="values"),
            )

    def remove(self, keys: TensorLike, name: str | None = None) -> Operation:
        """Return a node that removes keys. Missing keys are ignored.

        Args:
            keys: A tensor of rank 1 or more.
            name: Name scope of the node.

        Raises:
            DTypeError: the keys have another dtype.
        """
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_lookup_table_remove"):
            return make_op("LookupTableRemoveV2", self._handle, convert_to_tensor(keys, self._key_dtype))

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """Return all keys and their values, in the order of insertion."""
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_lookup_table_export_values"):
            keys, values = self.saved.exported()
        return keys, values


class DenseHashTable(MutableHashTable):
    """A `MutableHashTable` whose keys may be vectors, and whose `export` returns a row for each of its buckets.

    Args:
        empty_key, deleted_key: Two keys that no entry has. They mark buckets without entries.
        initial_num_buckets: A power of two, at least 4; by default 2**17.
        key_dtype, value_dtype, default_value, name, checkpoint, experimental_is_anonymous: As for `MutableHashTable`.
    """

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        empty_key: TensorLike,
        deleted_key: TensorLike,
        initial_num_buckets: int | None = None,
        name: str = "MutableDenseHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        dtype = dtypes.as_dtype(key_dtype)
        graph = graph_of([default_value, empty_key, deleted_key])
        with graph.as_default(), graph.control_dependencies(None):
            self._empty_key = convert_to_tensor(empty_key, dtype, name="empty_key")
            self._deleted_key = convert_to_tensor(deleted_key, dtype, name="deleted_key")
        self._buckets = initial_num_buckets
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint, experimental_is_anonymous)

    def _made(self, name: str, checkpoint: bool, is_anonymous: bool) -> Tensor:
        attrs: dict[str, object] = {"value_dtype": self._value_dtype, "value_shape": self._default_value.dims}
        if self._buckets is not None:
            attrs["initial_num_buckets"] = self._buckets
        return self._node("MutableDenseHashTable", name, attrs, checkpoint, is_anonymous)

    def _reserved(self) -> tuple[Tensor, ...]:
        return self._empty_key, self._deleted_key
