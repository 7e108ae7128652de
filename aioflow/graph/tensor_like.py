"""`TensorLike`: the type of an argument that an op accepts as a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ForwardRef, Protocol, SupportsIndex, TypeAlias

import numpy as np

from aioflow.graph.composite import CompositeTensor
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.operators import SupportsArray
from aioflow.graph.shapes import Dimension, TensorShape


class SupportsTensor(Protocol):
    """An object that represents a tensor, such as a `Variable`.

    A user's class that is registered with `register_tensor_conversion_function` passes a type checker if it has these
    members.
    """

    @property
    def dtype(self) -> DType:
        """The element type of the tensor."""

    def value(self) -> Tensor:
        """Return the tensor."""


if TYPE_CHECKING:
    _Nested: TypeAlias = Sequence["TensorLike"]
else:
    # `module` makes the name resolve in this module, wherever an annotation is evaluated.
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

# An argument that an op accepts as a tensor.
TensorLike: TypeAlias = DenseLike | IndexedSlices

_Index: TypeAlias = SupportsIndex | Tensor | np.ndarray[Any, Any] | slice | EllipsisType | None
# The valid keys of `tensor[...]`.
IndexLike: TypeAlias = _Index | Sequence[_Index]

# An object that a node can wait for: a node, the result of one, or the name of one.
NodeLike: TypeAlias = Tensor | Operation | SupportsTensor | CompositeTensor | str
