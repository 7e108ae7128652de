"""Which weights of a model may be trained, and the variables that they become then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from onnx import GraphProto

from aioflow.errors import InvalidArgumentError
from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.graph.static_value import constant_value
from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.names import node_name
from aioflow.ops.apply import constant_of
from aioflow.ops.core import placeholder_with_default
from aioflow.ops.variables.variable import Variable

__all__ = ["Weights", "statistics_of"]

# The inputs that an op only reads, though they are floats: running moments, and how far images are resized.
_STATISTICS: Final[Mapping[str, tuple[int, ...]]] = {"BatchNormalization": (3, 4), "Resize": (1, 2), "Upsample": (1,)}


def statistics_of(graph: GraphProto) -> frozenset[str]:
    """The weights that no training changes: the running moments of batch normalization, and what tells shapes."""
    return frozenset(
        node.input[i] for node in graph.node for i in _STATISTICS.get(node.op_type, ()) if i < len(node.input)
    )


class Weights:
    """What the weights of a model become: constants, variables where they are floats and to be trained, or optional
    inputs where the model lists them among its inputs.

    Args:
        fixed: Those that no training changes.
        defaults: The shapes of those that are default values of inputs.

    Attributes:
        variables: The variables, by the names of the model.
        optional: The optional inputs.
        asked: Those of them whose values a translation wanted to know, and was not told.
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
        """The tensor that stands for a weight."""
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
        """The tensor that stands for the output of a Constant, in the name scope of that node.

        Where no initializer is, numbers of the computation are Constants as weights are, mostly of one element.
        """
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
        """The value of a tensor, if it is known while the graph is built; otherwise None. Do not modify it.

        Of a weight that has become a variable it is that of the file: what shapes the graph itself is not trained.
        """
        if tensor in self._inputs:
            self.asked.add(self._inputs[tensor])
        found = self._values.get(tensor)
        return constant_value(tensor) if found is None else found
