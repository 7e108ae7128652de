"""Values that are made of several tensors and pass through branches and loops as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import aioflow
from aioflow.graph.dtypes import DType
from aioflow.graph.operation import Operation
from aioflow.graph.shapes import Dims
from aioflow.graph.tensor import Tensor

__all__ = ["CompositeTensor"]


class CompositeTensor:
    """A value made of tensors, such as `IndexedSlices` and `SparseTensor`.

    Attributes:
        values: Those of its tensors that hold its elements.
    """

    __slots__ = ("values",)

    values: Tensor

    @property
    def dtype(self) -> DType:
        """Element type of the values."""
        return self.values.dtype

    @property
    def op(self) -> Operation:
        """The node that makes the values."""
        return self.values.op

    @property
    def graph(self) -> aioflow.Graph:
        """The graph of the values."""
        return self.values.graph

    @property
    def name(self) -> str:
        """Name of the values."""
        return self.values.name

    if not TYPE_CHECKING:

        def __array__(self, *args, **kwargs):
            return self.values.__array__()

    @property
    def components(self) -> tuple[Tensor, ...]:
        """The tensors that it is made of."""
        raise NotImplementedError

    def with_components(self, components: Sequence[Any]) -> CompositeTensor:
        """One of the same kind, made of those."""
        raise NotImplementedError

    def component_dims(self, dims: Dims) -> list[Dims]:
        """The static shapes of the components, where `dims` is the shape invariant of a loop variable of this kind."""
        raise NotImplementedError

    def kept_dims(self) -> list[Dims]:
        """The static shapes that the components keep in a loop where no invariant says otherwise."""
        return [tensor.dims for tensor in self.components]
