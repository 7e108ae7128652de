"""Ranks, axes, sizes and shapes of tensors for translations: numbers where static, else tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims
from aioflow.graph.tensor_like import TensorLike
from aioflow.interop.onnx.translating import OnnxNode
from aioflow.ops import public as ops
from aioflow.ops.apply import constant, make

Size: TypeAlias = int | Tensor  # a tensor, an integer scalar, if the size is known only in the step


def rank_of(node: OnnxNode, tensor: Tensor) -> int:
    """Return the rank. Refuse the node if it is not known."""
    return node.refuse("a tensor of unknown rank") if tensor.dims is None else len(tensor.dims)


def axis_of(node: OnnxNode, tensor: Tensor, axis: int, extra: int = 0, from_end: bool = False) -> int:
    """Return an axis counted from the front.

    Args:
        node: Node being translated.
        tensor: Tensor whose axis it is.
        axis: Number of the axis, possibly negative.
        extra: Number of axes allowed beyond the tensor's rank.
        from_end: Whether to return a negative axis unchanged if the rank is not known.

    Raises:
        InvalidArgumentError: the tensor has no such axis.
    """
    if tensor.dims is None and (axis >= 0 or from_end):
        return axis  # checked in the step
    rank = rank_of(node, tensor) + extra
    if not -rank <= axis < max(rank, 1):
        raise node.wrong("an axis", f"one in [{-rank}, {rank})", axis)
    # A scalar has the axis 0, its only element.
    return axis % max(rank, 1)


def integers(node: OnnxNode, tensor: Tensor | None, what: str) -> list[int] | None:
    """Return the integers of a constant vector, or None without a tensor. Refuse the node if they are not known."""
    if tensor is None:
        return None
    value = node.constant(tensor)
    return node.refuse(f"{what} that are not constant") if value is None else [int(v) for v in np.reshape(value, -1)]


def length_of(node: OnnxNode, vector: Tensor) -> int:
    """Return the number of axes in a vector of them. Refuse the node if it is not known."""
    length = (vector.dims or (None,))[0]
    return node.refuse("an unknown number of axes") if length is None else length


def axes_of(node: OnnxNode, tensor: Tensor, given: Tensor | None, from_end: bool = False) -> list[int] | None:
    """Return the axes in an attribute (before opset 13 or 18) or an input, as `axis_of` does, or None for all."""
    axes = integers(node, given, "axes") if given is not None else node.attr("axes")
    return None if axes is None else [axis_of(node, tensor, axis, from_end=from_end) for axis in axes]


def int64(values: TensorLike) -> Tensor:
    """Return the values as an int64 tensor, a constant if they are numbers."""
    return ops.cast(values, "int64") if isinstance(values, Tensor) else constant(np.asarray(values, np.int64))


def count_of(tensor: Tensor) -> Tensor:
    """Return a number as an int32 scalar. A value out of range becomes the nearest one."""
    value = ops.reshape(tensor, [])
    if value.dtype.size <= 4:
        return ops.cast(value, "int32")
    return ops.cast(ops.maximum(ops.minimum(value, 2**31 - 1), -(2**31)), "int32")


def shape_vector(tensor: Tensor) -> Tensor:
    """Return the shape as an int64 vector, a constant if it is known."""
    dims = tensor.dims
    known = None if dims is None else [d for d in dims if d is not None]
    if dims is not None and known is not None and len(known) == len(dims):
        return int64(known)
    return ops.shape(tensor, out_type="int64")


def sizes_of(tensor: Tensor) -> list[Size]:
    """Return the size along each axis of a tensor of known rank, as an int or int64 scalar."""
    dims = tensor.dims or ()
    known = [d for d in dims if d is not None]
    if len(known) == len(dims):
        return [*known]
    shape = ops.shape(tensor, out_type="int64")
    return [shape[i] if d is None else d for i, d in enumerate(dims)]


def product_of(sizes: Sequence[Size]) -> Size:
    """Return the product of sizes, an int if all are known."""
    known = math.prod(s for s in sizes if not isinstance(s, Tensor))
    result: Size = known
    for size in sizes:
        if isinstance(size, Tensor):
            # No node for a factor of 1.
            result = size if isinstance(result, int) and result == 1 else ops.multiply(size, result)
    return result


def with_dims(tensor: Tensor, dims: Dims) -> Tensor:
    """Return the tensor with this additional knowledge of its shape."""
    tensor.set_shape(dims)
    return tensor


# ── shapes as int32 vectors, as aioflow's ops expect them, with numbers for known sizes ───────────────────────────────


def size_of(x: Tensor, axis: int) -> Size:
    """Return the size of a dimension as a number if it is known, else as an int32 scalar."""
    known = None if x.dims is None else x.dims[axis]
    if known is not None:
        return known
    # For axis -1 the end would be 0, which is before the element.
    return make("StridedSlice", make("Shape", x), [axis], [axis + 1 or np.iinfo(np.int32).max], [1], shrink_axis_mask=1)


def shape_of(sizes: Sequence[Size]) -> Tensor:
    """Return a shape of numbers and scalars as an int32 vector."""
    if all(isinstance(size, int) for size in sizes):
        return constant(np.array(sizes, np.int32))
    return make("Pack", [size if isinstance(size, Tensor) else constant(np.int32(size)) for size in sizes], axis=0)


def flat_from(x: Tensor, axis: int) -> Tensor:
    """Return a matrix: the dimensions before `axis` become its rows, the others its columns."""
    if x.dims is not None:
        axis += len(x.dims) if axis < 0 else 0
        rows, columns = x.dims[:axis], x.dims[axis:]
        if None not in rows and 0 not in rows:
            return make("Reshape", x, [math.prod(size or 0 for size in rows), -1])
        if None not in columns and 0 not in columns:
            return make("Reshape", x, [-1, math.prod(size or 0 for size in columns)])
    shape = make("Shape", x)
    cut = make("Reshape", axis if axis >= 0 else make("Rank", x) + axis, [1])
    rows_of = make("Prod", make("Slice", shape, [0], cut), 0)
    columns_of = make("Prod", make("Slice", shape, cut, [-1]), 0)
    return make("Reshape", x, make("Pack", [rows_of, columns_of], axis=0))


def scalar_of(x: Tensor) -> Tensor:
    """Return an axis or a count, which is a scalar or a vector of one element, as a scalar of its dtype."""
    return x if x.dims == () else make("Reshape", x, constant(np.array([], np.int32)))


def int32(x: Tensor) -> Tensor:
    """Return the tensor as int32, the dtype of shapes and sizes."""
    return x if x.dtype is dtypes.int32 else make("Cast", x, DstT=dtypes.int32)
