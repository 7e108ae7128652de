"""Facts about tensors that are known without a step."""

from __future__ import annotations

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import TensorShape
from aioflow.graph.static_value import constant_value, partial_shape
from aioflow.ops.variables.variable import Variable

__all__ = ["is_tensor"]


def is_tensor(x: object) -> bool:
    """Return whether this is a tensor, a variable, a `SparseTensor` or `IndexedSlices`."""
    return isinstance(x, Tensor | CompositeTensor | Variable)


def constant_value_as_shape(tensor: Tensor) -> TensorShape:
    """Return the shape that a tensor of sizes describes, as far as it is known; -1 is an unknown size.

    The scalar -1 is the unknown shape.

    Raises:
        DTypeError: the tensor is not of integers.
        InvalidArgumentError: its rank is not 1, or it is a scalar other than the constant -1.
    """
    if not tensor.dtype.is_integer:
        raise DTypeError("the sizes of a shape are integers", expected="int32 or int64", actual=tensor.dtype.name)
    rank = tensor.shape.ndims
    if rank == 0:
        value = constant_value(tensor)
        if value is None or value != -1:
            raise InvalidArgumentError("a scalar is not a shape", expected="the constant -1", actual=value)
        return TensorShape(None)
    if rank not in (1, None):
        raise InvalidArgumentError("a shape is a vector of sizes", expected="rank 1", actual=f"rank {rank}")
    return TensorShape(partial_shape(tensor))
