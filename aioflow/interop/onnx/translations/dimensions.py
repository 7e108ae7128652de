"""Shapes as int32 vectors, as aioflow's ops expect them, with numbers for known sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.sizes import Size
from aioflow.ops.apply import constant, make


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
