"""Constants, and ops that change shapes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims
from aioflow.graph.static_value import partial_value
from aioflow.interop.onnx.geometry import joined
from aioflow.interop.onnx.sizes import (
    Size,
    axes_of,
    axis_of,
    flat_from,
    int64,
    integers,
    length_of,
    product_of,
    rank_of,
    shape_vector,
    sizes_of,
    with_dims,
)
from aioflow.interop.onnx.translating import OnnxNode, OnnxValue, translation
from aioflow.memory.values import Array
from aioflow.ops import public as ops
from aioflow.ops.apply import constant as make_constant


@translation("Constant")
def constant(node: OnnxNode) -> Tensor:
    value = node.attr("value")
    if value is not None:
        return node.weight(node.outputs[0], value) if node.weight and node.wants(0) else make_constant(value)
    for name, dtype in (
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
        ("value_string", "string"),
        ("value_strings", "string"),
    ):
        value = node.attr(name)
        if value is not None:
            return make_constant(value, dtype)
    return node.refuse("a constant without a dense value")


@translation("Identity")
def identity(node: OnnxNode, value: OnnxValue) -> OnnxValue:
    return value


@translation("Shape")
def shape(node: OnnxNode, x: Tensor) -> Tensor:
    sizes = shape_vector(x)
    start, end = node.attr("start", 0), node.attr("end")
    if not start and end is None:
        return sizes
    if x.dims is not None:
        start, end, _ = slice(start, end).indices(len(x.dims))
        # An end before the start means no sizes; a slice would count it from the end.
        end = max(start, end)
    return ops.strided_slice(sizes, [start], [0 if end is None else end], end_mask=int(end is None))


@translation("Size")
def size(node: OnnxNode, x: Tensor) -> Tensor:
    return ops.size(x, out_type="int64")


@translation("Reshape")
def reshape_by_attribute(node: OnnxNode, x: Tensor) -> Tensor:
    return reshape(node, x, int64(node.required("shape")))


@translation("Reshape", since=5)
def reshape(node: OnnxNode, x: Tensor, shape: Tensor) -> Tensor:
    wanted = partial_value(shape)
    if node.attr("allowzero", 0):
        return ops.reshape(x, shape)
    if wanted is not None and all(v is not None and v != 0 for v in wanted):
        return ops.reshape(x, shape)
    if wanted is not None and all(v is not None for v in wanted):
        sizes = sizes_of(x) if x.dims is not None and None not in x.dims else None
        dims = x.dims
        known: list[Any] = [int(v) if v else (None if dims is None else dims[i]) for i, v in enumerate(wanted)]
        if None not in known:
            return ops.reshape(x, int64(known))
        # A single unknown size can be inferred, so no shape is computed in the step. Beside a 0 it cannot.
        if sizes is None and dims is not None and -1 not in known and known.count(None) == 1 and 0 not in known:
            return ops.reshape(x, int64([-1 if v is None else v for v in known]))
    return with_dims(ops.reshape(x, _copied_sizes(x, shape)), _reshaped(x, wanted))


def _copied_sizes(x: Tensor, shape: Tensor) -> Tensor:
    """Return the shape with each 0 replaced by the input's own size."""
    own, count = ops.shape(x, out_type="int64"), (shape.dims or (None,))[0]
    # The wanted shape may be longer than the input's, so ones follow it.
    if count is None:
        padded = ops.slice(ops.concat([own, ops.ones_like(int64(shape))], 0), [0], ops.shape(shape))
    else:
        padded = ops.concat([own, int64([1] * count)], 0)[:count]
    return ops.where_v2(ops.equal(shape, int64(0)), padded, shape)


def _reshaped(x: Tensor, wanted: Array | None) -> Dims:
    if wanted is None:
        return None
    own = x.dims or ()
    dims = [None if v is None or v < 0 else int(v) for v in wanted]
    return tuple((own[i] if i < len(own) else None) if wanted[i] == 0 else d for i, d in enumerate(dims))


