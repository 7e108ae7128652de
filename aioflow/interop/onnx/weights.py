"""Which weights of a model may be trained, and the variables that they become then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from onnx import GraphProto

from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.static_value import constant_value
from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.names import node_name
from aioflow.ops.apply import constant_of
from aioflow.ops.variables.variable import Variable

__all__ = ["Weights", "statistics_of"]

# The inputs that an op only reads, though they are floats: the running moments.
_STATISTICS: Final[Mapping[str, tuple[int, ...]]] = {"BatchNormalization": (3, 4)}


def statistics_of(graph: GraphProto) -> frozenset[str]:
    """The weights that no training changes: the running moments of batch normalization."""
    return frozenset(
        node.input[i] for node in graph.node for i in _STATISTICS.get(node.op_type, ()) if i < len(node.input)
    )


class Weights:
    """What the weights of a model become: constants, or variables where they are floats and to be trained.

    Attributes:
        variables: The variables, by the names of the model.
    """

    def __init__(self, trainable: bool = False, fixed: Iterable[str] = ()) -> None:
        self.variables: dict[str, Variable] = {}
        self._trainable = trainable
        self._fixed = frozenset(fixed)
        self._values: dict[Tensor, Array] = {}

    def tensor(self, name: str, value: Array) -> Tensor:
        """The tensor that stands for a weight."""
        node = node_name(name, "weight")
        if not self._trainable or name in self._fixed or not as_dtype(value.dtype).is_floating or not value.ndim:
            return constant_of(value, node)
        initial = constant_of(value, f"{node}/initial_value")
        self.variables[name] = variable = Variable(initial, name=node)
        read = variable.value()
        self._values[read] = value
        return read

    def constant(self, tensor: Tensor) -> Array | None:
        """The value of a tensor, if it is known while the graph is built; otherwise None. Do not modify it.

        Of a weight that has become a variable it is that of the file: what shapes the graph itself is not trained.
        """
        found = self._values.get(tensor)
        return constant_value(tensor) if found is None else found
