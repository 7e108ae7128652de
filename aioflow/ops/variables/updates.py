"""Updates of a variable, as methods: by a whole value, rows by `IndexedSlices`, slices by index vectors."""

from __future__ import annotations

from typing import Any, Literal, overload

import aioflow
from aioflow.errors import DTypeError
from aioflow.graph.graph import Operation
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import TensorLike
from aioflow.ops.variables.operators import TensorOperators

__all__ = ["Updates"]


class Updates(TensorOperators):
    """The methods of a variable that change it. Each returns the variable as it is after the update."""

    def _update(self, op_type: str, value: TensorLike, name: str | None, read_value: bool) -> Any:
        """Update by an op that takes a whole value."""
        raise NotImplementedError

    @overload
    def assign(
        self,
        value: TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: Literal[True] = True,
    ) -> aioflow.Variable: ...

    @overload
    def assign(
        self, value: TensorLike, use_locking: bool | None = None, name: str | None = None, *, read_value: Literal[False]
    ) -> Operation: ...

    def assign(
        self, value: TensorLike, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Set the variable to `value`.

        Args:
            use_locking: Accepted for published code: updates are always atomic.
            read_value: With False, return the bare node.

        Returns:
            The variable as it is after the assignment; run it, or use it as a tensor.

        Raises:
            InvalidArgumentError: the shape does not fit.
            DTypeError: the value has a different dtype.
        """
        return self._update("AssignVariableOp", value, name, read_value)

    @overload
    def assign_add(
        self,
        delta: TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: Literal[True] = True,
    ) -> aioflow.Variable: ...

    @overload
    def assign_add(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, *, read_value: Literal[False]
    ) -> Operation: ...

    def assign_add(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Add `delta`, of the variable's own shape. Arguments, result and errors as in `assign`."""
        return self._update("AssignAddVariableOp", delta, name, read_value)

    @overload
    def assign_sub(
        self,
        delta: TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: Literal[True] = True,
    ) -> aioflow.Variable: ...

    @overload
    def assign_sub(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, *, read_value: Literal[False]
    ) -> Operation: ...

    def assign_sub(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtract `delta`, of the variable's own shape. Arguments, result and errors as in `assign`."""
        return self._update("AssignSubVariableOp", delta, name, read_value)

    def scatter_rows(
        self, op_type: str, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> aioflow.Variable:
        """Update by an op of the ResourceScatter families."""
        raise NotImplementedError

    def _scatter(self, op_type: str, delta: IndexedSlices, name: str | None) -> aioflow.Variable:
        if not isinstance(delta, IndexedSlices):
            raise DTypeError("a sparse update needs IndexedSlices", expected="IndexedSlices", actual=repr(delta))
        return self.scatter_rows(op_type, delta.indices, delta.values, name)

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> aioflow.Variable:
        """Rows `self[indices] += values`; equal indices add up."""
        return self._scatter("ResourceScatterAdd", sparse_delta, name)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> aioflow.Variable:
        """Rows `self[indices] -= values`; equal indices add up."""
        return self._scatter("ResourceScatterSub", sparse_delta, name)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> aioflow.Variable:
        """Rows `self[indices] *= values`."""
        return self._scatter("ResourceScatterMul", sparse_delta, name)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> aioflow.Variable:
        """Rows `self[indices] /= values`, integers rounded towards zero."""
        return self._scatter("ResourceScatterDiv", sparse_delta, name)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> aioflow.Variable:
        """Rows `self[indices] = min(self[indices], values)`."""
        return self._scatter("ResourceScatterMin", sparse_delta, name)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> aioflow.Variable:
        """Rows `self[indices] = max(self[indices], values)`."""
        return self._scatter("ResourceScatterMax", sparse_delta, name)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> aioflow.Variable:
        """Rows `self[indices] = values`; of equal indices the last one wins."""
        return self._scatter("ResourceScatterUpdate", sparse_delta, name)

    def scatter_nd_add(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> aioflow.Variable:
        """Slices `self[indices[i]] += updates[i]`, each index a vector of the first k axes."""
        return self.scatter_rows("ResourceScatterNdAdd", indices, updates, name)

    def scatter_nd_sub(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> aioflow.Variable:
        """Slices `self[indices[i]] -= updates[i]`, each index a vector of the first k axes."""
        return self.scatter_rows("ResourceScatterNdSub", indices, updates, name)

    def scatter_nd_update(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> aioflow.Variable:
        """Slices `self[indices[i]] = updates[i]`, each index a vector of the first k axes."""
        return self.scatter_rows("ResourceScatterNdUpdate", indices, updates, name)
