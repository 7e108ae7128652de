"""Ranks, axes and sizes of tensors for translations: numbers where the static shape tells them, tensors otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aioflow.graph.shapes import Dims
from aioflow.graph.tensor import Tensor
from aioflow.interop.onnx.translating import Node
from aioflow.ops import public as ops
from aioflow.ops.apply import constant

__all__ = [
    "axes_of",
    "axis_of",
    "count_of",
    "int64",
    "integers",
    "length_of",
    "product_of",
    "rank_of",
    "shape_vector",
    "sizes_of",
    "with_dims",
]


def rank_of(node: Node, tensor: Tensor) -> int:
    """The rank, which must be known. Refuses a node where it is not."""
    return node.refuse("a tensor of unknown rank") if tensor.dims is None else len(tensor.dims)


def axis_of(node: Node, tensor: Tensor, axis: int, extra: int = 0, from_end: bool = False) -> int:
    """An axis counted from the front; `extra` more than the rank has may be named.

    Args:
        from_end: Leave an axis that is counted from the end as it is where the rank is not known.

    Raises:
        InvalidArgumentError: the tensor has no such axis.
    """
    if tensor.dims is None and (axis >= 0 or from_end):
        return axis  # the step says whether there is one
    rank = rank_of(node, tensor) + extra
    if not -rank <= axis < max(rank, 1):
        raise node.wrong("an axis", f"one in [{-rank}, {rank})", axis)
    return axis % max(rank, 1)


def integers(node: Node, tensor: Tensor | None, what: str) -> list[int] | None:
    """The integers of a constant vector, or None where there is no tensor. Refuses a node where they are not known."""
    if tensor is None:
        return None
    value = node.constant(tensor)
    return node.refuse(f"{what} that are not constant") if value is None else [int(v) for v in np.reshape(value, -1)]


def length_of(node: Node, vector: Tensor, what: str) -> int:
    """How many elements a vector has. Refuses a node where that is not known."""
    length = (vector.dims or (None,))[0]
    return node.refuse(f"an unknown number of {what}") if length is None else length


def axes_of(node: Node, tensor: Tensor, given: Tensor | None, from_end: bool = False) -> list[int] | None:
    """The axes that an attribute (before opset 13 or 18) or an input names, as `axis_of`; None for all."""
    axes = integers(node, given, "axes") if given is not None else node.attr("axes")
    return None if axes is None else [axis_of(node, tensor, axis, from_end=from_end) for axis in axes]


def int64(values: Any) -> Tensor:
    """A constant of int64."""
    return ops.cast(values, "int64") if isinstance(values, Tensor) else constant(np.asarray(values, np.int64))


def count_of(tensor: Tensor) -> Tensor:
    """A scalar of int32 from a number of int64: one that is beyond it becomes the nearest, and no other number."""
    value = ops.reshape(tensor, [])
    if value.dtype.size <= 4:
        return ops.cast(value, "int32")
    return ops.cast(ops.maximum(ops.minimum(value, 2**31 - 1), -(2**31)), "int32")


def shape_vector(tensor: Tensor) -> Tensor:
    """The shape as a vector of int64; a constant where it is known."""
    dims = tensor.dims
    if dims is not None and None not in dims:
        return int64(list(dims))
    return ops.shape(tensor, out_type="int64")


def sizes_of(tensor: Tensor) -> list[Any]:
    """The size along each axis of a tensor of known rank: an int, or a scalar of int64."""
    dims = tensor.dims or ()
    if None not in dims:
        return list(dims)
    shape = ops.shape(tensor, out_type="int64")
    return [shape[i] if d is None else d for i, d in enumerate(dims)]


def product_of(sizes: Sequence[Any]) -> Any:
    """The product of sizes: an int if all are known."""
    known = math.prod(s for s in sizes if not isinstance(s, Tensor))
    result: Any = known
    for size in sizes:
        if isinstance(size, Tensor):
            result = size if isinstance(result, int) and result == 1 else ops.multiply(size, result)
    return result


def with_dims(tensor: Tensor, dims: Dims) -> Tensor:
    """The tensor, with what is known of its shape besides."""
    tensor.set_shape(dims)
    return tensor
