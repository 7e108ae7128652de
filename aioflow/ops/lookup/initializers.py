"""Initializers of static tables, with entries from tensors or from the lines of a text file, and base classes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, Final

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make_op
from aioflow.ops.core import group, no_op
from aioflow.ops.lookup import definitions as _definitions  # noqa: F401  # defines the ops used here

__all__ = ["initialize_all_tables", "tables_initializer"]


# ── base classes of tables and of their initializers ──────────────────────────────────────────────────────────────────


class OfKeysAndValues:
    """A base class for objects with keys and values.

    Args:
        key_dtype, value_dtype: Dtype of a key and of a value.
    """

    def __init__(self, key_dtype: DTypeLike, value_dtype: DTypeLike) -> None:
        self._key_dtype = dtypes.as_dtype(key_dtype)
        self._value_dtype = dtypes.as_dtype(value_dtype)

    @property
    def key_dtype(self) -> DType:
        """Dtype of the keys."""
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        """Dtype of the values."""
        return self._value_dtype


class LookupInterface(OfKeysAndValues, ABC):
    """A table of values by key. Like a variable, it outlives a step and a session.

    Args:
        key_dtype, value_dtype: Dtype of a key and of a value.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the node that creates the table, without its scopes."""

    @property
    @abstractmethod
    def resource_handle(self) -> Tensor:
        """The resource handle of the table."""

    @abstractmethod
    def size(self, name: str | None = None) -> Tensor:
        """Return the number of entries, an int64 scalar."""

    @abstractmethod
    def lookup(self, keys: Any) -> Any:
        """Return the values of the keys, and a default value for missing keys."""

    def __getitem__(self, keys: Any) -> Any:
        """Return `lookup(keys)`."""
        return self.lookup(keys)


# ── initializers ──────────────────────────────────────────────────────────────────────────────────────────────────────


class TableInitializer(OfKeysAndValues, ABC):
    """The source of the entries of a static table.

    Args:
        key_dtype, value_dtype: Dtypes of the table.
    """

    @property
    def shared_name(self) -> str:
        """The name shared by all tables with these entries; "" if the entries cannot be identified."""
        return ""

    def initialize(self, table: LookupInterface) -> Operation:
        """Return the node that fills the table, and add it to the collection TABLE_INITIALIZERS.

        Raises:
            DTypeError: the table has other dtypes.
        """
        for what, have, wanted in (
            ("keys", self._key_dtype, table.key_dtype),
            ("values", self._value_dtype, table.value_dtype),
        ):
            if have is not wanted:
                raise DTypeError(f"the {what} of the table have another dtype", expected=wanted.name, actual=have.name)
        graph = table.resource_handle.graph
        # The node runs in a step of its own, which must not run the nodes that an open block waits for.
        with graph.as_default(), graph.control_dependencies(None):
            node = self._node(table.resource_handle)
        graph.add_to_collection(GraphKeys.TABLE_INITIALIZERS, node)
        return node

    @abstractmethod
    def _node(self, table_handle: Tensor) -> Operation: ...


class KeyValueTensorInitializer(TableInitializer):
    """Entries from two tensors.

    Args:
        keys, values: [n] each. A key that occurs twice must have the same value both times.
        key_dtype, value_dtype: Their dtypes, if they do not follow from `keys` and `values`.
    """

    def __init__(
        self,
        keys: TensorLike,
        values: TensorLike,
        key_dtype: DTypeLike | None = None,
        value_dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> None:
        graph = graph_of([keys, values])
        with graph.as_default(), graph.control_dependencies(None):
            self._keys = convert_to_tensor(keys, key_dtype, name="keys")
            self._values = convert_to_tensor(values, value_dtype, name="values")
        self._name = "key_value_init" if name is None else name
        super().__init__(self._keys.dtype, self._values.dtype)

    def _node(self, table_handle: Tensor) -> Operation:
        with table_handle.graph.name_scope(self._name):
            return make_op("LookupTableImportV2", table_handle, self._keys, self._values)


class TextFileIndex:
    """Special positions of a key or value in a line. Other positions are column numbers, counted from 0.

    Attributes:
        WHOLE_LINE: The line without its line ending, as a string or an integer.
        LINE_NUMBER: The number of the line, counted from 0, as an int64.
    """

    WHOLE_LINE = -2
    LINE_NUMBER = -1


_WHAT: Final = "an index >= 0, TextFileIndex.WHOLE_LINE or TextFileIndex.LINE_NUMBER"


class TextFileInitializer(TableInitializer):
    """Entries from a text file, one per line. The file is read on the machine that initializes the table.

    Args:
        filename: A path or URL, also as a string tensor.
        key_dtype: Dtype of the keys.
        key_index: Position of the key in a line: see `TextFileIndex`.
        value_dtype: Dtype of the values.
        value_index: Position of the value in a line.
        vocab_size: Number of lines to read; None reads all.
        delimiter: The character between columns.
        value_index_offset: Number added to line numbers.

    Raises:
        InvalidArgumentError: an argument does not fit the others.

    Raises, when it is run:
        NotFoundError, PermissionDeniedError, …: the file cannot be read.
        InvalidArgumentError: a line is empty, has too few columns, or a field is not a number; or there are too few
            lines for `vocab_size`.
        OutOfRangeError: the file is empty.
    """

    def __init__(
        self,
        filename: TensorLike | os.PathLike[str],
        key_dtype: DTypeLike,
        key_index: int,
        value_dtype: DTypeLike,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        self._filename: Any = os.fspath(filename) if isinstance(filename, os.PathLike) else filename
        if not isinstance(self._filename, Tensor) and not self._filename:
            raise InvalidArgumentError("a table needs a file", expected="its name", actual=repr(filename))
        super().__init__(key_dtype, value_dtype)
        _check_index("key_index", key_index, self.key_dtype)
        _check_index("value_index", value_index, self.value_dtype)
        if vocab_size is not None and vocab_size <= 0:
            raise InvalidArgumentError("vocab_size must be positive", expected=">= 1, or None", actual=vocab_size)
        self._key_index = key_index
        self._value_index = value_index
        self._vocab_size = vocab_size
        self._delimiter = delimiter
        self._name = name
        self._offset = value_index_offset

    @property
    def shared_name(self) -> str:
        """The file name and the read columns, in TensorFlow's format.

        Tables with equal names share their entries.
        """
        count = (self._vocab_size,) if self._vocab_size else ()
        offset = (self._offset,) if self._offset else ()
        parts = (self._filename, *count, self._key_index, self._value_index, *offset)
        return "_".join(("hash_table", *map(_as_text, parts)))

    def _node(self, table_handle: Tensor) -> Operation:
        with table_handle.graph.name_scope(self._name or "text_file_init"):
            given = self._filename
            file = given if isinstance(given, Tensor) else constant(given, dtypes.string, name="asset_filepath")
            node = make_op(
                "InitializeTableFromTextFileV2",
                table_handle,
                file,
                key_index=self._key_index,
                value_index=self._value_index,
                vocab_size=-1 if self._vocab_size is None else self._vocab_size,
                delimiter=self._delimiter,
                offset=self._offset,
            )
        if file.op.type == "Const":
            table_handle.graph.add_to_collection(GraphKeys.ASSET_FILEPATHS, file)
        return node


def _as_text(part: object) -> str:
    return part.name if isinstance(part, Tensor) else str(part)


def _check_index(what: str, index: int, dtype: DType) -> None:
    check_kind(index, int, what, _WHAT)
    if index < TextFileIndex.WHOLE_LINE:
        raise InvalidArgumentError(f"{what} is no part of a line", expected=_WHAT, actual=index)
    if index == TextFileIndex.LINE_NUMBER and dtype is not dtypes.int64:
        raise InvalidArgumentError(f"{what} is the number of a line", expected="int64", actual=dtype.name)
    if index == TextFileIndex.WHOLE_LINE and not dtype.is_integer and dtype is not dtypes.string:
        raise InvalidArgumentError(f"{what} is a whole line", expected="a string or an integer", actual=dtype.name)


# ── the node that initializes all tables of a graph ───────────────────────────────────────────────────────────────────


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
