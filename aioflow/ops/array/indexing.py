"""Selecting and updating elements by index: Gather, GatherNd, ScatterNd, TensorScatter*."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from aioflow.arguments import check_kind
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, check_axis, format_dims, is_compatible, merge_dims, num_elements
from aioflow.graph.static_value import constant_value, moving
from aioflow.graph.traits import movement, opaque
from aioflow.memory.values import Array
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.static_shapes import int_constant, known_dims, shape_of, zeros_of
from aioflow.ops.sparse.indexed_slices import Gradient

BadIndices: TypeAlias = Literal["", "DEFAULT", "ERROR", "IGNORE"]

__all__ = [
    "batch_gather",
    "gather",
    "gather_nd",
    "scatter_nd",
    "tensor_scatter_add",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "tensor_scatter_sub",
    "tensor_scatter_update",
]

# ── Gather ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gather_shape(ctx: ShapeContext) -> Dims:
    params, indices = ctx.require_rank("params", 1, -1), ctx.dims("indices")
    return None if params is None or indices is None else indices + params[1:]


def _gather_value(op: Operation, inputs: list[Array]) -> Array | None:
    axis = int(inputs[2]) if len(inputs) > 2 else 0
    # `np.take` would accept negative indices; the kernel raises the error for them.
    if op.attrs.get("batch_dims") or (inputs[1] < 0).any():
        return None
    return np.take(inputs[0], inputs[1], axis=axis)


define_op(
    "Gather",
    "params: Tparams, indices: Tindices",
    "output: Tparams",
    ["validate_indices: bool = True", "Tparams: type", "Tindices: {int32, int64}"],
    shape=_gather_shape,
    value=moving(_gather_value),
    rows=rows.gathered,
    traits=movement(),
)


def _batch_dims(batch: int, order: int) -> int:
    """Return the number of batch dimensions for indices of rank `order`; a negative one counts from their end."""
    if not -order <= batch <= order:
        raise InvalidArgumentError(
            "batch_dims is out of range", expected=f"batch_dims in [{-order}, {order}]", actual=batch
        )
    return batch + order if batch < 0 else batch


def _gather_v2_shape(ctx: ShapeContext) -> Dims:
    params, indices = ctx.require_rank("params", 1, -1), ctx.dims("indices")
    ctx.require_rank("axis", 0)
    axis, batch = ctx.scalar("axis"), ctx.attrs["batch_dims"]
    if params is None or indices is None:
        return None
    batch = _batch_dims(batch, len(indices))
    if axis is None:
        # Whichever axis is gathered, it is replaced by those of the indices, less the batch dimensions.
        return (None,) * (len(params) + len(indices) - 1 - batch)
    position = check_axis(axis, len(params))
    if batch > position:
        raise InvalidArgumentError(
            "the axis of a gather must not be one of its batch dimensions", expected=f"axis >= {batch}", actual=position
        )
    # A batch size is known if either input knows it.
    head = merge_dims(params[:batch], indices[:batch]) or ()
    return head + params[batch:position] + indices[batch:] + params[position + 1 :]


define_op(
    "GatherV2",
    "params: Tparams, indices: Tindices, axis: Taxis",
    "output: Tparams",
    ["batch_dims: int = 0", "Tparams: type", "Tindices: {int16, int32, int64}", "Taxis: {int32, int64}"],
    shape=_gather_v2_shape,
    value=moving(_gather_value),
    rows=rows.gathered,
    traits=movement(),
)


def _rows_gradient(params: Tensor, indices: Tensor, grad: Tensor) -> IndexedSlices:
    """Return the gradient of rows picked by `indices` along the first dimension.

    It is sparse, so that its cost depends on the picked rows alone.
    """
    flat = make("Reshape", indices, int_constant([-1])) if indices.dims is None or len(indices.dims) != 1 else indices
    count, inner = num_elements(indices.dims), None if params.dims is None else params.dims[1:]
    if indices.dims is not None and len(indices.dims) == 1:
        values = grad
    elif inner is not None and None not in inner and (count is not None or num_elements(inner) != 0):
        # Reshape can infer the first size: the rest has elements, or the count is known.
        values = make("Reshape", grad, int_constant([-1 if count is None else count, *inner]))
    else:
        tail = make("StridedSlice", make("Shape", params), [1], [0], [1], end_mask=1)
        values = make(
            "Reshape", grad, make("ConcatV2", [make("Reshape", make("Size", indices), int_constant([1])), tail], 0)
        )
    return IndexedSlices(values, flat, shape_of(params))


@gradient("Gather")
def _gather_grad(op: Operation, grad: Tensor) -> list[Gradient | None]:
    return [_rows_gradient(op.inputs[0], op.inputs[1], grad), None]


@gradient("GatherV2")
def _gather_v2_grad(op: Operation, grad: Tensor) -> list[Gradient | None]:
    params, indices, axis = op.inputs
    known = constant_value(axis)
    batch = op.get_attr("batch_dims")
    # Only along the first axis are the gathered parts rows, as slices need them.
    if batch == 0 and known is not None and int(known) == 0:
        return [_rows_gradient(params, indices, grad), None, None]
    if params.dims is None or indices.dims is None or known is None:
        if batch == 0:
            return [_summed_gather_gradient(params, indices, axis, convert_to_tensor(grad)), None, None]
        raise InvalidArgumentError(
            "the gradient of a gather with batch dimensions needs known ranks and a constant axis",
            expected="batch_dims=0, or known ranks",
            actual=f"{params!r}, {indices!r}",
        ).at(op.name, op.type, op.source)
    position = check_axis(int(known), len(params.dims))
    return [_dense_gather_gradient(params, indices, grad, position, _batch_dims(batch, len(indices.dims))), None, None]


def _dense_gather_gradient(params: Tensor, indices: Tensor, grad: Tensor, axis: int, batch: int) -> Tensor:
    """Return the gradient of a gather along any axis, with batch dimensions.

    The gathered dimension is moved to the front (after the batch dimensions), scattered, and moved back. Dimensions of
    grad: batch, outer (batch..axis of params), those of the indices, inner.
    """
    order, picked = len(params.dims or ()), len(indices.dims or ()) - batch
    outer = list(range(batch, axis))
    places = list(range(axis, axis + picked))
    inner = list(range(axis + picked, order - 1 + picked))
    moved = make("Transpose", grad, int_constant([*range(batch), *places, *outer, *inner]))
    # The axes of params, with the gathered one first after the batch.
    perm = [*range(batch), axis, *outer, *range(axis + 1, order)]
    shape = make("GatherV2", shape_of(params), int_constant(perm), 0)
    known = known_dims(params)
    if known is not None:
        shape = int_constant([known[p] for p in perm])
    # ScatterNd adds up the updates of repeated indices.
    scattered = make("ScatterNd", _full_indices(indices, batch), moved, _as(shape, indices.dtype))
    # argsort inverts a permutation.
    result = make("Transpose", scattered, int_constant(np.argsort(perm)))
    result.set_shape(params.dims)
    return result


def _summed_gather_gradient(params: Tensor, indices: Tensor, axis: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of a gather along any axis, for ranks that only a step knows.

    The gathered dimension is moved to the front, summed by index, and moved back.
    """
    shape, order, count = make("Shape", params), make("Rank", params), make("Reshape", make("Size", indices), [1])
    # FloorMod turns a negative axis into one from the front.
    here = make("Reshape", make("FloorMod", make("Cast", axis, DstT=dtypes.int32), order), [1])
    after = make("AddV2", here, int_constant([1]))
    outer, inner = make("Slice", shape, [0], here), make("Slice", shape, after, [-1])
    axes = make("Range", 0, order, 1)
    perm = make("ConcatV2", [here, make("Slice", axes, [0], here), make("Slice", axes, after, [-1])], 0)
    # The axes of the indices become one, in the place of the gathered axis.
    values = make("Transpose", make("Reshape", grad, make("ConcatV2", [outer, count, inner], 0)), perm)
    size = make("Reshape", make("GatherV2", shape, here, 0), int_constant([]))
    sums = make("UnsortedSegmentSum", values, make("Reshape", indices, [-1]), size)
    result = make("Transpose", sums, make("InvertPermutation", perm))
    result.set_shape(params.dims)
    return result


