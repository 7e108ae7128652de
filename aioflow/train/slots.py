"""Variables that belong to other variables: an optimizer's moments, a moving average. Named `owner/Name`."""

from __future__ import annotations

from typing import Any

from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, num_elements
from aioflow.ops.apply import apply_op, constant
from aioflow.ops.variables import Variable

__all__ = ["create_slot", "filled_slot"]


def create_slot(
    primary: Any, initial_value: Any, name: str, dtype: DType | None = None, shape: Dims = None
) -> Variable:
    """A variable `primary/name` (made unique) beside `primary`, a variable or tensor, that is not trained.

    Args:
        initial_value: A tensor, or a callable that makes one.
        shape: Static shape, where that of the initial value is not known.
    """
    graph = primary.graph
    owner = primary.op.name
    with graph.as_default(), graph.name_scope(None), graph.control_dependencies(None), graph.colocate_with(primary.op):
        return Variable(
            initial_value,
            trainable=False,
            name=f"{owner}/{name}",
            dtype=dtype,
            shape=shape,
            validate_shape=shape is not None,
        )


def filled_slot(primary: Any, value: float, name: str, dtype: DType | None = None) -> Variable:
    """A slot of the shape of `primary`, with every element `value`."""
    element = primary.dtype if dtype is None else dtype
    dims: Dims = primary.shape.raw

    def initial() -> Any:
        if num_elements(dims) is None:
            start = primary.initialized_value() if isinstance(primary, Variable) else primary
            sizes = apply_op("Shape", start)
        else:
            sizes = constant(list(dims or ()), "int32", name="dims")
        return apply_op("Fill", sizes, constant(value, element, name="value"))

    return create_slot(primary, initial, name, element, dims)
