"""What all tables have in common, for those who look up and for the initializers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike
from aioflow.graph.graph import Tensor

__all__ = ["LookupInterface", "OfKeysAndValues"]


class OfKeysAndValues:
    """What has keys and values.

    Args:
        key_dtype, value_dtype: Of a key and a value.
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
    """A table of values by key, which outlives a step and a session as a variable does.

    Args:
        key_dtype, value_dtype: Of a key and a value.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the node that makes the table, without its scopes."""

    @property
    @abstractmethod
    def resource_handle(self) -> Tensor:
        """The handle."""

    @abstractmethod
    def size(self, name: str | None = None) -> Tensor:
        """How many entries there are, an int64 scalar."""

    @abstractmethod
    def lookup(self, keys: Any) -> Any:
        """The values of the keys, and a default value for those that are not there."""

    def __getitem__(self, keys: Any) -> Any:
        """As `lookup`."""
        return self.lookup(keys)
