"""Values that are made of several tensors and pass through branches and loops as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aioflow.graph.shapes import Dims
    from aioflow.graph.tensor import Tensor

__all__ = ["CompositeTensor"]


class CompositeTensor:
    """A value made of tensors, such as `IndexedSlices` and `SparseTensor`."""

    __slots__ = ()

    @property
    def components(self) -> tuple[Tensor, ...]:
        """The tensors that it is made of."""
        raise NotImplementedError

    def with_components(self, components: Sequence[Any]) -> CompositeTensor:
        """One of the same kind, made of those."""
        raise NotImplementedError

    def component_dims(self, dims: Dims) -> list[Dims]:
        """The static shapes of the components, where the whole has the shape `dims`."""
        raise NotImplementedError
