"""What the model that is being made consists of: values, nodes, and graphs in nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from aioflow.graph.arrays import Array
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims

__all__ = ["Body", "Made", "Rows", "Value", "channels_first_order", "channels_last_order"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What an array of tensors is in the model: their stack, if anything was written into it.

    Attributes:
        size: How many there are, int64 [1].
        is_awaited: A loop is to write it, row by row, and this is its body.
        is_next: The value is the one row that an iteration of a loop adds; after the loop it is the stack of them.
    """

    size: Value
    is_awaited: bool = False
    is_next: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the model.

    Attributes:
        name: In the model.
        dtype: Of its elements.
        dims: Its static shape as our graph has it, as far as it is known.
        constant: What it is, if that is known.
        rows: It is an array of tensors rather than a tensor.
        channels_first: Its axes are in the order of ONNX's convolutions, where our graph has the channels last.
    """

    name: str
    dtype: DType
    dims: Dims = None
    constant: Array | None = None
    channels_first: bool = False
    rows: Rows | None = None

    @property
    def rank(self) -> int | None:
        """How many axes it has, if that is known."""
        return None if self.dims is None else len(self.dims)

    @property
    def is_static(self) -> bool:
        """Whether all its sizes are known."""
        return self.dims is not None and None not in self.dims

    def of(self, dims: Dims) -> Value:
        """The same value, of which this static shape is known."""
        return replace(self, dims=dims)


@dataclass(slots=True, eq=False)
class Made:
    """A node of the model; its attributes may be graphs."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def bodies(self) -> list[Body]:
        """The graphs among its attributes."""
        return [value for value in self.attrs.values() if isinstance(value, Body)]

    def reads(self) -> set[str]:
        """Names of all that it needs, its graphs included."""
        found = set(self.inputs)
        for body in self.bodies:
            found |= body.reads()
        return found - {""}


@dataclass(slots=True, eq=False)
class Body:
    """A graph: that of the model, or one in a node."""

    name: str
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Made] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def reads(self) -> set[str]:
        """Names of all that its nodes and outputs read, from within or from outside."""
        found = {value.name for value in self.outputs}
        for node in self.nodes:
            found |= node.reads()
        return found


def channels_first_order(rank: int) -> tuple[int, ...]:
    """The permutation from [batch, …, channels] to [batch, channels, …]."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_last_order(rank: int) -> tuple[int, ...]:
    """The permutation from [batch, channels, …] to [batch, …, channels]."""
    return (0, *range(2, rank), 1)