def _as(tensor: Tensor, dtype: DType) -> Tensor:
    if tensor.dtype is dtype:
        return tensor
    value = constant_value(tensor)
    return make("Cast", tensor, DstT=dtype) if value is None else int_constant(value, dtype)


def _full_indices(indices: Tensor, batch: int) -> Tensor:
    """Return index vectors of length `batch + 1`: the position in each batch dimension, then the index."""
    last = make("ExpandDims", indices, -1)
    if batch == 0:
        return last
    order = len(indices.dims or ())
    shape = shape_of(last, indices.dtype)
    coordinates = []
    for axis in range(batch):
        size = make("Reshape", make("GatherV2", shape, int_constant(axis), 0), int_constant([]))
        zero, one = int_constant(0, indices.dtype), int_constant(1, indices.dtype)
        steps = make(
            "Reshape", make("Range", zero, size, one), int_constant([-1 if a == axis else 1 for a in range(order + 1)])
        )
        coordinates.append(make("BroadcastTo", steps, _as(shape, dtypes.int32)))
    return make("ConcatV2", [*coordinates, last], -1)


def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: bool | None = None,
    name: str | None = None,
    axis: TensorLike | None = None,
    batch_dims: int = 0,
) -> Tensor:
    """Return the slices of `params` at `indices` along `axis`, by default the first one after the batch dimensions.

    The result has the shape `params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis+1:]`.
    `validate_indices` is ignored: indices are always checked.

    Raises:
        InvalidArgumentError: an index is negative or too large.
    """
    if axis is None:
        axis = batch_dims
    # A variable reads these rows alone, not its whole value.
    sparse_read = getattr(params, "sparse_read", None)
    if sparse_read is not None and isinstance(axis, int) and axis == 0 and batch_dims == 0:
        read: Tensor = sparse_read(indices, name=name)
        return read
    return make("GatherV2", params, indices, axis, batch_dims=batch_dims, name=name)


