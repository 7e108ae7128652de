"""Partitioners, for `partitioner=`: functions from a shape and dtype to the number of parts along each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from aioflow.arguments import check_callable
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, DTypeLike, as_dtype
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, check_axis, dims_of, format_dims

__all__ = [
    "fixed_size_partitioner",
    "min_max_variable_partitioner",
    "variable_axis_size_partitioner",
]

# A function of `shape=` and `dtype=` that returns the number of parts along each axis.
Partitioner: TypeAlias = Callable[..., Sequence[int]]


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """Return a partitioner into `num_shards` parts along `axis`, or fewer if the axis is shorter."""

    def partitioner(shape: ShapeLike, dtype: DTypeLike | None = None) -> list[int]:
        sizes = _sizes(shape, axis)
        return _along(axis, sizes, min(num_shards, sizes[axis]))

    return partitioner


def variable_axis_size_partitioner(
    max_shard_bytes: int, axis: int = 0, bytes_per_string_element: int = 16, max_shards: int | None = None
) -> Partitioner:
    """Return a partitioner along `axis` into parts of at most `max_shard_bytes`.

    Args:
        max_shard_bytes: Maximum size of a part, in bytes.
        axis: The axis to split.
        bytes_per_string_element: Assumed size of a string.
        max_shards: Maximum number of parts, which takes precedence over `max_shard_bytes`.

    Raises:
        InvalidArgumentError: a number is below 1.
    """
    for name, number in {
        "max_shard_bytes": max_shard_bytes,
        "bytes_per_string_element": bytes_per_string_element,
        "max_shards": max_shards or 1,
    }.items():
        if number < 1:
            raise InvalidArgumentError(f"{name} must be positive", expected=">= 1", actual=number)

    def partitioner(shape: ShapeLike, dtype: DTypeLike) -> list[int]:
        sizes = _sizes(shape, axis)
        # Not `sizes[axis + 1:]`, which for axis -1 is the whole list.
        row = math.prod(sizes[:axis] + sizes[axis:][1:]) * _bytes_of(dtype, bytes_per_string_element)
        # Rows without bytes fit into one part, however many there are.
        rows = max(1, max_shard_bytes // row) if row else max(1, sizes[axis])
        count = max(1, math.ceil(sizes[axis] / rows))
        return _along(axis, sizes, min(max_shards, count) if max_shards else count)

    return partitioner


def min_max_variable_partitioner(
    max_partitions: int = 1, axis: int = 0, min_slice_size: int = 256 << 10, bytes_per_string_element: int = 16
) -> Partitioner:
    """Return a partitioner along `axis` into one part per `min_slice_size` bytes, and at most `max_partitions` parts.

    Args:
        max_partitions: Maximum number of parts.
        axis: The axis to split.
        min_slice_size: Bytes per part. The number of parts is rounded up, so a part can be smaller.
        bytes_per_string_element: Assumed size of a string.
    """

    def partitioner(shape: ShapeLike, dtype: DTypeLike) -> list[int]:
        sizes = _sizes(shape, axis)
        whole = math.prod(sizes) * _bytes_of(dtype, bytes_per_string_element)
        return _along(axis, sizes, max(1, min(sizes[axis], max_partitions, math.ceil(whole / min_slice_size))))

    return partitioner


def _sizes(shape: ShapeLike, axis: int) -> list[int]:
    sizes = _known(dims_of(shape))
    check_axis(axis, len(sizes))
    return sizes


def _known(dims: Dims) -> list[int]:
    if dims is None or None in dims:
        raise InvalidArgumentError(
            "the shape of a new partitioned variable must be fully defined",
            expected="known sizes",
            actual=format_dims(dims),
        )
    return [size for size in dims if size is not None]


def _along(axis: int, sizes: Sequence[int], count: int) -> list[int]:
    partitions = [1] * len(sizes)
    partitions[axis] = count
    return partitions


def _bytes_of(dtype: DTypeLike, string: int) -> int:
    element = as_dtype(dtype)
    return string if element is dtypes.string else element.size


def partitions_of(partitioner: Partitioner, dims: Dims, dtype: DType) -> list[int]:
    """Return the number of parts along each axis that a partitioner chooses for a variable of this shape.

    Raises:
        InvalidArgumentError: the shape is unknown or that of a scalar; the result is not one number ≥ 1 per axis, or
            splits more than one axis.
        DTypeError: the partitioner is not a function, or does not return integers.
    """
    check_callable(partitioner, "partitioner")
    sizes = _known(dims)
    if not sizes:
        raise InvalidArgumentError("a scalar cannot be partitioned", expected="rank >= 1", actual="rank 0")
    partitions: object = partitioner(shape=TensorShape(sizes), dtype=dtype)
    if not isinstance(partitions, Sequence) or not all(isinstance(count, int) for count in partitions):
        raise DTypeError(
            "a partitioner must return a list of numbers of parts",
            expected="an int for each axis",
            actual=repr(partitions),
        )
    if len(partitions) != len(sizes) or any(count < 1 for count in partitions):
        raise InvalidArgumentError(
            "a partitioner does not fit the variable",
            expected=f"{len(sizes)} ints >= 1, one for each axis",
            actual=list(partitions),
        )
    if sum(count > 1 for count in partitions) > 1:
        raise InvalidArgumentError(
            "a variable can be cut along one axis only", expected="one number > 1", actual=list(partitions)
        )
    return list(partitions)