@translation("Flatten")
def flatten(node: OnnxNode, x: Tensor) -> Tensor:
    axis = node.attr("axis", 1)
    if x.dims is None:
        return flat_from(x, axis)
    rank = rank_of(node, x)
    if not -rank <= axis <= rank:
        raise node.wrong("the axis", f"one in [{-rank}, {rank}]", axis)
    axis += rank if axis < 0 else 0
    sizes = sizes_of(x)
    before, after = product_of(sizes[:axis]), product_of(sizes[axis:])
    if isinstance(before, int) and isinstance(after, int):
        return ops.reshape(x, int64([before, after]))
    # -1 cannot be inferred beside a size of 0.
    if isinstance(before, int) and before:
        return ops.reshape(x, int64([before, -1]))
    if isinstance(after, int) and after:
        return ops.reshape(x, int64([-1, after]))
    return ops.reshape(x, ops.stack([int64(before), int64(after)]))


@translation("Transpose")
def transpose(node: OnnxNode, x: Tensor) -> Tensor:
    order = node.attr("perm")
    return ops.transpose(x, order)


@translation("Squeeze")
def squeeze(node: OnnxNode, x: Tensor, axes: Tensor | None = None) -> Tensor:
    if axes is not None and node.constant(axes) is None:
        return _squeezed(node, x, axes)
    wanted = axes_of(node, x, axes, from_end=True)
    return x if wanted == [] else ops.squeeze(x, wanted)


def _squeezed(node: OnnxNode, x: Tensor, axes: Tensor) -> Tensor:
    """Return the tensor without axes that are known only in the step."""
    rank, count = rank_of(node, x), length_of(node, axes)
    gone = _marked(axes, rank)
    sizes = ops.boolean_mask(ops.shape(x, out_type="int64"), ops.equal(gone, int64(0)))
    return with_dims(ops.reshape(x, sizes), (None,) * (rank - count))


def _marked(axes: Tensor, rank: int) -> Tensor:
    """Return 1 for each of the axes, 0 for all others."""
    places = ops.expand_dims(ops.floormod(int64(axes), int64(rank)), 1)
    return ops.tensor_scatter_nd_update(int64([0] * rank), places, ops.ones_like(int64(axes)))


@translation("Unsqueeze")
def unsqueeze(node: OnnxNode, x: Tensor, axes: Tensor | None = None) -> Tensor:
    if axes is not None and node.constant(axes) is None:
        return _unsqueezed(node, x, axes)
    given = integers(node, axes, "axes") or node.attr("axes") or []
    if x.dims is None and len(given) == 1:
        return ops.expand_dims(x, given[0])
    places = sorted(axis_of(node, x, axis, extra=len(given)) for axis in given)
    if len(set(places)) < len(places):
        raise node.wrong("the axes", "each once", given)
    # In ascending order: every axis before `place` exists already.
    for place in places:
        x = ops.expand_dims(x, place)
    return x


def _unsqueezed(node: OnnxNode, x: Tensor, axes: Tensor) -> Tensor:
    """Return the tensor with new axes that are known only in the step."""
    rank = rank_of(node, x) + length_of(node, axes)
    new = _marked(axes, rank)
    # Exclusive sum: for each axis of the result, the number of the input's axes before it.
    own = ops.cumsum(int64(1) - new, exclusive=True)
    # New axes at the end have the input's rank as index, so that one more size keeps the index valid.
    padded = ops.concat([ops.shape(x, out_type="int64"), int64([1])], 0)
    sizes = ops.where_v2(ops.equal(new, int64(1)), int64(1), ops.gather(padded, own))
    return with_dims(ops.reshape(x, sizes), (None,) * rank)


@translation("Concat")
def concat(node: OnnxNode, *tensors: Tensor) -> Tensor:
    axis = node.attr("axis", 1) if node.version < 4 else node.required("axis")
    return tensors[0] if len(tensors) == 1 else joined(tensors, axis_of(node, tensors[0], axis, from_end=True))


