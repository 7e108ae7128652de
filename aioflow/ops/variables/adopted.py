"""Variables of graphs read from a file, made around a handle that the graph already has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aioflow.errors import DTypeError
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.shapes import dims_of
from aioflow.ops.apply import make, make_op
from aioflow.ops.core import no_op
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.variable import Variable


class AdoptedVariable(Variable):
    """A variable around an existing handle, and possibly an existing read.

    The constructor adds the other nodes of a variable, under their usual names.

    Args:
        handle: The output of a `VarHandleOp`.
        initial_value: Returns the initial value; it is called in the scope of the initializer. Without it, the
            initializer leaves the variable unchanged, so that it can run together with those of all other variables.
        read: The read that represents the variable as a tensor; by default, a new one.
        trainable: Whether optimizers update it by default.
        collections: Graph collections to join; by default the global variables.

    Raises:
        DTypeError: `handle` is not the handle of a variable.
    """

    def __init__(
        self,
        handle: Tensor,
        initial_value: Callable[[], Tensor] | None = None,
        read: Tensor | None = None,
        trainable: bool = True,
        collections: Iterable[str] | None = None,
    ) -> None:
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
        graph: Graph = node.graph
        with graph.as_default(), graph.control_dependencies(None), graph.name_scope(f"{node.name}/"):
            with graph.colocate_with(node):
                with graph.name_scope("IsInitialized"):
                    make("VarIsInitializedOp", handle)
                self._cached = self._new_read(graph) if read is None else read
            if initial_value is None:
                self._initial_value = self._cached
                self._initializer = no_op(name="Assign")
            else:
                with graph.colocate_with(node):
                    with graph.name_scope("Initializer"):
                        self._initial_value = initial_value()
                    self._initializer = make_op("AssignVariableOp", handle, self._initial_value, name="Assign")
        self._join(graph, collections)

    def initialized_value(self) -> Tensor:
        """Return the value, or the initial value; if there is no initial value, the value must be set before."""
        return self.value() if self._initial_value is self._cached else super().initialized_value()

    def _new_read(self, graph: Graph) -> Tensor:
        with graph.name_scope("Read"):
            found: Tensor = self._read()
            return found
