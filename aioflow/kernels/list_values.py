"""The representation of tensor lists in a step.

A stack is a pair of the stack below and its last tensor; the empty stack is an empty tuple. A push costs one tuple,
stacks share their common part, and reference counts free tensors that can no longer be popped. Lists that are created
for access by index are Python lists, copied by every change. None stands for a tensor that was never set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.memory.values import Value

Items: TypeAlias = "tuple[Any, ...] | list[Any]"


def stack_of(tensors: Iterable[Value]) -> tuple[Value, ...]:
    """Return the stack of these tensors, with the last one on top."""
    items: tuple[Value, ...] = ()
    for tensor in tensors:
        items = (items, tensor)
    return items


def tensors_of(items: Items) -> list[Any]:
    """Return the tensors of a list in order. Raise InvalidArgumentError if it is not a tensor list."""
    if isinstance(items, list):
        return items
    found: list[Any] = []
    while type(items) is tuple and len(items) == 2:
        items, last = items
        found.append(last)
    # Tensors may be pushed on a list that was created for access by index, which is then at the bottom.
    if isinstance(items, list):
        return items + found[::-1]
    if type(items) is not tuple:
        raise InvalidArgumentError("not a tensor list", expected="a tensor list", actual=type(items).__name__)
    found.reverse()
    return found
