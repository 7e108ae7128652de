"""Ops that read or write parts of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims
from aioflow.interop.onnx.sizes import (
    Size,
    axis_of,
    count_of,
    int64,
    integers,
    length_of,
    product_of,
    rank_of,
    shape_vector,
    sizes_of,
    with_dims,
)
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import make, make_list


@translation("Slice")
def slice_by_attributes(node: OnnxNode, x: Tensor) -> Tensor:
    starts, ends = int64(node.required("starts")), int64(node.required("ends"))
    axes = node.attr("axes")
    return slice_(node, x, starts, ends, None if axes is None else int64(axes))


@translation("Slice", since=10)
def slice_(
    node: OnnxNode, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    if axes is not None and node.constant(axes) is None:
        return _sliced(node, x, starts, ends, axes, steps)
    given = integers(node, axes, "axes")
    if given is None:
        given = list(range(length_of(node, starts)))
    places = [axis_of(node, x, axis) for axis in given]
    # For each axis the index of its slice; `len(places)` stands for none.
    order = [places.index(i) if i in places else len(places) for i in range(max(places, default=-1) + 1)]
    if not order:
        return x
    # Axes without a slice have their begin and end masked, so the defaults of these two do not matter.
    masked = sum(1 << i for i, place in enumerate(order) if place == len(places))
    begin, end, stride = (
        _ordered(node, values, order, default)
        for values, default in ((starts, 0), (ends, 0), (int64([1] * len(places)) if steps is None else steps, 1))
    )
    return ops.strided_slice(x, begin, end, stride, begin_mask=masked, end_mask=masked)


def _sliced(node: OnnxNode, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor, steps: Tensor | None) -> Tensor:
    """Return a slice along axes that are known only in the step."""
    rank = rank_of(node, x)
    places = ops.expand_dims(ops.floormod(int64(axes), int64(rank)), 1)
    begin = ops.tensor_scatter_nd_update(int64([0] * rank), places, int64(starts))
    end = ops.tensor_scatter_nd_update(shape_vector(x), places, int64(ends))
    stride = int64([1] * rank)
    if steps is not None:
        stride = ops.tensor_scatter_nd_update(stride, places, int64(steps))
    return with_dims(ops.strided_slice(x, begin, end, stride), (None,) * rank)


def _ordered(node: OnnxNode, values: Tensor, order: list[int], default: int) -> Tensor:
    """Return the values in the order of the axes, with `default` for axes without a value."""
    known = node.constant(values)
    if known is not None:
        every = [*known.reshape(-1).tolist(), default]
        return int64([every[i] for i in order])
    if order == list(range(len(order))):
        return int64(values)
    return ops.gather(ops.concat([int64(values), int64([default])], 0), int64(order))


def _wrapped(node: OnnxNode, indices: Tensor, size: Size) -> Tensor:
    """Return indices counted from the front. The given ones may be negative."""
    known = node.constant(indices)
    if known is not None and (known >= 0).all():
        return indices
    if indices.dtype not in (dtypes.int32, dtypes.int64):
        indices = int64(indices)
    return ops.where_v2(indices < 0, indices + ops.cast(size, indices.dtype), indices)


@translation("Gather")
def gather(node: OnnxNode, x: Tensor, indices: Tensor) -> Tensor:
    axis = axis_of(node, x, node.attr("axis", 0), from_end=True)
    known = None if x.dims is None else x.dims[axis]
    size: Size = ops.shape(x, out_type="int64")[axis] if known is None else known
    return ops.gather(x, _wrapped(node, indices, size), axis=axis)


@translation("GatherND")
def gather_nd(node: OnnxNode, x: Tensor, indices: Tensor) -> Tensor:
    batch = node.attr("batch_dims", 0)
    return ops.gather_nd(x, _wrapped_tuples(node, x, indices, batch), batch_dims=batch)


def _wrapped_tuples(node: OnnxNode, x: Tensor, indices: Tensor, batch: int = 0) -> Tensor:
    # Index tuples may be shorter than the rank; their elements count along the first axes after the batch.
    depth = (indices.dims or (None,))[-1]
    if depth is None:
        return node.refuse("index tuples of unknown length")
    return _wrapped(node, indices, shape_vector(x)[batch : batch + depth])


@translation("GatherElements")
def gather_elements(node: OnnxNode, x: Tensor, indices: Tensor) -> Tensor:
    return ops.gather_nd(x, _element_places(node, x, indices))


def _element_places(node: OnnxNode, x: Tensor, indices: Tensor) -> Tensor:
    """Return the position in `x` for each element of `indices`: its own position, with the index along the axis."""
    axis = axis_of(node, x, node.attr("axis", 0))
    rank = rank_of(node, x)
    along = int64(_wrapped(node, indices, sizes_of(x)[axis]))
    shape, sizes = shape_vector(indices), sizes_of(indices)
    places = []
    for i in range(rank):
        if i == axis:
            places.append(along)
            continue
        own = ops.range(int64(0), int64(sizes[i]), int64(1))
        places.append(ops.broadcast_to(ops.reshape(own, [-1 if d == i else 1 for d in range(rank)]), shape))
    return ops.stack(places, axis=rank)


@translation("Scatter")
@translation("ScatterElements")
def scatter_elements(node: OnnxNode, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    if not rank_of(node, x):
        return node.refuse("elements of a scalar")
    return _scattered(node, x, _element_places(node, x, indices), updates)


@translation("ScatterND")
def scatter_nd(node: OnnxNode, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return _scattered(node, x, _wrapped_tuples(node, x, indices), updates)


_SCATTERS: Final[Mapping[str, Callable[..., Tensor]]] = {
    "none": ops.tensor_scatter_nd_update,
    "add": ops.tensor_scatter_nd_add,
    "max": ops.tensor_scatter_nd_max,
    "min": ops.tensor_scatter_nd_min,
}


def _scattered(node: OnnxNode, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    how = node.attr("reduction", "none")
    if how == "mul":
        return _multiplied(node, x, places, updates)
    return _SCATTERS[how](x, places, updates) if how in _SCATTERS else node.refuse(f"reduction={how!r}")


def _multiplied(node: OnnxNode, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    """Return `x` with each position multiplied by the product of its updates."""
    depth = (places.dims or (None,))[-1]
    if depth is None:
        return node.refuse("index tuples of unknown length")
    sizes = sizes_of(x)
    rows = int64(product_of(sizes[:depth]))
    # Row-major strides turn index tuples into row numbers, as segments of `unsorted_segment_prod`.
    strides = ops.stack([int64(product_of(sizes[i + 1 : depth])) for i in range(depth)])
    row = ops.reduce_sum(places * strides, axis=-1)
    tail = [int64(product_of(sizes[depth:]))]
    flat = ops.reshape(updates, ops.stack([int64(-1), *tail]))
    factors = ops.unsorted_segment_prod(flat, ops.reshape(row, [-1]), rows)
    # Positions without updates have the empty product 1.
    return x * ops.reshape(factors, shape_vector(x))


@translation("OneHot")
def one_hot(node: OnnxNode, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    count = count_of(depth)
    # Negative indices count from the end of the depth, unlike in TensorFlow.
    places = _wrapped(node, int64(indices), count)
    axis = node.attr("axis", -1)
    if axis != -1:
        axis = axis_of(node, indices, axis, extra=1)
    return ops.one_hot(places, count, values[1], values[0], axis=axis)


@translation("NonZero")
def non_zero(node: OnnxNode, x: Tensor) -> Tensor:
    if not rank_of(node, x):
        # A scalar has no coordinates: the result is [0, number of nonzero elements].
        return ops.transpose(ops.where(ops.reshape(x, [1])))[:0]
    return ops.transpose(ops.where(x))


@translation("Compress")
def compress(node: OnnxNode, x: Tensor, condition: Tensor) -> Tensor:
    chosen = ops.reshape(ops.where(condition), [-1])
    axis = node.attr("axis")
    if axis is None:
        return ops.gather(ops.reshape(x, [-1]), chosen)
    return ops.gather(x, chosen, axis=axis_of(node, x, axis, from_end=True))


@translation("ReverseSequence")
def reverse_sequence(node: OnnxNode, x: Tensor, lengths: Tensor) -> Tensor:
    return ops.reverse_sequence(x, lengths, node.attr("time_axis", 0), node.attr("batch_axis", 1))


@translation("TopK")
def top_k_by_attribute(node: OnnxNode, x: Tensor) -> tuple[Tensor, ...]:
    return top_k(node, x, int64([node.required("k")]))


@translation("TopK", since=10)
def top_k(node: OnnxNode, x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    axis = axis_of(node, x, node.attr("axis", -1), from_end=True)
    rank = 0 if axis == -1 else rank_of(node, x)
    order = [i for i in range(rank) if i != axis] + [axis]
    # TopKV2 works along the last axis only.
    rows = x if axis == rank - 1 else ops.transpose(x, order)
    if node.attr("largest", 1):
        values, places = make_list("TopKV2", rows, count_of(k), sorted=True)
    else:
        values, places = _smallest(rows, count_of(k))
    back = [int(i) for i in np.argsort(order)]
    found = [values, int64(places)]
    return tuple(found if axis == rank - 1 else [ops.transpose(t, back) for t in found])


def _smallest(rows: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest elements of each row in order, with their positions.

    Of equal elements the first comes first. NaN comes last.
    """
    if rows.dtype.is_integer:
        # The bitwise complement reverses the order of integers and, unlike negation, does not overflow.
        values, places = make_list("TopKV2", make("Invert", rows), count, sorted=True)
        return make("Invert", values), places
    # TopKV2 puts NaN first, so all elements are sorted and their order is reversed. The rows are reversed beforehand,
    # so that equal elements keep their order.
    total = ops.shape(rows)[-1]
    values, places = make_list("TopKV2", ops.reverse(rows, [-1]), total, sorted=True)
    chosen = total - 1 - ops.range(count)
    return ops.gather(values, chosen, axis=-1), total - 1 - ops.gather(places, chosen, axis=-1)


