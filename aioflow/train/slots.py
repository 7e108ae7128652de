"""Slots: variables that belong to other variables, such as an optimizer's moments or a moving average.

They are shared variables named `owner/Name` in the open variable scope, as in TensorFlow. Slots of a training step
that is built in a scope therefore carry the name of that scope.
"""

from __future__ import annotations

from typing import Any

from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, num_elements
from aioflow.ops.apply import constant, convert_to_tensor, make
from aioflow.ops.variables.getting import get_variable
from aioflow.ops.variables.scope import variable_scope
from aioflow.ops.variables.slices import SaveSliceInfo
from aioflow.ops.variables.variable import Variable


def create_slot(
    primary: Variable | Tensor,
    initial_value: Any,
    name: str,
    dtype: DType | None = None,
    shape: Dims = None,
) -> Variable:
    """Create a non-trainable variable `primary/name` (made unique) beside `primary`, a variable or tensor.

    Args:
        primary: The owner.
        initial_value: A tensor or values, or a callable that makes them.
        name: Name of the slot.
        dtype: Dtype of the slot; by default that of the initial value, or of `primary` if this has none.
        shape: Static shape, if that of the initial value is unknown.

    Raises:
        InvalidArgumentError: the variable scope only reuses variables, and has none of that name.
    """
    graph = primary.graph
    # Python numbers, lists and callables have no dtype.
    element = getattr(initial_value, "dtype", primary.dtype) if dtype is None else dtype

    def initial() -> Tensor:
        start = convert_to_tensor(initial_value() if callable(initial_value) else initial_value, element)
        start.set_shape(shape)
        return start

    # A callable's shape is known only once it runs.
    known = shape is not None or not callable(initial_value)
    with (
        graph.as_default(),
        graph.control_dependencies(None),
        variable_scope(None, f"{primary.op.name}/{name}") as scope,
        graph.colocate_with(primary.op),
    ):
        scope.set_partitioner(None)  # a slot is never partitioned: its owner may itself be a part
        slot = get_variable("", dtype=element, initializer=initial, trainable=False, validate_shape=known)
    _join_slices(slot, primary)
    return slot


def _join_slices(slot: Variable, primary: Variable | Tensor) -> None:
    """Save the slot of a part as a part: `v/Momentum` is one tensor in a checkpoint, however `v` is partitioned."""
    info = primary.save_slice_info if isinstance(primary, Variable) else None
    if info is not None and slot.dims == primary.dims:
        scope, _, own = slot.op.name.rpartition(f"{primary.op.name}/")
        whole = f"{scope}{info.full_name}/{own}"
        slot.save_slice_info = SaveSliceInfo(whole, info.full_shape, info.var_offset, info.var_shape)


def filled_slot(primary: Variable | Tensor, value: float, name: str) -> Variable:
    """Create a slot of the shape of `primary`, with every element equal to `value`."""
    dims: Dims = primary.shape.raw

    def initial() -> Tensor:
        # The shape is known in the step only, from the owner's initial value.
        if num_elements(dims) is None:
            start = primary.initialized_value() if isinstance(primary, Variable) else primary
            sizes = make("Shape", start)
        else:
            sizes = constant([d for d in dims or () if d is not None], "int32", name="dims")
        return make("Fill", sizes, constant(value, primary.dtype, name="value"))

    return create_slot(primary, initial, name, primary.dtype, dims)
