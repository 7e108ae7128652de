"""A sparse gradient: rows `values` at `indices` of a tensor, which is what the gradient of a gather is."""

from __future__ import annotations

from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor

__all__ = ["IndexedSlices"]


class IndexedSlices:
    """Slices along the first dimension: `dense[indices[i], ...] += values[i, ...]`; indices may repeat.

    Attributes:
        values: [n, ...] tensor.
        indices: [n] integer tensor.
        dense_shape: Shape vector of the dense tensor, or None.
    """

    __slots__ = ("dense_shape", "indices", "values")

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Tensor | None = None) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = dense_shape

    @property
    def dtype(self) -> DType:
        """Element type of the values."""
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
        """Name of the values."""
        return self.values.name

    @property
    def device(self) -> str:
        """Requested device of the values."""
        return self.values.device

    def __repr__(self) -> str:
        return f"<aioflow.IndexedSlices values={self.values!r} indices={self.indices!r}>"
