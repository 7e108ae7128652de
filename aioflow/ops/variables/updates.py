"""Methods that update a variable with a whole value, with rows in `IndexedSlices`, or with slices at index vectors."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final, Generic, Literal, TypeVar, overload

from aioflow.errors import DTypeError, InvalidArgumentError, OpError
from aioflow.graph.dtypes import resource
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.shapes import Dims, common_dims
from aioflow.ops.apply import TensorLike, constant, make, output_specs
from aioflow.ops.importer import by_name
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

    def scatter_nd_max(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> VariableT:
        """Set the slices `self[indices[i]] = max(self[indices[i]], updates[i])`; each index is a vector."""
        return self.scatter_rows("ResourceScatterNdMax", indices, updates, name)

    def scatter_nd_min(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> VariableT:
        """Set the slices `self[indices[i]] = min(self[indices[i]], updates[i])`; each index is a vector."""
        return self.scatter_rows("ResourceScatterNdMin", indices, updates, name)

    def scatter_nd_update(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> VariableT:
        """Set the slices `self[indices[i]] = updates[i]`, where each index is a vector for the first k axes."""
        return self.scatter_rows("ResourceScatterNdUpdate", indices, updates, name)

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> VariableT:
        """Set rows within each batch: see `aioflow.batch_scatter_update`."""
        if not isinstance(sparse_delta, IndexedSlices):
            raise DTypeError("a sparse update needs IndexedSlices", expected="IndexedSlices", actual=repr(sparse_delta))
        indices = batch_positions(sparse_delta.indices)
        return self.scatter_rows("ResourceScatterNdUpdate", indices, sparse_delta.values, name)


def batch_positions(indices: Tensor) -> Tensor:
    """Return index vectors: the position in each batch dimension, which are all but the last, followed by the index.

    Raises:
        InvalidArgumentError: the rank of the indices is unknown.
    """
    if indices.dims is None:
        raise InvalidArgumentError("the indices have an unknown rank", expected="a known rank", actual=repr(indices))
    shape, rank = make("Shape", indices), len(indices.dims)
    columns = [indices]
    for axis in range(rank - 1):
        along = make("Range", constant(0), shape[axis], constant(1))
        alone = make("Reshape", along, [-1 if i == axis else 1 for i in range(rank)])
        columns.insert(axis, make("BroadcastTo", make("Cast", alone, DstT=indices.dtype), shape))
    return make("Pack", columns, axis=rank)


# ── shape inference after a variable is assigned a value of a different shape ─────────────────────────────────────────
#
# The static shape of the variable, and all shapes derived from it, are inferred again, and become less specific.
# Constants made from the old shape (such as `shape(v)`) stay as they are, as in TensorFlow.


WIDENED: Final = "_widened"  # attribute of the handle of a variable whose static shape was widened


def widen_variable(handle: Operation, dims: Dims) -> Dims:
    """Let the variable accept values of another shape too. Return the most specific shape that covers both.

    Raises:
        FailedPreconditionError: the graph is finalized.
    """
    graph = handle.graph
    graph.note_mutation()
    wider = common_dims(handle.attrs["shape"], dims)
    handle.attrs |= {"shape": wider, WIDENED: True}
    readers: dict[Tensor, list[Operation]] = defaultdict(list)
    for op in graph.get_operations():
        for tensor in op.inputs:
            readers[tensor].append(op)
    # Nodes that pass the handle on have readers that depend on the variable's shape, too.
    changed, handles = deque(handle.outputs), set(handle.outputs)
    while changed:
        for op in readers[changed.popleft()]:
            passed_on = {t for t in op.outputs if t.dtype is resource} - handles
            handles |= passed_on
            changed.extend([*_inferred_again(op), *passed_on])
    return wider


def _inferred_again(op: Operation) -> list[Tensor]:
    """Widen the shapes of the outputs to those inferred from the inputs now. Return the outputs that changed."""
    try:
        specs = output_specs(op.op_def, by_name(op.op_def, op.inputs, op.attrs), op.attrs)
    except OpError:
        specs = [(t.dtype, None) for t in op.outputs]  # incompatible shapes fail in the step that runs the node
    changed: list[Tensor] = []
    for tensor, (_, inferred) in zip(op.outputs, specs, strict=True):
        wider = common_dims(tensor.dims, inferred)
        if wider != tensor.dims:
            tensor.widen_shape(wider)
            changed.append(tensor)
    return changed
