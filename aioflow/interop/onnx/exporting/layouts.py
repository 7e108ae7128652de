"""Layouts of elementwise ops.

If some operands have their channels first, the others are brought to that layout. Convolutions joined by elementwise
ops then need no transposes in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue, channels_first_order

_OfTwo: TypeAlias = Callable[[ExportedNode, ModelValue, ModelValue], ModelValue]


def elementwise(node: ExportedNode, values: Sequence[ModelValue], make: Callable[..., ModelValue]) -> ModelValue:
    """Return the result of `make` on the values, which broadcast, in one layout."""
    plain, is_first = alike(node, values)
    made = make(*plain)
    return ModelValue(made.name, made.dtype, node.outputs[0].dims, None, True) if is_first else made


def of_two(*ops: str) -> Callable[[_OfTwo], _OfTwo]:
    """Return a decorator that registers a translation of two operands in any layout."""

    def register(function: _OfTwo) -> _OfTwo:
        @exporter(*ops, any_layout=True)
        def made(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
            return elementwise(node, [x, y], partial(function, node))

        return function

    return register


def alike(node: ExportedNode, values: Sequence[ModelValue]) -> tuple[list[ModelValue], bool]:
    """Return the values in one layout, and whether that layout has the channels first.

    The returned values are plain values of the model.
    """
    ranks = {value.rank for value in values if value.channels_first}
    rank = next(iter(ranks), None)
    # Operands of several ranks have no common order with the channels second.
    if rank is None or len(ranks) > 1 or not all(v.rank is not None and v.rank <= rank for v in values):
        return [node.rows(value) for value in values], False
    return [_first(node, value, rank) for value in values], True


def _first(node: ExportedNode, value: ModelValue, rank: int) -> ModelValue:
    if value.channels_first:
        return node.first(value)
    own = node.rank(value)
    if own == 0:
        return value
    if own == 1:
        # A vector belongs to the channels, the last axis of the graph's layout.
        return node.unsqueezed(value, range(1, rank - 1))
    # Missing axes are added at the front, as broadcasting does, before the channels move to the second place.
    whole = node.unsqueezed(value, range(rank - own))
    return node.transposed(whole, channels_first_order(rank))
