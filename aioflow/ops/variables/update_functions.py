"""Functions that update variables, such as `assign_add(step, 1)`.

They accept a `Variable`, or the result of an assignment. Each update returns the variable in its state after it.
"""

from __future__ import annotations

from typing import Any

from aioflow.errors import DTypeError
from aioflow.graph.graph import Tensor
from aioflow.ops.apply import TensorLike, convert_to_tensor
from aioflow.ops.scoping import name_scope
from aioflow.ops.variables.updates import batch_positions
from aioflow.ops.variables.variable import Variable

__all__ = [
    "assign",
    "assign_add",
    "assign_sub",
    "batch_scatter_update",
    "count_up_to",
    "is_variable_initialized",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
]


def is_variable_initialized(variable: Variable, name: str | None = None) -> Tensor:
    """Return whether the variable has a value, a bool scalar."""
    return _variable(variable).is_initialized(name)


def assign(
    ref: Variable,
    value: TensorLike,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Variable:
    """Set the variable to `value`.

    Args:
        ref: A Variable, or the tensor of its value, as `Graph.get_tensor_by_name` returns it for the name of a
            variable.
        value: The new value.
        validate_shape: False allows a value of a different shape. The variable then has the most specific static shape
            that both shapes match. (A shape that is unknown until the run is still checked in the run.)
        use_locking: Ignored: updates are atomic.
        name: Name of the node.

    Returns:
        The variable in its state after the assignment.

    Raises:
        InvalidArgumentError: the shape does not fit the variable's.
    """
    variable = _variable(ref)
    if validate_shape is False:
        value = convert_to_tensor(value, variable.dtype)
        variable.take_shape(value.dims)
    return variable.assign(value, use_locking, name)


def assign_add(ref: Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None) -> Variable:
    """Add `value`, which has the variable's shape, to the variable."""
    return _variable(ref).assign_add(value, use_locking, name)


def assign_sub(ref: Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None) -> Variable:
    """Subtract `value`, which has the variable's shape, from the variable."""
    return _variable(ref).assign_sub(value, use_locking, name)


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Tensor:
    """Increment the scalar integer variable. Return its previous value.

    Raises:
        OutOfRangeError: at run time, the value has reached `limit`.
    """
    return _variable(ref).count_up_to(limit, name)


def _variable(ref: Any) -> Variable:
    # `Graph.get_tensor_by_name` returns a tensor for the name of a variable. The annotations exclude tensors anyway, so
    # that type checkers report assignments to tensors that do not belong to a variable.
    found = ref.graph.variable_of(ref) if isinstance(ref, Tensor) else ref
    if not hasattr(found, "handle"):
        raise DTypeError("an update needs a variable", expected="a Variable", actual=repr(ref))
    variable: Variable = found
    return variable


def _scatter(op_type: str, ref: Variable, indices: TensorLike, updates: TensorLike, name: str | None) -> Variable:
    return _variable(ref).scatter_rows(op_type, indices, updates, name)


def scatter_update(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Variable:
    """Set the rows `ref[indices] = updates`; of equal indices, the last one wins.

    Args:
        ref: A Variable, or the tensor of its value.
        indices: int32 or int64 of any shape.
        updates: indices.shape + ref.shape[1:], or a scalar.
        use_locking: Ignored: updates are atomic.
        name: Name of the node.

    Raises:
        InvalidArgumentError: an index is out of bounds, or the shapes do not fit.
    """
    return _scatter("ResourceScatterUpdate", ref, indices, updates, name)


def scatter_add(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Update the rows `ref[indices] += updates`; equal indices add up. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterAdd", ref, indices, updates, name)


def scatter_sub(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Update the rows `ref[indices] -= updates`; equal indices add up. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterSub", ref, indices, updates, name)


def scatter_mul(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Update the rows `ref[indices] *= updates`. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterMul", ref, indices, updates, name)


def scatter_div(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Update the rows `ref[indices] /= updates`; integers round towards zero. Otherwise like `scatter_update`."""
    return _scatter("ResourceScatterDiv", ref, indices, updates, name)


def scatter_min(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Set the rows `ref[indices] = min(ref[indices], updates)`. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterMin", ref, indices, updates, name)


def scatter_max(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Set the rows `ref[indices] = max(ref[indices], updates)`. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterMax", ref, indices, updates, name)


def batch_scatter_update(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Variable:
    """Set rows within each batch: `ref[i, …, indices[i, …, j]] = updates[i, …, j]`.

    Args:
        ref: A Variable, or the tensor of its value.
        indices: int32 or int64; all dimensions but the last are the batch dimensions of `ref`.
        updates: indices.shape + ref.shape[rank of indices:].
        use_locking: Ignored: updates are atomic.
        name: Name of the scope of the nodes.

    Raises:
        InvalidArgumentError: an index is out of bounds, the shapes do not fit, or the rank of `indices` is unknown.
    """
    with name_scope(name, "batch_scatter_update"):
        positions = batch_positions(convert_to_tensor(indices))
        return _variable(ref).scatter_nd_update(positions, updates)


def scatter_nd_update(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Variable:
    """Set the slices `ref[indices[i]] = updates[i]`, where each index is a vector for the first k axes.

    Args:
        ref: A Variable, or the tensor of its value.
        indices: [..., k] int32 or int64.
        updates: indices.shape[:-1] + ref.shape[k:].
        use_locking: Ignored: updates are atomic.
        name: Name of the node.

    Raises:
        InvalidArgumentError: an index is out of bounds, or the shapes do not fit.
    """
    return _scatter("ResourceScatterNdUpdate", ref, indices, updates, name)


def scatter_nd_add(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Update the slices `ref[indices[i]] += updates[i]`; equal indices add up. Otherwise like `scatter_nd_update`."""
    return _scatter("ResourceScatterNdAdd", ref, indices, updates, name)


def scatter_nd_sub(
    ref: Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Variable:
    """Update the slices `ref[indices[i]] -= updates[i]`; equal indices add up. Otherwise like `scatter_nd_update`."""
    return _scatter("ResourceScatterNdSub", ref, indices, updates, name)
