"""Lookup tables that steps change, and that checkpoints hold."""

from __future__ import annotations

from typing import Any, Final

from aioflow.graph import dtypes
from aioflow.graph.default_graph import graph_of
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.ops.apply import TensorLike, convert_to_tensor, make, make_list, make_op
from aioflow.ops.lookup import definitions as _definitions  # noqa: F401  # of the ops that are made here
from aioflow.ops.lookup.interface import LookupInterface
from aioflow.ops.lookup.tables import container_of

__all__ = ["DenseHashTable", "ExportedTable", "MutableHashTable", "SavedColumn"]

_COLUMNS: Final = ("-keys", "-values")  # what their names in a checkpoint end with


class ExportedTable:
    """A table whose contents can be taken out and put back.

    Attributes:
        handle: Its handle.
        key_dtype, value_dtype: Of the columns.
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
        """What a checkpoint holds of the table.

        Args:
            name: Of the table, in the checkpoint.
        """
        return [SavedColumn(self, name, index) for index in range(len(_COLUMNS))]

    def exported(self) -> list[Tensor]:
        """All keys, and all values."""
        with self.graph.colocate_with(self.handle.op):
            return make_list("LookupTableExportV2", self.handle, Tkeys=self.key_dtype, Tvalues=self.value_dtype)

    def imported(self, keys: Tensor, values: Tensor) -> Operation:
        """A node that lets the table have these entries alone."""
        with self.graph.colocate_with(self.handle.op):
            return make_op("LookupTableImportV2", self.handle, keys, values)


class SavedColumn:
    """All keys of a table, or all values, as a checkpoint holds them.

    Attributes:
        name: In the checkpoint.
        table: Whose they are.
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
        """There may be any number of entries."""
        return TensorShape(None)

    @property
    def dims(self) -> None:
        """As `shape`."""
        return None


class MutableHashTable(LookupInterface):
    """A table whose entries come and go with the steps that run `insert` and `remove`.

    What one node does to it is done at once: a lookup finds the table as it is before or after an insertion.

    Args:
        key_dtype: int32, int64 or string.
        value_dtype: int32, int64, float32, float64, string or bool.
        default_value: The value of keys that are not there: a scalar, or a vector for a table of such vectors.
        name: Of its node; and of its entries in checkpoints, "name-keys" and "name-values".
        checkpoint: Whether a `Saver` saves it, unless it is told what to save.
        experimental_is_anonymous: Let every step have a table of its own, which no checkpoint has.
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
        attrs: dict[str, Any] = {"key_dtype": self._key_dtype, "value_dtype": self._value_dtype}
        kind = self._kinds[0]
        if self._default_value.dims != ():
            kind = self._kinds[1]
            attrs["value_shape"] = self._default_value.dims
        return self._node(kind, name, attrs, checkpoint, is_anonymous)

    def _node(self, kind: str, name: str, attrs: dict[str, Any], checkpoint: bool, is_anonymous: bool) -> Tensor:
        if is_anonymous:
            return make(f"Anonymous{kind}", *self._reserved(), name=name, **attrs)
        shared = {"container": container_of(), "use_node_name_sharing": checkpoint}
        return make(f"{kind}V2", *self._reserved(), name=name, **shared, **attrs)

    def _reserved(self) -> tuple[Tensor, ...]:
        return ()

    @property
    def name(self) -> str:
        """Name of the node that makes the table, without its scopes."""
        return self._handle.op.name.rpartition("/")[2]

    @property
    def graph(self) -> Graph:
        """The graph of the handle."""
        graph: Graph = self._handle.graph
        return graph

    @property
    def resource_handle(self) -> Tensor:
        """The handle."""
        return self._handle

    @property
    def default_value(self) -> Tensor:
        """The value of keys that are not there."""
        return self._default_value

    def size(self, name: str | None = None) -> Tensor:
        """How many entries there are, an int64 scalar."""
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_Size"):
            return make("LookupTableSizeV2", self._handle)

    def lookup(
        self, keys: TensorLike, dynamic_default_values: TensorLike | None = None, name: str | None = None
    ) -> Tensor:
        """The values of the keys.

        Args:
            keys: A tensor.
            dynamic_default_values: In the place of the default value: one of its shape, or one for each key.

        Returns:
            A tensor of the keys' shape, followed by that of a value.

        Raises, in a run:
            InvalidArgumentError: the default values do not fit.
        """
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_lookup_table_find"):
            wanted = convert_to_tensor(keys, self._key_dtype, name="keys")
            given = self._default_value if dynamic_default_values is None else dynamic_default_values
            return make("LookupTableFindV2", self._handle, wanted, convert_to_tensor(given, self._value_dtype))

    def insert(self, keys: TensorLike, values: TensorLike, name: str | None = None) -> Operation:
        """A node that gives keys values, in the place of those that they have.

        Args:
            keys: A tensor of any shape; of a key that comes twice, the last counts.
            values: Of the keys' shape, followed by that of a value.
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
        """A node that takes keys out, those that are there.

        Args:
            keys: A tensor of rank 1 or more.

        Raises:
            DTypeError: the keys have another dtype.
        """
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_lookup_table_remove"):
            return make_op("LookupTableRemoveV2", self._handle, convert_to_tensor(keys, self._key_dtype))

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys and their values, in the order in which the keys came."""
        with self.graph.as_default(), self.graph.name_scope(name or f"{self.name}_lookup_table_export_values"):
            keys, values = self.saved.exported()
        return keys, values


class DenseHashTable(MutableHashTable):
    """A `MutableHashTable` whose keys may be vectors, and whose `export` has a row for each of its buckets.

    Args:
        empty_key, deleted_key: Two keys that no entry has: they stand in buckets without entries.
        initial_num_buckets: A power of two, at least 4; by default 2**17.
        key_dtype, value_dtype, default_value, name, checkpoint, experimental_is_anonymous: As of `MutableHashTable`.
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
        attrs: dict[str, Any] = {"value_dtype": self._value_dtype, "value_shape": self._default_value.dims}
        if self._buckets is not None:
            attrs["initial_num_buckets"] = self._buckets
        return self._node("MutableDenseHashTable", name, attrs, checkpoint, is_anonymous)

    def _reserved(self) -> tuple[Tensor, ...]:
        return self._empty_key, self._deleted_key
