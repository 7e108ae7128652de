"""What `gradients` gives, where a test knows that all of it is tensors."""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices

__all__ = ["dense"]


def dense(gradients: Iterable[Tensor | IndexedSlices | None]) -> list[Tensor]:
    """The gradients, none of which is missing or sparse."""
    found = list(gradients)
    tensors = [g for g in found if isinstance(g, Tensor)]
    assert tensors == found
    return tensors
