"""Elements of the model under construction: values, nodes, and graphs in nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.memory.values import Array


@dataclass(frozen=True, slots=True, eq=False)
class TensorArrayRows:
    """An array of tensors in the model. Its value is the stack of its rows, once any are written.

    Attributes:
        size: Number of rows, int64 [1].
        is_awaited: True in the body of the loop that writes the array row by row.
        is_next: True if the value is the one row that an iteration of a loop adds. After the loop it is their stack.
    """

    size: ModelValue
    is_awaited: bool = False
    is_next: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ModelValue:
    """A value of the model.

    Attributes:
        name: Name in the model.
        dtype: Dtype of its elements.
        dims: Static shape in the graph's own layout, as far as it is known.
        constant: The value itself, if it is known.
        channels_first: Whether its axes are in the order of ONNX's convolutions, while the graph has the channels last.
        rows: Set for an array of tensors; None for a tensor.
    """

    name: str
    dtype: DType
    dims: Dims = None
    constant: Array | None = None
    channels_first: bool = False
    rows: TensorArrayRows | None = None

    @property
    def rank(self) -> int | None:
        """Number of axes, if it is known."""
        return None if self.dims is None else len(self.dims)

    @property
    def is_static(self) -> bool:
        """True if all sizes are known."""
        return self.dims is not None and None not in self.dims

    def of(self, dims: Dims) -> ModelValue:
        """Return the same value with this static shape."""
        return replace(self, dims=dims)


@dataclass(slots=True, eq=False)
class Made:
    """A node of the model. Its attributes may be graphs."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attrs: Attrs = field(default_factory=dict)

    @property
    def bodies(self) -> list[ModelGraph]:
        """Graphs among the attributes."""
        return [value for value in self.attrs.values() if isinstance(value, ModelGraph)]

    def reads(self) -> set[str]:
        """Return the names of all values that the node reads, also inside its graphs."""
        found = set(self.inputs)
        for body in self.bodies:
            found |= body.reads()
        # An empty name stands for an omitted input.
        return found - {""}


@dataclass(slots=True, eq=False)
class ModelGraph:
    """A graph: the model's main graph, or one in a node."""

    name: str
    inputs: list[ModelValue] = field(default_factory=list)
    nodes: list[Made] = field(default_factory=list)
    outputs: list[ModelValue] = field(default_factory=list)

    def reads(self) -> set[str]:
        """Return the names of all values that nodes and outputs read, made inside or outside of the graph."""
        found = {value.name for value in self.outputs}
        for node in self.nodes:
            found |= node.reads()
        return found


def channels_first_order(rank: int) -> tuple[int, ...]:
    """Return the permutation from [batch, …, channels] to [batch, channels, …]."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_last_order(rank: int) -> tuple[int, ...]:
    """Return the permutation from [batch, channels, …] to [batch, …, channels]."""
    return (0, *range(2, rank), 1)
