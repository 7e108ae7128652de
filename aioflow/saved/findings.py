"""The result of a survey of a model file, and the criterion for constants that are weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from aioflow.graph.graphdef import GraphDef, TensorData
from aioflow.interop.unsupported import UnsupportedOp
from aioflow.saved.opening import ModelFormat

# Dtypes of sizes, indices, masks and words. Weights are floating-point numbers, or integers of one byte.
_NO_WEIGHTS: Final = frozenset(
    {"bool", "int16", "int32", "int64", "uint16", "uint32", "uint64", "object", "string", "resource", "variant"}
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of weights. `dtype` is the file's name for its dtype, `size` its size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of a model file.

    Attributes:
        kind: The format.
        producer: The program that wrote the file, for display; "" if unknown.
        versions: Version numbers, under the file's names for them: {"format": "1"}, {"IR": "8", "opset": "17"}.
        ops: Number of nodes of each op, including those in functions and branches.
        parameters: Weights: values of variables, and constants that are weights (`is_weight`).
        unsupported: Nodes of ops that are not registered, if the format allows finding them.
    """

    kind: ModelFormat
    producer: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, int] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    unsupported: tuple[UnsupportedOp, ...] = ()


def parameter(name: str, dtype: str, shape: Iterable[int | None], each: int) -> Parameter:
    """Return the entry of a tensor with `each` bytes per element. An unknown size counts as 0."""
    sizes = tuple(size or 0 for size in shape)
    return Parameter(name, dtype, sizes, count(sizes) * each)


def is_weight(dtype: str, shape: Iterable[int]) -> bool:
    """Return True if a constant counts as weights.

    Weights are floating-point or complex numbers, or integers of at most eight bits, as in quantized models, with more
    than one element. Wider integers are sizes, axes and indices; booleans are masks.
    """
    # Single numbers are parameters of ops, such as an epsilon.
    return dtype not in _NO_WEIGHTS and count(shape) > 1


def constants(definition: GraphDef) -> Iterator[Parameter]:
    """Yield the constants that are weights, like those of a frozen graph."""
    for node in (*definition.nodes, *(node for function in definition.functions for node in function.nodes)):
        for value in node.attrs.values():
            if isinstance(value, TensorData) and is_weight(value.dtype.name, value.shape):
                yield parameter(node.name, value.dtype.name, value.shape, value.dtype.size)


def counted(definition: GraphDef) -> Mapping[str, int]:
    """Return the number of nodes of each op."""
    # A function counts once, however often it is called.
    nodes = [*definition.nodes, *(node for function in definition.functions for node in function.nodes)]
    return Counter(node.op for node in nodes)


def count(shape: Iterable[int]) -> int:
    """Return the number of elements."""
    # As Python integers: the sizes that a file states may overflow int64.
    return math.prod(int(size) for size in shape)
