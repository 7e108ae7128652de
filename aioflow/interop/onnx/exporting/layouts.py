"""Elementwise work on values of which some have their channels first: the others are brought to that, so that the
transposes between convolutions never come to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioflow.interop.onnx.exporting.node import Node
from aioflow.interop.onnx.exporting.values import Value, channels_first_order

__all__ = ["alike", "elementwise"]


def elementwise(node: Node, values: Sequence[Value], make: Callable[..., Value]) -> Value:
    """What `make` makes of the values, which broadcast, in one layout."""
    plain, is_first = alike(node, values)
    made = make(*plain)
    return Value(made.name, made.dtype, node.outputs[0].dims, None, True) if is_first else made


def alike(node: Node, values: Sequence[Value]) -> tuple[list[Value], bool]:
    """The values in one layout, as plain values of the model, and whether that has the channels first."""
    ranks = {value.rank for value in values if value.channels_first}
    rank = next(iter(ranks), None)
    if rank is None or len(ranks) > 1 or not all(v.rank is not None and v.rank <= rank for v in values):
        return [node.rows(value) for value in values], False
    return [_first(node, value, rank) for value in values], True


def _first(node: Node, value: Value, rank: int) -> Value:
    if value.channels_first:
        return node.first(value)
    own = node.rank(value)
    if own == 0:
        return value
    if own == 1:
        return node.unsqueezed(value, range(1, rank - 1))
    whole = node.unsqueezed(value, range(rank - own))
    return node.transposed(whole, channels_first_order(rank))
