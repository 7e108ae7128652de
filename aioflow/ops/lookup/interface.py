"""Base classes of lookup tables and of their initializers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import Tensor


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
