"""Sparse updates of a variable, as methods: rows by `IndexedSlices`, slices by index vectors."""

from __future__ import annotations

from typing import Any

from aioflow.errors import DTypeError
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import TensorLike
from aioflow.ops.variable_operators import TensorOperators

__all__ = ["SparseUpdates"]


class SparseUpdates(TensorOperators):
    """The scatter methods of a variable. Each returns the variable as it is after the update."""

    def scatter_rows(self, op_type: str, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """Update by an op of the ResourceScatter families."""
        raise NotImplementedError

    def _scatter(self, op_type: str, delta: IndexedSlices, name: str | None) -> Any:
        if not isinstance(delta, IndexedSlices):
            raise DTypeError("a sparse update needs IndexedSlices", expected="IndexedSlices", actual=repr(delta))
        return self.scatter_rows(op_type, delta.indices, delta.values, name)

    def scatter_add(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        """Rows `self[indices] += values`; equal indices add up."""
        return self._scatter("ResourceScatterAdd", sparse_delta, name)

    def scatter_sub(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        """Rows `self[indices] -= values`; equal indices add up."""
        return self._scatter("ResourceScatterSub", sparse_delta, name)

    def scatter_mul(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        """Rows `self[indices] *= values`."""
        return self._scatter("ResourceScatterMul", sparse_delta, name)

    def scatter_div(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        """Rows `self[indices] /= values`, integers rounded towards zero."""
        return self._scatter("ResourceScatterDiv", sparse_delta, name)

    def scatter_min(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        """Rows `self[indices] = min(self[indices], values)`."""
        return self._scatter("ResourceScatterMin", sparse_delta, name)

    def scatter_max(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        """Rows `self[indices] = max(self[indices], values)`."""
        return self._scatter("ResourceScatterMax", sparse_delta, name)

    def scatter_update(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> Any:
        """Rows `self[indices] = values`; of equal indices the last one wins."""
        return self._scatter("ResourceScatterUpdate", sparse_delta, name)

    def scatter_nd_add(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """Slices `self[indices[i]] += updates[i]`, each index a vector of the first k axes."""
        return self.scatter_rows("ResourceScatterNdAdd", indices, updates, name)

    def scatter_nd_sub(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """Slices `self[indices[i]] -= updates[i]`, each index a vector of the first k axes."""
        return self.scatter_rows("ResourceScatterNdSub", indices, updates, name)

    def scatter_nd_update(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """Slices `self[indices[i]] = updates[i]`, each index a vector of the first k axes."""
        return self.scatter_rows("ResourceScatterNdUpdate", indices, updates, name)
