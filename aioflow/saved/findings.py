"""What a survey of a model file says, and which constants of a graph are weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aioflow.graph.graphdef import GraphDef, TensorData
from aioflow.interop.unsupported import UnsupportedOp
from aioflow.saved.opening import Kind

__all__ = ["Parameter", "Survey", "constants", "count", "counted", "is_weight", "parameter"]

# Dtypes of constants that are sizes, indices, masks, words. Weights are floating-point numbers, or integers of a byte.
_NO_WEIGHTS: Final = frozenset(
    {"bool", "int16", "int32", "int64", "uint16", "uint32", "uint64", "object", "string", "resource", "variant"}
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of weights. `dtype` is the file's name for it, `size` its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in a file.

    Attributes:
        kind: The format.
        producer: What wrote it, for people; "" where it does not say.
        versions: Of what, as the file calls it: {"format": "1"}, {"IR": "8", "opset": "17"}.
        ops: How many nodes of each op there are, those of functions and branches included.
        parameters: Weights: values of variables, and constants that are weights (`is_weight`).
        unsupported: Nodes of ops that nobody has registered, where that can be told.
    """

    kind: Kind
    producer: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, int] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    unsupported: tuple[UnsupportedOp, ...] = ()


def parameter(name: str, dtype: str, shape: Iterable[int | None], each: int) -> Parameter:
    """A tensor with so many bytes an element; a size that is not known counts as none."""
    sizes = tuple(size or 0 for size in shape)
    return Parameter(name, dtype, sizes, count(sizes) * each)


def is_weight(dtype: str, shape: Iterable[int]) -> bool:
    """Whether a constant counts as weights: floating-point or complex numbers, or integers of at most eight bits, as
    quantized weights are, and more than one. Wider integers are sizes, axes and indices, booleans are masks.
    """
    return dtype not in _NO_WEIGHTS and count(shape) > 1


def constants(definition: GraphDef) -> Iterator[Parameter]:
    """Constants that are weights, as those of a frozen graph are."""
    for node in (*definition.nodes, *(node for function in definition.functions for node in function.nodes)):
        for value in node.attrs.values():
            if isinstance(value, TensorData) and is_weight(value.dtype.name, value.shape):
                yield parameter(node.name, value.dtype.name, value.shape, value.dtype.size)


def counted(definition: GraphDef) -> Mapping[str, int]:
    """How many nodes of each op there are."""
    nodes = [*definition.nodes, *(node for function in definition.functions for node in function.nodes)]
    return Counter(node.op for node in nodes)


def count(shape: Iterable[int]) -> int:
    """How many elements there are."""
    return int(np.prod([int(size) for size in shape], dtype=object))
