"""What gives static tables their entries: tensors, or the lines of a text file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, Final

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.default_graph import graph_of
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import GraphKeys, Operation, Tensor
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make_op
from aioflow.ops.lookup import definitions as _definitions  # noqa: F401  # of the ops that are made here
from aioflow.ops.lookup.interface import LookupInterface, OfKeysAndValues

__all__ = ["KeyValueTensorInitializer", "TableInitializer", "TextFileIndex", "TextFileInitializer"]


class TableInitializer(OfKeysAndValues, ABC):
    """What a static table gets its entries from.

    Args:
        key_dtype, value_dtype: Of the table.
    """

    @property
    def shared_name(self) -> str:
        """What tables are called that get the same entries; "" where it is not known which do."""
        return ""

    def initialize(self, table: LookupInterface) -> Operation:
        """The node that gives the table its entries; it joins the collection TABLE_INITIALIZERS.

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
        with graph.as_default(), graph.control_dependencies(None):
            node = self._node(table.resource_handle)
        graph.add_to_collection(GraphKeys.TABLE_INITIALIZERS, node)
        return node

    @abstractmethod
    def _node(self, table_handle: Tensor) -> Operation: ...


class KeyValueTensorInitializer(TableInitializer):
    """Entries from two tensors.

    Args:
        keys, values: [n] each. A key that comes twice has to have one value.
        key_dtype, value_dtype: Their dtypes, where these do not follow from them.
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
    """What of a line is a key or a value, beside the numbers of columns, which count from 0.

    Attributes:
        WHOLE_LINE: The line without its end: a string, or an integer.
        LINE_NUMBER: Its number, from 0: an int64.
    """

    WHOLE_LINE = -2
    LINE_NUMBER = -1


_WHAT: Final = "an index >= 0, TextFileIndex.WHOLE_LINE or TextFileIndex.LINE_NUMBER"


class TextFileInitializer(TableInitializer):
    """Entries from a text file, one a line. Where the table is initialized, the file has to be.

    Args:
        filename: A path or URL; a string tensor too.
        key_dtype, key_index: Of the keys, and where in a line they are: see `TextFileIndex`.
        value_dtype, value_index: The same of the values.
        vocab_size: How many lines count; None for all.
        delimiter: One character, between columns.
        value_index_offset: Is added to numbers of lines.

    Raises:
        InvalidArgumentError: an argument does not fit the others.

    Raises, when it is run:
        NotFoundError, PermissionDeniedError, …: the file cannot be read.
        InvalidArgumentError: a line is empty, has too few columns or no number; or there are fewer than `vocab_size`.
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
        """The file, and what of it is taken, as TensorFlow has it: tables of the same are one."""
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


def _as_text(part: Any) -> str:
    return part.name if isinstance(part, Tensor) else str(part)


def _check_index(what: str, index: Any, dtype: DType) -> None:
    check_kind(index, int, what, _WHAT)
    if index < TextFileIndex.WHOLE_LINE:
        raise InvalidArgumentError(f"{what} is no part of a line", expected=_WHAT, actual=index)
    if index == TextFileIndex.LINE_NUMBER and dtype is not dtypes.int64:
        raise InvalidArgumentError(f"{what} is the number of a line", expected="int64", actual=dtype.name)
    if index == TextFileIndex.WHOLE_LINE and not dtype.is_integer and dtype is not dtypes.string:
        raise InvalidArgumentError(f"{what} is a whole line", expected="a string or an integer", actual=dtype.name)
