"""Static knowledge of a tensor's value while the graph is built: enough for shapes, without calling kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.graph.shapes import Dims, num_elements
from aioflow.graph.traits import Role
from aioflow.graph.views import TensorView
from aioflow.memory.values import Array

# Returns the outputs, given the node and the values of the inputs. The rule may return None or raise NumPy's errors.
# The value is then unknown, and a step that runs the op reports the error.
ValueRule: TypeAlias = Callable[[Any, list[Array]], Array | list[Array] | None]
Fact: TypeAlias = Callable[[Any], Array | None]  # of a tensor

_LIMIT: Final = 4096  # elements: shapes, axes and permutations are small; larger values are data
LONGEST_KNOWN: Final = 4096  # elements of a range or a fill; longer ones are data
# Limit on the nodes between a value and the constants that it depends on; each takes a few Python frames.
_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class StaticValue:
    """The computation of an op's value while the graph is built, by NumPy functions on arrays of a few elements.

    Attributes:
        rule: Returns the value, given the values of the inputs.
        moves: The inputs whose elements the op only moves. For these, the rule accepts unknown elements, too.
        fact: Returns the known value of an output without the inputs' values; None stands for an unknown size.
    """

    rule: ValueRule | None = None
    moves: slice | None = None
    fact: Fact | None = None


def known_by(function: Callable[..., Any]) -> StaticValue:
    """Return the StaticValue of an op whose value is a function of the inputs' values alone."""
    return StaticValue(lambda op, inputs: function(*inputs))


def moving(rule: ValueRule, moves: slice = slice(1)) -> StaticValue:
    """Return the StaticValue of an op that only moves elements of the inputs in `moves`, by default the first."""
    return StaticValue(rule, moves)


def integers_only(value: StaticValue) -> StaticValue:
    """Return a StaticValue whose rule applies to integers only: a kernel may round floats differently."""
    rule = value.rule
    if rule is None:
        return value
    return replace(value, rule=lambda op, inputs: None if inputs[0].dtype.kind not in "iu" else rule(op, inputs))


def constant_value(tensor: TensorView) -> Array | None:
    """Return the tensor's value if it follows from constants and static shapes alone, else None. Do not modify it."""
    # Nearly every caller has a Const, which needs no search.
    if tensor.op.op_def.traits.role is Role.CONSTANT:
        value: Array = tensor.op.attrs["value"]
        return value
    found = _Search().value(tensor)
    return None if found is None or _is_partial(tensor, found) else found


def partial_value(tensor: TensorView) -> Array | None:
    """Return the integers of a tensor as far as they are known: an object array with None for each unknown one.

    Return None if the shape is unknown. A completely known value is returned as an ordinary array.
    """
    found = _Search().value(tensor)
    return _nothing(tensor) if found is None else found


def partial_shape(tensor: TensorView) -> Dims:
    """Read a tensor as a shape vector, with None for each size that is unknown or -1."""
    value = partial_value(tensor)
    return None if value is None else tuple(None if v is None or v < 0 else int(v) for v in value.reshape(-1))


class _Search:
    """One search, with a cache of the values found so far: a node may be read many times.

    A partially known integer value is an array of objects, with None for each unknown element.
    """

    __slots__ = ("_depth", "_found")

    def __init__(self) -> None:
        self._found: dict[TensorView, Array | None] = {}
        self._depth = 0

    def value(self, tensor: TensorView) -> Array | None:
        if tensor not in self._found:
            # Not cached: the same tensor may be reached on a shorter path later in the search.
            if self._depth >= _DEPTH:
                return None
            self._depth += 1
            known = tensor.op.op_def.value
            if known is not None:
                self._found[tensor] = self._by_rule(tensor, known) if known.fact is None else known.fact(tensor)
            else:
                # Cached as unknown, too: a node may be read many times.
                self._found[tensor] = None
            self._depth -= 1
        return self._found[tensor]

    def _by_rule(self, tensor: TensorView, known: StaticValue) -> Array | None:
        op = tensor.op
        count = num_elements(tensor.dims)
        # Checked before the inputs are searched: large values are data, whose computation belongs to the step.
        if known.rule is None or (count is not None and count > _LIMIT):
            return None
        # Only integers have partial values: None marks an unknown size, and floats are never shapes.
        moved = range(len(op.inputs))[known.moves] if known.moves and tensor.dtype.is_integer else ()
        inputs: list[Array] = []
        for i, source in enumerate(op.inputs):
            value = self.value(source)
            if i in moved:
                value = _nothing(source) if value is None else value
            elif value is not None and _is_partial(source, value):
                # A rule that computes cannot calculate with None, so one unknown element makes its result unknown.
                return None
            if value is None or value.size > _LIMIT:
                return None
            inputs.append(value)
        return _computed(tensor, known.rule, inputs)


def _is_partial(tensor: TensorView, value: Array) -> bool:
    return value.dtype.kind == "O" and tensor.dtype.is_integer


def _nothing(tensor: TensorView) -> Array | None:
    """Return an array of unknown elements in the tensor's shape, or None for large or non-integer tensors."""
    count = num_elements(tensor.dims)
    if count is None or count > _LIMIT or not tensor.dtype.is_integer:
        return None
    return np.full([d for d in tensor.dims or () if d is not None], None, dtype=object)


def _computed(tensor: TensorView, rule: ValueRule, inputs: list[Array]) -> Array | None:
    """Return the op's output for these inputs, or None if the rule fails; a step then reports the error."""
    try:
        # A division by zero while the graph is built must not warn: the step may never run the node.
        with np.errstate(all="ignore"):
            result = rule(tensor.op, inputs)
    except (ValueError, IndexError, TypeError, ArithmeticError):
        return None
    found = result[tensor.value_index] if isinstance(result, list) else result
    value = np.asarray(found)
    if found is None or value.size > _LIMIT:
        return None
    if _is_partial(tensor, value):
        if all(v is None for v in value.reshape(-1)):
            return None
        if any(v is None for v in value.reshape(-1)):
            return value
    # A rule may return Python or default NumPy types; the declared dtype decides.
    return np.asarray(value, dtype=tensor.dtype.np_dtype)
