"""What is known about a tensor's value while the graph is being built: enough for shapes, never a kernel call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from aioflow.graph.shapes import num_elements
from aioflow.graph.static_rules import ELEMENTS, FACTS, RULES

if TYPE_CHECKING:
    from aioflow.graph.arrays import Array
    from aioflow.graph.shapes import Dims
    from aioflow.graph.tensor import Tensor

__all__ = ["constant_value", "partial_shape", "partial_value"]

_LIMIT: Final = 4096  # elements: shapes, axes and permutations are small; larger values are data
_DEPTH: Final = 100  # nodes between a value and the constants it follows from; each takes a few Python frames


def constant_value(tensor: Tensor) -> Array | None:
    """The tensor's value, if it follows from constants and static shapes alone; otherwise None. Do not modify it."""
    if tensor.op.type == "Const":  # nearly always: no search is needed
        value: Array = tensor.op.attrs["value"]
        return value
    found = _Search().value(tensor)
    return None if found is None or _is_partial(tensor, found) else found


def partial_value(tensor: Tensor) -> Array | None:
    """The integers of a tensor as far as they are known: an array of objects with None for each one that is not.

    None where not even the shape is known; a value that is known as a whole comes as it is.
    """
    found = _Search().value(tensor)
    return _nothing(tensor) if found is None else found


def partial_shape(tensor: Tensor) -> Dims:
    """A tensor read as a shape vector, with None for each size that is not known, or that is -1."""
    value = partial_value(tensor)
    return None if value is None else tuple(None if v is None or v < 0 else int(v) for v in value.reshape(-1))


class _Search:
    """One search: the values found so far, since a node that is read many times must be worked out once.

    A value of integers of which only some are known is an array of objects, with None for the others.
    """

    __slots__ = ("_depth", "_found")

    def __init__(self) -> None:
        self._found: dict[Tensor, Array | None] = {}
        self._depth = 0

    def value(self, tensor: Tensor) -> Array | None:
        if tensor not in self._found:
            if self._depth >= _DEPTH:
                return None
            self._depth += 1
            fact = FACTS.get(tensor.op.type)
            self._found[tensor] = self._by_rule(tensor) if fact is None else fact(tensor)
            self._depth -= 1
        return self._found[tensor]

    def _by_rule(self, tensor: Tensor) -> Array | None:
        op = tensor.op
        count = num_elements(tensor.dims)
        if op.type not in RULES or (count is not None and count > _LIMIT):
            return None
        moved = range(len(op.inputs))[ELEMENTS.get(op.type, slice(0))] if tensor.dtype.is_integer else ()
        inputs: list[Array] = []
        for i, source in enumerate(op.inputs):
            value = self.value(source)
            if i in moved:
                value = _nothing(source) if value is None else value
            elif value is not None and _is_partial(source, value):
                return None
            if value is None or value.size > _LIMIT:
                return None
            inputs.append(value)
        return _computed(tensor, inputs)


def _is_partial(tensor: Tensor, value: Array) -> bool:
    return value.dtype.kind == "O" and tensor.dtype.is_integer


def _nothing(tensor: Tensor) -> Array | None:
    """An element of the tensor each, of which nothing is known."""
    count = num_elements(tensor.dims)
    if count is None or count > _LIMIT or not tensor.dtype.is_integer:
        return None
    return np.full([d for d in tensor.dims or () if d is not None], None, dtype=object)


def _computed(tensor: Tensor, inputs: list[Array]) -> Array | None:
    """What the op gives for these inputs; None where it cannot be worked out: a step says what is wrong with it."""
    try:
        with np.errstate(all="ignore"):
            result = RULES[tensor.op.type](tensor.op, inputs)
    except (ValueError, IndexError, TypeError, ArithmeticError):
        return None
    found = result[tensor.value_index] if isinstance(result, list) else result
    value = np.asarray(found)
    if found is None or value.size > _LIMIT:
        return None
    if _is_partial(tensor, value):
        if all(v is None for v in value.flat):
            return None
        if any(v is None for v in value.flat):
            return value
    return np.asarray(value, dtype=tensor.dtype.np_dtype)
