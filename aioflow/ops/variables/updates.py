"""Methods that update a variable with a whole value, with rows in `IndexedSlices`, or with slices at index vectors."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar, overload

from aioflow.errors import DTypeError
from aioflow.graph.graph import Operation
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import TensorLike
from aioflow.ops.variables.operators import TensorOperators

VariableT = TypeVar("VariableT")  # the class `Variable`


class Updates(TensorOperators, Generic[VariableT]):
    """Methods that update a variable. Each returns the variable in its state after the update.

    The methods with an argument `sparse_delta` raise DTypeError if it is not `IndexedSlices`.
    """

    def _update(self, op_type: str, value: TensorLike, name: str | None, read_value: bool) -> object:
        """Update by an op that accepts a whole value."""
        raise NotImplementedError

    @overload
    def assign(
        self,
        value: TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: Literal[True] = True,
    ) -> VariableT: ...

    @overload
    def assign(
        self, value: TensorLike, use_locking: bool | None = None, name: str | None = None, *, read_value: Literal[False]
    ) -> Operation: ...

    def assign(
        self, value: TensorLike, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> object:
        """Set the variable to `value`.

        Args:
            value: The new value.
            use_locking: Ignored: updates are always atomic.
            name: Name of the node.
            read_value: Whether to return the variable rather than the bare operation.

        Returns:
            The variable in its state after the assignment, which can be run or used as a tensor.

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
    ) -> VariableT: ...

    @overload
    def assign_add(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, *, read_value: Literal[False]
    ) -> Operation: ...

    def assign_add(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> object:
        """Add `delta`, which has the variable's shape. Arguments, result and errors are those of `assign`."""
        return self._update("AssignAddVariableOp", delta, name, read_value)

    @overload
    def assign_sub(
        self,
        delta: TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: Literal[True] = True,
    ) -> VariableT: ...

    @overload
    def assign_sub(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, *, read_value: Literal[False]
    ) -> Operation: ...

    def assign_sub(
        self, delta: TensorLike, use_locking: bool | None = None, name: str | None = None, read_value: bool = True
    ) -> object:
        """Subtract `delta`, which has the variable's shape. Arguments, result and errors are those of `assign`."""
        return self._update("AssignSubVariableOp", delta, name, read_value)

    def scatter_rows(
        self, op_type: str, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> VariableT:
        """Update by an op of the ResourceScatter families."""
        raise NotImplementedError

    def _scatter(self, op_type: str, delta: IndexedSlices, name: str | None) -> VariableT:
        if not isinstance(delta, IndexedSlices):
            raise DTypeError("a sparse update needs IndexedSlices", expected="IndexedSlices", actual=repr(delta))
        return self.scatter_rows(op_type, delta.indices, delta.values, name)

    def scatter_add(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> VariableT:
        """Update the rows `self[indices] += values`; equal indices add up."""
        return self._scatter("ResourceScatterAdd", sparse_delta, name)

    def scatter_sub(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> VariableT:
        """Update the rows `self[indices] -= values`; equal indices add up."""
        return self._scatter("ResourceScatterSub", sparse_delta, name)

    def scatter_mul(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> VariableT:
        """Update the rows `self[indices] *= values`."""
        return self._scatter("ResourceScatterMul", sparse_delta, name)

    def scatter_div(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> VariableT:
        """Update the rows `self[indices] /= values`; integers round towards zero."""
        return self._scatter("ResourceScatterDiv", sparse_delta, name)

    def scatter_min(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> VariableT:
        """Set the rows `self[indices] = min(self[indices], values)`."""
        return self._scatter("ResourceScatterMin", sparse_delta, name)

    def scatter_max(self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None) -> VariableT:
        """Set the rows `self[indices] = max(self[indices], values)`."""
        return self._scatter("ResourceScatterMax", sparse_delta, name)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> VariableT:
        """Set the rows `self[indices] = values`; of equal indices, the last one wins."""
        return self._scatter("ResourceScatterUpdate", sparse_delta, name)

    def scatter_nd_add(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> VariableT:
        """Update the slices `self[indices[i]] += updates[i]`, where each index is a vector for the first k axes."""
        return self.scatter_rows("ResourceScatterNdAdd", indices, updates, name)

    def scatter_nd_sub(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> VariableT:
        """Update the slices `self[indices[i]] -= updates[i]`, where each index is a vector for the first k axes."""
        return self.scatter_rows("ResourceScatterNdSub", indices, updates, name)

    def scatter_nd_update(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> VariableT:
        """Set the slices `self[indices[i]] = updates[i]`, where each index is a vector for the first k axes."""
        return self.scatter_rows("ResourceScatterNdUpdate", indices, updates, name)
