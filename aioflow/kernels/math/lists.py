"""Sums of tensor lists, for example of gradients that flow to one list from several places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioflow.kernels.list_values import Items, stack_of, tensors_of
from aioflow.kernels.registry import kernel
from aioflow.memory.values import Value


@kernel("AddN", dtypes={"T": ("variant",)})
def add_n(lists: Iterable[Items]) -> tuple[Any, ...]:
    """Return a list of the sums of the tensors at the same positions."""
    return stack_of(map(_sum, zip(*map(tensors_of, lists), strict=True)))


def _sum(tensors: tuple[Any, ...]) -> Value:
    present = [t for t in tensors if t is not None]
    if not present:
        return None
    return add_n(present) if isinstance(present[0], tuple | list) else sum(present[1:], present[0])