@translation("Split")
def split(node: OnnxNode, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = axis_of(node, x, node.attr("axis", 0))
    count = len(node.outputs)
    if sizes is not None and node.constant(sizes) is None:
        return tuple(ops.split(x, sizes, axis, num=count))
    given: list[int] | None = integers(node, sizes, "sizes") if sizes is not None else node.attr("split")
    whole = None if x.dims is None else x.dims[axis]
    if given is None and whole is None and node.version >= 18:
        return _parted(x, axis, count)
    if given is None and (whole is None or whole % count == 0):
        return tuple(ops.split(x, count, axis))
    if given is None:
        # ⌈whole / count⌉; the last parts are smaller or empty.
        each = -(-(whole or 0) // count)
        given = [min(each, max((whole or 0) - i * each, 0)) for i in range(count)]
    if len(given) != count:
        raise node.wrong("the sizes", f"{count} of them", given)
    return (x,) if count == 1 else tuple(ops.split(x, int64(given), axis))


def _parted(x: Tensor, axis: int, count: int) -> tuple[Tensor, ...]:
    """Return parts of a size that is known only in the step. The last ones may be smaller or empty."""
    whole = ops.shape(x, out_type="int64")[axis]
    each = (whole + (count - 1)) // int64(count)
    ends = [ops.minimum(each * int64(i), whole) for i in range(count + 1)]
    return tuple(ops.split(x, ops.stack([b - a for a, b in pairwise(ends)]), axis, num=count))


@translation("Expand")
def expand(node: OnnxNode, x: Tensor, shape: Tensor) -> Tensor:
    # ONNX broadcasts in both directions: sizes of `x` may be larger than those of `shape`.
    wanted, dims = node.constant(shape), x.dims
    if wanted is not None and dims is not None and None not in dims:
        own = [d for d in dims if d is not None]
        return ops.broadcast_to(x, int64(list(np.broadcast_shapes(tuple(own), tuple(int(v) for v in wanted)))))
    return ops.broadcast_to(x, ops.broadcast_dynamic_shape(shape_vector(x), int64(shape)))


@translation("Tile")
def tile_one_axis(node: OnnxNode, x: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    multiples = [int64(1)] * rank_of(node, x)
    [place] = integers(node, axis, "axes") or [0]
    multiples[axis_of(node, x, place)] = ops.reshape(int64(tiles), [])
    return ops.tile(x, ops.stack(multiples))


@translation("Tile", since=6)
def tile(node: OnnxNode, x: Tensor, repeats: Tensor) -> Tensor:
    return ops.tile(x, repeats)


@translation("ConstantOfShape")
def constant_of_shape(node: OnnxNode, shape: Tensor) -> Tensor:
    value = node.attr("value")
    return ops.fill(shape, make_constant(np.float32(0) if value is None else np.reshape(value, ())))


@translation("ConstantFill")
def constant_fill(node: OnnxNode, shape: Tensor | None = None) -> Tensor:
    return node.refuse("an op that was taken back from ONNX")


@translation("Range")
def range_(node: OnnxNode, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    narrow = start.dtype in (dtypes.float16, dtypes.bfloat16)
    first, last, step = (ops.reshape(ops.cast(t, "float32") if narrow else t, []) for t in (start, limit, delta))
    backward = ops.less(step, ops.zeros_like(step))
    away = ops.where_v2(backward, ops.less(first, last), ops.less(last, first))
    last = ops.where_v2(away, first, last)  # a range that leads away from its end is empty
    return ops.cast(ops.range(first, last, step), start.dtype)


@translation("EyeLike")
def eye_like(node: OnnxNode, x: Tensor) -> Tensor:
    dtype = node.dtype("dtype", x.dtype)
    rows, columns = sizes_of(x)
    down, across = _places(rows, 0), _places(columns, 1)
    # Row + k = column.
    return ops.cast(ops.equal(down + int64(node.attr("k", 0)), across), dtype)


@translation("Trilu")
def trilu(node: OnnxNode, x: Tensor, k: Tensor | None = None) -> Tensor:
    rows, columns = (ops.shape(x, out_type="int64")[-2:][i] for i in (0, 1)) if x.dims is None else sizes_of(x)[-2:]
    first = _places(rows, 0) + (int64(0) if k is None else ops.reshape(int64(k), []))
    across = _places(columns, 1)
    kept = ops.less_equal(first, across) if node.attr("upper", 1) else ops.greater_equal(first, across)
    return ops.where_v2(kept, x, ops.zeros_like(x))


def _places(size: Size, axis: int) -> Tensor:
    """Return the numbers below a size as a column (axis 0) or a row."""
    return ops.expand_dims(ops.range(int64(0), int64(size), int64(1)), 1 - axis)