@translation("Unique")
def unique(node: OnnxNode, x: Tensor) -> tuple[Tensor, ...]:
    axis = node.attr("axis")
    rows = ops.reshape(x, [-1]) if axis is None else x
    place = 0 if axis is None else axis_of(node, x, axis)
    values, inverse = make_list("UniqueV2", rows, int64([place]), out_idx="int64")
    count = ops.shape(values, out_type="int64")[place]
    every = ops.range(int64(0), ops.size(inverse, out_type="int64"), int64(1))
    # The first position at which each value occurs.
    first = ops.unsorted_segment_min(every, inverse, count)
    counts = ops.unsorted_segment_sum(ops.ones_like(inverse), inverse, count)
    if node.attr("sorted", 1):
        order = _ascending(node, with_dims(values, (None if axis is None else _but(x, place))), place)
        values, first, counts = (
            ops.gather(values, order, axis=place),
            ops.gather(first, order),
            ops.gather(counts, order),
        )
        # The old number of each value becomes its rank in the sorted order.
        inverse = ops.gather(int64(ops.invert_permutation(order)), inverse)
    return values, first, inverse, counts


def _but(x: Tensor, axis: int) -> Dims:
    return None if x.dims is None else tuple(None if i == axis else d for i, d in enumerate(x.dims))


def _ascending(node: OnnxNode, values: Tensor, axis: int) -> Tensor:
    """Return the lexicographic order of the slices along an axis."""
    rank = rank_of(node, values)
    if rank == 1:
        return _stable_order(values)
    sizes = [s for i, s in enumerate(values.dims or ()) if i != axis]
    width = math.prod([node.refuse("sorted slices of unknown size") if s is None else s for s in sizes])
    if width > 1024:
        return node.refuse(f"sorted slices of {width} elements")
    rows = ops.reshape(ops.transpose(values, [axis, *(i for i in range(rank) if i != axis)]), int64([-1, width]))
    order = ops.range(int64(0), ops.shape(rows, out_type="int64")[0], int64(1))
    # Stable sorts by each column, the most significant one last, give the lexicographic order.
    for column in reversed(range(width)):
        order = ops.gather(order, _stable_order(ops.gather(rows[:, column], order)))
    return order


def _stable_order(values: Tensor) -> Tensor:
    if values.dtype is dtypes.string:
        return ops.argsort(values, stable=True)
    return _smallest(values, ops.size(values))[1]
