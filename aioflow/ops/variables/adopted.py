"""Variables of graphs that were imported: the handle is there, and the values come from a file."""

from __future__ import annotations

from aioflow.errors import DTypeError
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import dims_of
from aioflow.ops.apply import make
from aioflow.ops.core import no_op
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.variable import Variable

__all__ = ["AdoptedVariable"]


class AdoptedVariable(Variable):
    """The variable that a handle stands for. It joins the collections of its graph.

    Its initializer leaves it as it is, so that the initializers of all variables can be run beside it.

    Args:
        handle: The output of a VarHandleOp.
        trainable: Whether optimizers change it by default.

    Raises:
        DTypeError: it is something else.
    """

    def __init__(self, handle: Tensor, trainable: bool = True) -> None:
        node = handle.op
        if node.type != "VarHandleOp":
            raise DTypeError("not the handle of a variable", expected="a VarHandleOp", actual=node.type)
        self.synchronization = VariableSynchronization.AUTO
        self.aggregation = VariableAggregation.NONE
        self._trainable = trainable
        self._constraint = None
        self._caching_device = None
        self._handle = handle
        self._dims = dims_of(node.attrs["shape"])
        self._dtype = node.attrs["dtype"]
        graph = node.graph
        with graph.as_default(), graph.control_dependencies(None), graph.name_scope(f"{node.name}/"):
            self._initializer = no_op(name="Assign")
            with graph.colocate_with(node):
                with graph.name_scope("IsInitialized"):
                    self._is_initialized = make("VarIsInitializedOp", handle)
                with graph.name_scope("Read"):
                    self._cached = self._read()
        self._initial_value = self._cached
        kinds = [GraphKeys.GLOBAL_VARIABLES, *([GraphKeys.TRAINABLE_VARIABLES] if trainable else [])]
        graph.add_to_collections(kinds, self)

    def initialized_value(self) -> Tensor:
        """The value, which there is when the file has been read."""
        return self.value()