def batch_gather(params: TensorLike, indices: TensorLike, name: str | None = None) -> Tensor:
    """Apply `gather` along the last dimension of the indices; all dimensions before it are batch dimensions.

    Raises:
        InvalidArgumentError: the rank of the indices is unknown, or an index is negative or too large.
    """
    tensor = convert_to_tensor(indices)
    if tensor.dims is None:
        raise InvalidArgumentError(
            "batch_gather needs indices of known rank", expected="a known rank", actual=repr(tensor)
        )
    return make("GatherV2", params, tensor, len(tensor.dims) - 1, batch_dims=len(tensor.dims) - 1, name=name)


def _gather_nd_shape(ctx: ShapeContext) -> Dims:
    params, indices = ctx.dims("params"), ctx.require_rank("indices", 1, -1)
    if params is None or indices is None or indices[-1] is None:
        return None
    if indices[-1] > len(params):
        raise InvalidArgumentError(
            "the index vectors are too long", expected=f"at most {len(params)} elements", actual=indices[-1]
        )
    return indices[:-1] + params[indices[-1] :]


define_op(
    "GatherNd",
    "params: Tparams, indices: Tindices",
    "output: Tparams",
    ["Tparams: type", "Tindices: {int16, int32, int64}", "bad_indices_policy: string = ''"],
    shape=_gather_nd_shape,
    rows=rows.gathered_nd,
    traits=movement(),
)


@gradient("GatherNd")
def _gather_nd_grad(op: Operation, grad: Tensor) -> list[Gradient | None]:
    params, indices = op.inputs
    # Index vectors of length 1 pick rows, so the gradient can stay sparse.
    if indices.dims is not None and len(indices.dims) == 2 and indices.dims[-1] == 1:
        return [IndexedSlices(grad, make("Squeeze", indices, squeeze_dims=[-1]), shape_of(params)), None]
    return [_scatter(indices, grad, params), None]


def _scatter(indices: Tensor, updates: Tensor, like: Tensor) -> Tensor:
    result = make("ScatterNd", indices, updates, _as(shape_of(like), indices.dtype))
    result.set_shape(like.dims)
    return result


