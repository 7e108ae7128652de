"""Sparse gradients: rows `values` at `indices` of a tensor, such as the gradient of a gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from aioflow.graph.composite import CompositeTensor
from aioflow.graph.graph import Tensor
from aioflow.graph.operators import Slices
from aioflow.graph.shapes import Dims


class IndexedSlicesValue(NamedTuple):
    """The fetched value of `IndexedSlices`."""

    values: NDArray[Any]
    indices: NDArray[Any]
    dense_shape: NDArray[Any] | None


class IndexedSlices(CompositeTensor, Slices):
    """Slices along the first dimension: `dense[indices[i], ...] += values[i, ...]`; indices may repeat.

    Attributes:
        values: [n, ...] tensor.
        indices: [n] integer tensor.
        dense_shape: Shape vector of the dense tensor, or None.
    """

    __slots__ = ("dense_shape", "indices")

    if TYPE_CHECKING:
        _fetched: IndexedSlicesValue  # see Fetchable

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Tensor | None = None) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = dense_shape

    @property
    def components(self) -> tuple[Tensor, ...]:
        """The values, the indices, and the dense shape if it is known."""
        found = (self.values, self.indices)
        return found if self.dense_shape is None else (*found, self.dense_shape)

    def with_components(self, components: Sequence[Any]) -> IndexedSlices:
        """Return slices that consist of these components."""
        return IndexedSlices(*components)

    def with_values(self, values: Tensor) -> IndexedSlices:
        """Return slices at the same indices with other values."""
        return IndexedSlices(values, self.indices, self.dense_shape)

    def component_dims(self, dims: Dims) -> list[Dims]:
        """Return the static shapes of the components for values of shape `dims`."""
        found: list[Dims] = [dims, None if dims is None else dims[:1], (None if dims is None else len(dims),)]
        return found[: len(self.components)]

    @property
    def device(self) -> str:
        """The requested device of the values."""
        return self.values.device

    def __repr__(self) -> str:
        return f"<aioflow.IndexedSlices values={self.values!r} indices={self.indices!r}>"
