"""Static lookup tables: an initializer fills them once, and they never change after that."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from typing import Any, overload

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.scopes import current_scope
from aioflow.graph.signature.attributes import Attrs
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.core import no_op
from aioflow.ops.lookup import definitions as _definitions  # noqa: F401  # defines the ops used here
from aioflow.ops.lookup.initializers import LookupInterface, TableInitializer
from aioflow.ops.math.complex import cast
from aioflow.ops.sparse.tensor import SparseTensor
from aioflow.ops.text.forms import string_to_hash_bucket_fast
from aioflow.ops.text.strings import as_string


def container_of() -> str:
    """Return the container for resources created in the current scope."""
    return current_scope(default_graph()).container


class _StaticTable(LookupInterface):
    """The lookup of tables that do not change."""

    @overload
    def lookup(self, keys: SparseTensor, name: str | None = None) -> SparseTensor: ...

    @overload
    def lookup(self, keys: TensorLike, name: str | None = None) -> Tensor: ...

    def lookup(self, keys: TensorLike | SparseTensor, name: str | None = None) -> Any:
        """Return the values of the keys, and the default value for missing keys.

        Args:
            keys: A tensor, or a SparseTensor, whose values are looked up.
            name: Name scope of the nodes.

        Returns:
            A tensor of the shape of the keys, or a SparseTensor.

        Raises:
            DTypeError: the keys have another dtype.

        Raises, in a run:
            FailedPreconditionError: the table has not been initialized.
        """
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self._looked_up(keys.values, name), keys.dense_shape)
        return self._looked_up(convert_to_tensor(keys, self._key_dtype), name)

    def _looked_up(self, keys: Tensor, name: str | None) -> Tensor:
        if keys.dtype is not self._key_dtype:
            raise DTypeError("the keys have another dtype", expected=self._key_dtype.name, actual=keys.dtype.name)
        with keys.graph.as_default(), keys.graph.name_scope(name or f"{self.name}_Lookup"):
            return self._values(keys)

    @abstractmethod
    def _values(self, keys: Tensor) -> Tensor: ...


class StaticHashTable(_StaticTable):
    """A table that does not change after `tables_initializer()` or its own `initializer` has filled it.

        table = af.lookup.StaticHashTable(af.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
        ids = table.lookup(af.constant(["b", "z"]))
        async with af.Session() as session:
            await session.run(af.tables_initializer())
            await session.run(ids)  # [2, -1]

    Tables that read the same columns of the same text file share their entries. Any other table belongs to its graph.

    Args:
        initializer: The source of the entries.
        default_value: The value of missing keys, a scalar.
        experimental_is_anonymous: Whether each step has a table of its own, which the step must initialize.

    Raises:
        InvalidArgumentError: the default value is not a scalar.
    """

    def __init__(
        self,
        initializer: TableInitializer,
        default_value: TensorLike,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        check_kind(initializer, TableInitializer, "the initializer of a table", "such as KeyValueTensorInitializer")
        super().__init__(initializer.key_dtype, initializer.value_dtype)
        graph = graph_of([default_value])
        # The table is filled in a step of its own, so it must not wait for nodes around the construction.
        with graph.as_default(), graph.control_dependencies(None):
            self._default_value = convert_to_tensor(default_value, self._value_dtype)
            if self._default_value.dims not in ((), None):
                raise InvalidArgumentError(
                    "a table has one default value", expected="a scalar", actual=self._default_value.get_shape()
                )
            self._handle = self._made(initializer, name or "hash_table", experimental_is_anonymous)
        self._initializer = initializer.initialize(self)

    def _made(self, initializer: TableInitializer, name: str, is_anonymous: bool) -> Tensor:
        types: Attrs = {"key_dtype": self._key_dtype, "value_dtype": self._value_dtype}
        if is_anonymous:
            return make("AnonymousHashTable", name=name, **types)
        # Without a unique name, a table of another program with the same name on the same task would be shared.
        shared = initializer.shared_name or f"hash_table_{uuid.uuid4()}"
        return make("HashTableV2", name=name, container=container_of(), shared_name=shared, **types)

    @property
    def name(self) -> str:
        """Name of the node that creates the table, without its scopes."""
        return self._handle.op.name.rpartition("/")[2]

    @property
    def resource_handle(self) -> Tensor:
        """The resource handle of the table."""
        return self._handle

    @property
    def default_value(self) -> Tensor:
        """The value of missing keys."""
        return self._default_value

    @property
    def initializer(self) -> Operation:
        """The node that fills the table.

        Raises, in a run:
            FailedPreconditionError: a key has two values, or the table already has a different number of entries.
            InvalidArgumentError: there are no entries, or the numbers of keys and values differ.
        """
        return self._initializer

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of entries, an int64 scalar; 0 before the table is initialized."""
        with default_graph().name_scope(name or f"{self.name}_Size"):
            return make("LookupTableSizeV2", self._handle)

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """Return all keys and their values as two vectors, in the order of insertion."""
        with default_graph().name_scope(name or f"{self.name}_Export"):
            types: Attrs = {"Tkeys": self._key_dtype, "Tvalues": self._value_dtype}
            keys, values = make_list("LookupTableExportV2", self._handle, **types)
        for each in (keys, values):
            each.set_shape((None,))
        return keys, values

    def _values(self, keys: Tensor) -> Tensor:
        values = make("LookupTableFindV2", self._handle, keys, self._default_value)
        values.set_shape(keys.get_shape())
        return values


class StaticVocabularyTable(_StaticTable):
    """A table that maps keys to the numbers of a static table, and all other keys to hash buckets.

    The numbers of the buckets begin after the last number of an entry.

    Args:
        initializer: Entries with int64 values, counted from 0; None for buckets alone.
        num_oov_buckets: Number of buckets.
        lookup_key_dtype: Dtype of the keys to look up, if it is an integer dtype other than that of the entries.
        experimental_is_anonymous: As for `StaticHashTable`.

    Raises:
        InvalidArgumentError: there are no buckets.
        DTypeError: keys are neither integers nor strings, or values are not int64.
    """

    def __init__(
        self,
        initializer: TableInitializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: DTypeLike | None = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        check_kind(num_oov_buckets, int, "num_oov_buckets", "an int")
        if num_oov_buckets <= 0:
            raise InvalidArgumentError(
                "there are no buckets for keys that are not there",
                expected="num_oov_buckets >= 1, or a StaticHashTable",
                actual=num_oov_buckets,
            )
        self._buckets = num_oov_buckets
        self._table: StaticHashTable | None = None
        wanted = dtypes.string
        if initializer is not None:
            check_kind(initializer, TableInitializer, "the initializer of a table", "such as TextFileInitializer")
            wanted = initializer.key_dtype if lookup_key_dtype is None else dtypes.as_dtype(lookup_key_dtype)
            _check_vocabulary(initializer, wanted)
            self._table = StaticHashTable(initializer, -1, experimental_is_anonymous=experimental_is_anonymous)
        self._name = name.rstrip("/").rpartition("/")[2] if name else self._table.name if self._table else "hash_bucket"
        super().__init__(wanted, dtypes.int64)

    @property
    def name(self) -> str:
        """Prefix of the names of the nodes."""
        return self._name

    @property
    def resource_handle(self) -> Tensor:
        """The handle of the table with the entries.

        Raises:
            InvalidArgumentError: there are buckets alone.
        """
        if self._table is None:
            raise InvalidArgumentError("there is no table, but buckets alone", expected="an initializer", actual=None)
        return self._table.resource_handle

    @property
    def initializer(self) -> Operation:
        """The node that fills the table: see `StaticHashTable.initializer`."""
        if self._table is not None:
            return self._table.initializer
        with default_graph().name_scope("init"):
            return no_op()

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of entries and buckets, an int64 scalar."""
        with default_graph().name_scope(name or f"{self.name}_Size"):
            entries = constant(0, dtypes.int64) if self._table is None else self._table.size()
            return make("AddV2", entries, constant(self._buckets, dtypes.int64))

    def _values(self, keys: Tensor) -> Tensor:
        if self._table is not None and self._table.key_dtype is dtypes.int64:
            # The keys that are looked up may be narrower integers than those of the table.
            keys = cast(keys, dtypes.int64)
        text = keys if keys.dtype is dtypes.string else as_string(keys)
        buckets = string_to_hash_bucket_fast(text, self._buckets, name="hash_bucket")
        if self._table is None:
            return buckets
        ids = self._table.lookup(keys)
        behind = make("AddV2", buckets, self._table.size())
        # The inner table returns -1, its default value, for missing keys.
        return make("SelectV2", make("NotEqual", ids, self._table.default_value), ids, behind)


def _check_vocabulary(initializer: TableInitializer, wanted: DType) -> None:
    if initializer.key_dtype not in (dtypes.int64, dtypes.string):
        raise DTypeError("keys of that dtype have no hash", expected="int64, string", actual=initializer.key_dtype.name)
    if initializer.key_dtype.is_integer != wanted.is_integer or not (wanted.is_integer or wanted is dtypes.string):
        raise DTypeError(
            "the keys that are looked up are not those of the table",
            expected=initializer.key_dtype.name,
            actual=wanted.name,
        )
    if initializer.value_dtype is not dtypes.int64:
        raise DTypeError("the values are not numbers", expected="int64", actual=initializer.value_dtype.name)
