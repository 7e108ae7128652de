"""Kernels of tensor lists. A list is a pair of the list below and its last tensor, the empty one an empty tuple.

So a push costs one tuple, lists share what they have in common, and reference counts free what nobody can pop any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import as_ints
from aioflow.kernels.registry import Binding, binder, kernel

__all__: list[str] = []


def _tensors(items: tuple[Any, ...]) -> list[Any]:
    """What is in a list, in the order in which it was pushed."""
    found: list[Any] = []
    while items:
        items, last = items
        found.append(last)
    found.reverse()
    return found


def _listed(tensors: list[Any]) -> tuple[Any, ...]:
    items: tuple[Any, ...] = ()
    for tensor in tensors:
        items = (items, tensor)
    return items


@kernel("EmptyTensorList", fresh=True)
def empty(element_shape: Any, max_num_elements: Any) -> Any:
    return ()


@kernel("TensorListPushBack", expression="({0}, {1})")
def push(items: Any, tensor: Any) -> Any:
    return items, tensor


@kernel("TensorListPopBack")
def pop(items: Any, element_shape: Any) -> Any:
    if not items:
        raise InvalidArgumentError("an empty tensor list has nothing to pop", expected="a tensor", actual="none")
    return items


@kernel("TensorListLength", fresh=True)
def length(items: Any) -> Any:
    return np.int32(len(_tensors(items)))


@binder("TensorListConcatV2", fresh=True)
def concat(binding: Binding) -> Callable[..., Any]:
    xp, dtype = binding.xp, binding.attrs["element_dtype"].np_dtype

    def join(items: Any, element_shape: Any, leading_dims: Any) -> Any:
        tensors = _tensors(items)
        sizes = np.array([np.shape(t)[0] for t in tensors], np.int64)
        if not tensors:  # of what rank, only the shape can tell
            return xp.zeros((0, *np.atleast_1d(element_shape)[1:]), dtype), sizes
        return xp.concatenate(tensors), sizes

    return join


@kernel("TensorListSplit", host={"lengths": as_ints})
def split(tensor: Any, element_shape: Any, lengths: Any) -> Any:
    ends = np.cumsum(lengths)
    return _listed([tensor[end - size : end] for size, end in zip(lengths, ends, strict=True)])


@kernel("_Hole", fresh=True)
def hole() -> Any:
    return None


@kernel("ZerosLike", dtypes={"T": ("variant",)}, priority=1)
def zeros_like(xp: Any, items: Any) -> Any:
    """Zeros in the place of every tensor, lists in lists among them."""
    return _listed([_zeros(xp, tensor) for tensor in _tensors(items)])


def _zeros(xp: Any, tensor: Any) -> Any:
    if tensor is None:
        return None
    return zeros_like(xp, tensor) if isinstance(tensor, tuple) else xp.zeros_like(tensor)


@kernel("AddN", dtypes={"T": ("variant",)})
def add_n(lists: Any) -> Any:
    """The sums of the tensors in the same places."""
    return _listed([_sum(tensors) for tensors in zip(*map(_tensors, lists), strict=True)])


def _sum(tensors: tuple[Any, ...]) -> Any:
    if tensors[0] is None:
        return None
    return add_n(tensors) if isinstance(tensors[0], tuple) else sum(tensors[1:], tensors[0])