def gather_nd(
    params: TensorLike,
    indices: TensorLike,
    name: str | None = None,
    batch_dims: int = 0,
    bad_indices_policy: BadIndices = "",
) -> Tensor:
    """Return slices of `params` at index vectors: the last axis of `indices` addresses the leading axes of `params`.

    The first `batch_dims` dimensions of both are iterated together.

    Raises:
        InvalidArgumentError: an index is out of bounds (with the policy "IGNORE" that slice is zero instead).
    """
    check_kind(batch_dims, (int, np.integer), "batch_dims", "an int")
    if batch_dims == 0:
        return make("GatherNd", params, indices, bad_indices_policy=bad_indices_policy, name=name)
    tensor = convert_to_tensor(indices)
    if tensor.dims is not None and len(tensor.dims) <= batch_dims:
        raise InvalidArgumentError(
            "gather_nd needs more dimensions than batch_dims", expected=f"rank > {batch_dims}", actual=repr(tensor)
        )
    source = convert_to_tensor(params)
    coordinates = _batch_coordinates(tensor, batch_dims)
    result = make(
        "GatherNd",
        source,
        # With the positions in the batch in front, the vectors address the whole of params.
        make("ConcatV2", [*coordinates, tensor], -1),
        bad_indices_policy=bad_indices_policy,
        name=name,
    )
    if result.dims is not None and source.dims is not None:
        result.set_shape(source.dims[:batch_dims] + (None,) * (len(result.dims) - batch_dims))
    return result


def _batch_coordinates(indices: Tensor, batch: int) -> list[Tensor]:
    """Return, for each batch dimension, the positions in it, in the shape of the indices with vectors of length 1."""
    shape = shape_of(indices)
    ones = make("ConcatV2", [make("StridedSlice", shape, [0], [-1], [1]), int_constant([1])], 0)
    found: list[Tensor] = []
    for axis in range(batch):
        size = make("Reshape", make("GatherV2", shape, int_constant(axis), 0), int_constant([]))
        target = [1] * axis + [-1]
        if indices.dims is None:
            after = make("Fill", make("Sub", make("Shape", shape), int_constant([axis + 1])), int_constant(1))
            along = make("ConcatV2", [int_constant(target), after], 0)
        else:
            along = int_constant(target + [1] * (len(indices.dims) - axis - 1))
        steps = make("Reshape", make("Range", 0, size, 1), along)
        found.append(_as(make("BroadcastTo", steps, ones), indices.dtype))
    return found


# ── Scatter ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _scatter_nd_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("shape", 1)
    target, indices, updates = ctx.partial_shape("shape"), ctx.dims("indices"), ctx.dims("updates")
    _check_updates(target, indices, updates)
    return target


def _check_updates(target: Dims, indices: Dims, updates: Dims) -> None:
    if target is None or indices is None or not indices or indices[-1] is None or updates is None:
        return
    if indices[-1] > len(target):
        raise InvalidArgumentError(
            "the index vectors are too long", expected=f"at most {len(target)} elements", actual=indices[-1]
        )
    wanted = indices[:-1] + target[indices[-1] :]
    if not is_compatible(wanted, updates):
        raise InvalidArgumentError(
            "the updates have the wrong shape", expected=format_dims(wanted), actual=format_dims(updates)
        )


define_op(
    "ScatterNd",
    "indices: Tindices, updates: T, shape: Tindices",
    "output: T",
    ["T: type", "Tindices: {int16, int32, int64}", "bad_indices_policy: string = ''"],
    shape=_scatter_nd_shape,
    traits=opaque(),
)


@gradient("ScatterNd")
def _scatter_nd_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    # An update reaches the result at its own index alone.
    return [None, make("GatherNd", grad, op.inputs[0]), None]


def scatter_nd(
    indices: TensorLike,
    updates: TensorLike,
    shape: TensorLike,
    bad_indices_policy: BadIndices = "",
    name: str | None = None,
) -> Tensor:
    """Add `updates` to zeros of `shape` at the index vectors `indices`; updates of repeated indices add up.

    Raises:
        InvalidArgumentError: an index is out of bounds (with the policy "IGNORE" it is skipped), or shapes do not fit.
    """
    return make("ScatterNd", indices, updates, shape, bad_indices_policy=bad_indices_policy, name=name)


