"""Conversion of variables from and to `VariableDef` messages, which graphs are stored with."""

from __future__ import annotations

from typing import Any

from aioflow.errors import DTypeError
from aioflow.graph.graph import Graph
from aioflow.graph.shapes import dims_of
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.slices import SaveSliceInfo
from aioflow.protos import Message, is_message, message


def variable_def(variable: Any, export_scope: str | None = None) -> Message:
    """Return the message of a variable, with names relative to a scope; None if the variable is outside the scope."""
    scope = f"{export_scope.removesuffix('/')}/" if export_scope else ""
    if not variable.handle.name.startswith(scope):
        return None
    made = message("VariableDef")(
        variable_name=variable.handle.name.removeprefix(scope),
        initial_value_name=variable.initial_value.name.removeprefix(scope),
        initializer_name=variable.initializer.name.removeprefix(scope),
        snapshot_name=variable.snapshot.name.removeprefix(scope),
        is_resource=True,
        trainable=variable.trainable,
        synchronization=variable.synchronization.value,
        aggregation=variable.aggregation.value,
    )
    part = variable._get_save_slice_info()
    if part is not None:
        info = made.save_slice_info_def
        info.full_name = part.full_name
        info.full_shape.extend(part.full_shape)
        info.var_offset.extend(part.var_offset)
        info.var_shape.extend(part.var_shape)
    return made


def take_up(variable: Any, graph: Graph, stored: Any, import_scope: str | None) -> None:
    """Set the attributes of a variable from a message; the graph already has all its nodes.

    Args:
        variable: The variable to set.
        graph: The graph of its nodes.
        stored: The `VariableDef` message.
        import_scope: Name scope of these names in the graph.

    Raises:
        DTypeError: the message is not a VariableDef, or does not name a variable.
        NotFoundError: the graph has no such node (UnknownNameError).
    """
    if not is_message(stored, "VariableDef"):
        raise DTypeError("not the message of a variable", expected="a VariableDef", actual=type(stored).__name__)
    scope = f"{import_scope.removesuffix('/')}/" if import_scope else ""
    node = graph.get_operation_by_name((scope + stored.variable_name).removesuffix(":0"))
    if node.type != "VarHandleOp":
        raise DTypeError("not the handle of a variable", expected="a VarHandleOp", actual=node.type)
    handle = node.outputs[0]
    variable.synchronization = VariableSynchronization(stored.synchronization)
    variable.aggregation = VariableAggregation(stored.aggregation)
    variable._trainable = stored.trainable
    variable._constraint = None
    variable._caching_device = None
    variable._handle = handle
    variable._dims = dims_of(handle.op.attrs["shape"])
    variable._dtype = handle.op.attrs["dtype"]
    variable._is_initialized = None
    variable._cached = graph.get_tensor_by_name(scope + stored.snapshot_name)
    variable._initializer = graph.get_operation_by_name(scope + stored.initializer_name)
    initial = stored.initial_value_name
    variable._initial_value = graph.get_tensor_by_name(scope + initial) if initial else variable._cached
    if stored.HasField("save_slice_info_def"):
        info = stored.save_slice_info_def
        place = SaveSliceInfo(info.full_name, info.full_shape, info.var_offset, info.var_shape)
        variable._set_save_slice_info(place)
    graph.add_variable(variable)
