"""Conversion of variables from and to `VariableDef` messages, which graphs are stored with."""

from __future__ import annotations

from typing import Any, NamedTuple

from aioflow.errors import DTypeError
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.slices import SaveSliceInfo
from aioflow.protos import Message, is_message, message


def variable_def(variable: Any, export_scope: str | None = None) -> Message:
    """Return the message of a variable, with names relative to a scope; None if the variable is outside the scope."""
    scope = f"{export_scope.removesuffix('/')}/" if export_scope else ""
    # Names are stored without the scope, so that they can be imported into another one.
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
    part = variable.save_slice_info
    if part is not None:
        info = made.save_slice_info_def
        info.full_name = part.full_name
        info.full_shape.extend(part.full_shape)
        info.var_offset.extend(part.var_offset)
        info.var_shape.extend(part.var_shape)
    return made


class StoredVariable(NamedTuple):
    """A variable of a graph, found by its `VariableDef` message."""

    handle: Tensor
    snapshot: Tensor
    initializer: Operation
    initial_value: Tensor
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    save_slice_info: SaveSliceInfo | None


def find_stored(graph: Graph, stored: Message, import_scope: str | None) -> StoredVariable:
    """Return the variable that a message names; the graph already has all its nodes.

    Args:
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
    # A message names a variable by the tensor of its handle.
    node = graph.get_operation_by_name((scope + stored.variable_name).removesuffix(":0"))
    if node.type != "VarHandleOp":
        raise DTypeError("not the handle of a variable", expected="a VarHandleOp", actual=node.type)
    snapshot = graph.get_tensor_by_name(scope + stored.snapshot_name)
    initializer = graph.get_operation_by_name(scope + stored.initializer_name)
    initial = stored.initial_value_name
    place = None
    if stored.HasField("save_slice_info_def"):
        info = stored.save_slice_info_def
        place = SaveSliceInfo(info.full_name, info.full_shape, info.var_offset, info.var_shape)
    return StoredVariable(
        node.outputs[0],
        snapshot,
        initializer,
        # Some messages do not name the initial value.
        graph.get_tensor_by_name(scope + initial) if initial else snapshot,
        stored.trainable,
        VariableSynchronization(stored.synchronization),
        VariableAggregation(stored.aggregation),
        place,
    )