def _tensor_scatter_shape(ctx: ShapeContext) -> Dims:
    ctx.require_rank("indices", 1, -1)
    _check_updates(ctx.dims("tensor"), ctx.dims("indices"), ctx.dims("updates"))
    return ctx.dims("tensor")


for _suffix in ("Update", "Add", "Sub", "Min", "Max"):
    define_op(
        f"TensorScatter{_suffix}",
        "tensor: T, indices: Tindices, updates: T",
        "output: T",
        [
            "T: type",
            "Tindices: {int16, int32, int64, uint16}" if _suffix == "Update" else "Tindices: {int32, int64}",
            "bad_indices_policy: string = ''",
        ],
        shape=_tensor_scatter_shape,
        traits=opaque(),
    )


@gradient("TensorScatterUpdate")
def _tensor_scatter_update_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    indices, updates = op.inputs[1:]
    # Elements that were overwritten do not reach the result.
    return [make("TensorScatterUpdate", grad, indices, zeros_of(updates)), None, make("GatherNd", grad, indices)]


@gradient("TensorScatterAdd", takes_slices=True)
def _tensor_scatter_add_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [grad, None, make("GatherNd", grad, op.inputs[1])]


@gradient("TensorScatterSub", takes_slices=True)
def _tensor_scatter_sub_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [grad, None, make("Neg", make("GatherNd", grad, op.inputs[1]))]


@gradient("TensorScatterMin", "TensorScatterMax")
def _tensor_scatter_extreme_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Divide each result's gradient equally among the elements that equal the result."""
    tensor, indices, updates = op.inputs
    result = op.outputs[0]
    kept = make("Cast", make("Equal", tensor, result), DstT=grad.dtype)
    chosen = make("Cast", make("Equal", updates, make("GatherNd", result, indices)), DstT=grad.dtype)
    # The elements that equal the result: the old one, and any number of updates at its position.
    share = make("RealDiv", grad, make("AddV2", kept, _scatter(indices, chosen, tensor)))
    return [make("Mul", share, kept), None, make("Mul", make("GatherNd", share, indices), chosen)]


def tensor_scatter_nd_update(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """Return `tensor` with `updates` at the positions of the index vectors `indices`.

    Raises:
        InvalidArgumentError: an index is out of bounds, or shapes do not fit.
    """
    return make("TensorScatterUpdate", tensor, indices, updates, name=name)


def tensor_scatter_nd_add(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: BadIndices = "",
    name: str | None = None,
) -> Tensor:
    """Return `tensor` with `updates` added at the index vectors `indices`; updates of repeated indices add up.

    Errors are as in `scatter_nd`.
    """
    return make("TensorScatterAdd", tensor, indices, updates, bad_indices_policy=bad_indices_policy, name=name)


def tensor_scatter_nd_sub(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: BadIndices = "",
    name: str | None = None,
) -> Tensor:
    """Return `tensor` with `updates` subtracted at the index vectors `indices`. Errors are as in `scatter_nd`."""
    return make("TensorScatterSub", tensor, indices, updates, bad_indices_policy=bad_indices_policy, name=name)


def tensor_scatter_nd_min(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: BadIndices = "",
    name: str | None = None,
) -> Tensor:
    """Return the minimum of `tensor` and `updates` at the index vectors `indices`. Errors are as in `scatter_nd`."""
    return make("TensorScatterMin", tensor, indices, updates, bad_indices_policy=bad_indices_policy, name=name)


def tensor_scatter_nd_max(
    tensor: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    bad_indices_policy: BadIndices = "",
    name: str | None = None,
) -> Tensor:
    """Return the maximum of `tensor` and `updates` at the index vectors `indices`. Errors are as in `scatter_nd`."""
    return make("TensorScatterMax", tensor, indices, updates, bad_indices_policy=bad_indices_policy, name=name)


tensor_scatter_update = tensor_scatter_nd_update
tensor_scatter_add = tensor_scatter_nd_add
tensor_scatter_sub = tensor_scatter_nd_sub
