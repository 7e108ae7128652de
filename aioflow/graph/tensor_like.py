"""`TensorLike`: the type of whatever may stand where an op takes a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ForwardRef, Protocol, SupportsIndex, TypeAlias

import numpy as np

from aioflow.graph.composite import CompositeTensor
from aioflow.graph.dtypes import DType
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.operation import Operation
from aioflow.graph.shapes import Dimension, TensorShape
from aioflow.graph.tensor import Tensor

__all__ = ["DenseLike", "IndexLike", "NodeLike", "SupportsArray", "SupportsTensor", "TensorLike"]


class SupportsTensor(Protocol):
    """What stands for a tensor, as a `Variable` does.

    A class of a user's own, which `register_tensor_conversion_function` knows, passes a type checker if it has these.
    """

    @property
    def dtype(self) -> DType:
        """The element type of the tensor."""

    def value(self) -> Tensor:
        """The tensor."""


class SupportsArray(Protocol):
    """What NumPy makes an array of: a column of a table, an array of another library."""

    def __array__(self) -> np.ndarray[Any, Any]:
        """The array."""


if TYPE_CHECKING:
    _Nested: TypeAlias = Sequence["TensorLike"]
else:  # the name is looked up here, whatever names there are where an annotation is evaluated
    _Nested = Sequence[ForwardRef("TensorLike", module=__name__)]

DenseLike: TypeAlias = (
    Tensor
    | SupportsTensor
    | np.ndarray[Any, Any]
    | np.generic
    | complex  # and with it int, float and bool
    | str
    | bytes
    | TensorShape
    | Dimension
    | SupportsArray
    | _Nested
)

# Whatever may stand where an op takes a tensor.
TensorLike: TypeAlias = DenseLike | IndexedSlices

_Index: TypeAlias = SupportsIndex | Tensor | np.ndarray[Any, Any] | slice | EllipsisType | None
# What may stand in the brackets of `tensor[...]`.
IndexLike: TypeAlias = _Index | Sequence[_Index]

# What a node can wait for: a node, what is made by one, or the name of one.
NodeLike: TypeAlias = Tensor | Operation | SupportsTensor | CompositeTensor | str
