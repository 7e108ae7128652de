"""The weights of an ONNX model as constants, trainable variables or optional inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from onnx import GraphProto

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.graph.static_value import constant_value
from aioflow.interop.onnx.names import node_name
from aioflow.memory.values import Array
from aioflow.ops.apply import constant_of
from aioflow.ops.core import placeholder_with_default
from aioflow.ops.variables.variable import Variable

# Floating-point inputs that training must not change: the running moments, and the scales of a resize.
_STATISTICS: Final[Mapping[str, tuple[int, ...]]] = {"BatchNormalization": (3, 4), "Resize": (1, 2), "Upsample": (1,)}


def statistics_of(graph: GraphProto) -> frozenset[str]:
    """Return the names of weights that no training changes: running moments of batch normalization, resize scales."""
    return frozenset(
        node.input[i] for node in graph.node for i in _STATISTICS.get(node.op_type, ()) if i < len(node.input)
    )


class ModelWeights:
    """The translation of a model's weights to tensors.

    A floating-point weight becomes a variable if the model is trainable. A weight that the model also lists as an input
    becomes an optional input. All others become constants.

    Args:
        trainable: Whether floating-point weights become variables.
        fixed: Names of weights that training never changes.
        defaults: Shapes of the inputs that have a weight as their default value, by name.

    Attributes:
        variables: The variables, by their names in the model.
        optional: The optional inputs, by their names in the model.
        asked: Names of the optional inputs whose values a translation needed while the graph was built.
    """

    def __init__(
        self, trainable: bool = False, fixed: Iterable[str] = (), defaults: Mapping[str, Dims] | None = None
    ) -> None:
        self.variables: dict[str, Variable] = {}
        self.optional: dict[str, Tensor] = {}
        self.asked: set[str] = set()
        self._defaults = defaults or {}
        self._inputs: dict[Tensor, str] = {}
        self._trainable = trainable
        self._fixed = frozenset(fixed)
        self._values: dict[Tensor, Array] = {}

    def tensor(self, name: str, value: Array) -> Tensor:
        """Return the tensor for the weight `name`: a variable's value, an optional input or a constant."""
        node = node_name(name, "weight")
        if self._is_trained(name, value):
            return self._variable(name, node, value)
        return self._input(name, node, value) if name in self._defaults else constant_of(value, node)

    def _input(self, name: str, node: str, value: Array) -> Tensor:
        if not is_compatible(self._defaults[name], value.shape):
            raise InvalidArgumentError(
                f"the default value of input {name!r} has another shape than the input",
                expected=format_dims(self._defaults[name]),
                actual=list(value.shape),
            )
        default = constant_of(value, f"{node}/default_value")
        self.optional[name] = made = placeholder_with_default(default, self._defaults[name], node)
        self._inputs[made] = name
        return made

    def of_node(self, name: str, value: Array) -> Tensor:
        """Return the tensor for the output of a Constant node, in the name scope of that node."""
        # Models without initializers hold their weights in Constants, beside numbers of the computation, which mostly
        # have one element.
        if value.size > 1 and self._is_trained(name, value):
            return self._variable(name, "weight", value)
        return constant_of(value)

    def _is_trained(self, name: str, value: Array) -> bool:
        floats = as_dtype(value.dtype).is_floating and value.ndim > 0
        return self._trainable and floats and name not in self._fixed

    def _variable(self, name: str, node: str, value: Array) -> Tensor:
        initial = constant_of(value, f"{node}/initial_value")
        self.variables[name] = variable = Variable(initial, name=node)
        read = variable.value()
        self._values[read] = value
        return read

    def constant(self, tensor: Tensor) -> Array | None:
        """Return the value of a tensor that is known while the graph is built, or None. Do not modify it.

        For a weight that became a variable, this is the value in the file: values that determine the graph's structure
        are not trained.
        """
        if tensor in self._inputs:
            self.asked.add(self._inputs[tensor])
        found = self._values.get(tensor)
        return constant_value(tensor) if found is None else found
