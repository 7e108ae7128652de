"""Values that consist of several tensors and pass through branches and loops as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import Dims


class CompositeTensor:
    """A value that consists of tensors, such as `IndexedSlices` and `SparseTensor`.

    Attributes:
        values: The tensor of the elements.
    """

    __slots__ = ("values",)

    values: Tensor

    @property
    def dtype(self) -> DType:
        """The element type of the values."""
        return self.values.dtype

    @property
    def op(self) -> Operation:
        """The node that makes the values."""
        return self.values.op

    @property
    def graph(self) -> Graph:
        """The graph of the values."""
        return self.values.graph

    @property
    def name(self) -> str:
        """The name of the values."""
        return self.values.name

    if not TYPE_CHECKING:

        def __array__(self, *args, **kwargs):
            return self.values.__array__()

    @property
    def components(self) -> tuple[Tensor, ...]:
        """The tensors that the value consists of."""
        raise NotImplementedError

    def with_components(self, components: Sequence[Any]) -> CompositeTensor:
        """Return a value of the same kind that consists of these components."""
        raise NotImplementedError

    def component_dims(self, dims: Dims) -> list[Dims]:
        """Return the static shapes of the components for a loop variable of this kind with shape invariant `dims`."""
        raise NotImplementedError

    def kept_dims(self) -> list[Dims]:
        """Return the static shapes that the components keep in a loop without a shape invariant."""
        return [tensor.dims for tensor in self.components]
