"""Gradients that a test knows to be dense tensors."""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices

__all__ = ["dense"]


def dense(gradients: Iterable[Tensor | IndexedSlices | None]) -> list[Tensor]:
    """Return the gradients, and check that each is a tensor."""
    found = list(gradients)
    tensors = [g for g in found if isinstance(g, Tensor)]
    assert tensors == found
    return tensors
