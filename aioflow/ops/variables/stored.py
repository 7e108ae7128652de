"""Variables as they are stored with a graph: `VariableDef` messages."""

from __future__ import annotations

from typing import Any

from aioflow.errors import DTypeError
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import dims_of
from aioflow.ops.apply import make
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.slices import SaveSliceInfo
from aioflow.ops.variables.variable import Variable
from aioflow.protos import Message, message

__all__ = ["StoredVariable", "variable_def"]


def variable_def(variable: Any) -> Message:
    """The message of a variable."""
    made = message("VariableDef")(
        variable_name=variable.handle.name,
        initial_value_name=variable.initial_value.name,
        initializer_name=variable.initializer.name,
        snapshot_name=variable._as_graph_element().name,
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


class StoredVariable(Variable):
    """A variable of which the graph has all nodes, as a message names them.

    Args:
        scope: What stands before these names in the graph: "" or a name that ends with "/".

    Raises:
        NotFoundError: the graph has no such node (UnknownNameError).
        DTypeError: what is named is no variable.
    """

    def __init__(self, graph: Graph, stored: Message, scope: str = "") -> None:
        handle = graph.get_tensor_by_name(scope + stored.variable_name)
        if handle.op.type != "VarHandleOp":
            raise DTypeError("not the handle of a variable", expected="a VarHandleOp", actual=handle.op.type)
        self.synchronization = VariableSynchronization(stored.synchronization)
        self.aggregation = VariableAggregation(stored.aggregation)
        self._trainable = stored.trainable
        self._constraint = None
        self._caching_device = None
        self._handle = handle
        self._dims = dims_of(handle.op.attrs["shape"])
        self._dtype = handle.op.attrs["dtype"]
        self._cached = graph.get_tensor_by_name(scope + stored.snapshot_name)
        self._initializer: Operation = graph.get_operation_by_name(scope + stored.initializer_name)
        initial: Tensor = self._cached
        if stored.initial_value_name:
            initial = graph.get_tensor_by_name(scope + stored.initial_value_name)
        self._initial_value = initial
        if stored.HasField("save_slice_info_def"):
            info = stored.save_slice_info_def
            place = SaveSliceInfo(info.full_name, info.full_shape, info.var_offset, info.var_shape)
            self._set_save_slice_info(place)

    def initialized_value(self) -> Tensor:
        """The value where there is one, otherwise the initial value."""
        graph = self.graph
        with graph.as_default(), graph.control_dependencies(None), graph.colocate_with(self._handle.op):
            result: Tensor = make("_InitializedValue", self._handle, self._initial_value, name="initialized_value")
            return result
