"""What a tensor list is while a step runs. A stack is a pair of the stack below and its last tensor, the empty one an
empty tuple.

So a push costs one tuple, stacks share what they have in common, and reference counts free what nobody can pop any
more. What was made to be used by index is a Python list, copied by every change. None is a tensor that was never set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from aioflow.errors import InvalidArgumentError

__all__ = ["Items", "stack_of", "tensors_of"]

Items: TypeAlias = "tuple[Any, ...] | list[Any]"


def stack_of(tensors: Iterable[Any]) -> tuple[Any, ...]:
    """The stack of these tensors, the last one on top."""
    items: tuple[Any, ...] = ()
    for tensor in tensors:
        items = (items, tensor)
    return items


def tensors_of(items: Items) -> list[Any]:
    """What is in a list, in order. Raises InvalidArgumentError if it is not one: a handle may come from anywhere."""
    if isinstance(items, list):
        return items
    found: list[Any] = []
    while type(items) is tuple and len(items) == 2:
        items, last = items
        found.append(last)
    if isinstance(items, list):
        return items + found[::-1]
    if type(items) is not tuple:
        raise InvalidArgumentError("not a tensor list", expected="a tensor list", actual=type(items).__name__)
    found.reverse()
    return found
