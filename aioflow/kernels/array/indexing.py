"""Kernels that gather and scatter by index. Negative indices are errors; NumPy alone would wrap them around."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.shapes import check_axis
from aioflow.kernels.array.scatter import flat_rows, scatter_rows
from aioflow.kernels.blockwise import claim_array, full, is_large, rows_written, taken
from aioflow.kernels.convert import as_int, as_sizes, broadcast_shape
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.copying import copied, row_blocks
from aioflow.memory.values import Array, Namespace


def _check_range(xp: Namespace, indices: Array, limit: int) -> None:
    if not indices.size:
        return
    # Viewed as unsigned, a negative index is huge, so a single reduction checks both bounds.
    dtype = indices.dtype
    unsigned = indices.view(f"u{dtype.itemsize}") if dtype.kind == "i" else indices
    if int(unsigned.max()) < limit:
        return
    given = xp.asarray(indices)
    bad = xp.argwhere((given < 0) | (given >= limit))[0].tolist()
    value = int(given[tuple(bad)])
    raise InvalidArgumentError(
        f"indices{bad} = {value} is not in [0, {limit})", expected=f"0 <= index < {limit}", actual=value
    )


@kernel("Gather", fresh=True)
def gather(xp: Namespace, params: Array, indices: Array) -> Array:
    if not params.ndim:
        raise InvalidArgumentError("a scalar has no rows to gather", expected="rank >= 1", actual="rank 0")
    _check_range(xp, indices, params.shape[0])
    return taken(params, indices)


@binder("GatherV2", host={"axis": as_int}, fresh=True)
def gather_v2(binding: Binding) -> KernelBody:
    xp, batch_dims = binding.xp, binding.attrs["batch_dims"]

    def pick(params: Array, indices: Array, axis: int) -> Array:
        position = check_axis(axis, params.ndim)
        _check_range(xp, indices, params.shape[position])
        if batch_dims:
            # A negative `batch_dims` counts from the rank of the indices, as in TensorFlow.
            batch = batch_dims + indices.ndim if batch_dims < 0 else batch_dims
            return _batched(xp, params, indices, position, batch)
        return taken(params, indices, position)

    return pick


def _batched(xp: Namespace, params: Array, indices: Array, axis: int, batch: int) -> Array:
    """Gather with the batch dimensions and the gathered one merged into the rows of a matrix."""
    lead = params.shape[:batch]
    if not 0 <= batch <= axis or indices.shape[:batch] != lead:
        raise InvalidArgumentError(
            "the batch dimensions of a gather differ", expected=list(lead), actual=list(indices.shape[:batch])
        )
    count = math.prod(lead)
    places, outer, inner = params.shape[axis], params.shape[batch:axis], params.shape[axis + 1 :]
    # The batch dimensions and the gathered one come first and merge: element i of batch b is row b * places + i.
    order = [*range(batch), axis, *range(batch, axis), *range(axis + 1, params.ndim)]
    rows = params.transpose(order).reshape((count * places, *outer, *inner))
    flat = indices.reshape(count, -1).astype(np.int64) if indices.size else xp.zeros((count, 0), np.int64)
    chosen = taken(rows, flat + xp.arange(count)[:, None] * places)
    picked = indices.shape[batch:]
    chosen = chosen.reshape((*lead, *picked, *outer, *inner))
    # `chosen` is [batch, picked, outer, inner]; TensorFlow's order is [batch, outer, picked, inner].
    first, last = batch + len(picked), batch + len(picked) + len(outer)
    return chosen.transpose([*range(batch), *range(first, last), *range(batch, first), *range(last, chosen.ndim)])


def _policy(binding: Binding) -> bool:
    """Return True if bad indices are skipped. Raise InvalidArgumentError for an unknown policy."""
    policy = binding.attrs["bad_indices_policy"]
    if policy not in ("", "DEFAULT", "ERROR", "IGNORE"):
        raise InvalidArgumentError("unknown bad_indices_policy", expected="'', DEFAULT, ERROR or IGNORE", actual=policy)
    return bool(policy == "IGNORE")


def _leading(shape: tuple[int, ...], indices: Array) -> int:
    """Return the length of the index vectors. Raise InvalidArgumentError if they are longer than the shape."""
    length: int = indices.shape[-1] if indices.ndim else -1
    if not 0 <= length <= len(shape):
        raise InvalidArgumentError(
            "the index vectors have the wrong length",
            expected=f"0 to {len(shape)}",
            actual=f"indices of shape {list(indices.shape)}",
        )
    return length


@binder("GatherNd", fresh=True, synchronises=True)
def gather_nd(binding: Binding) -> Callable[[Array, Array], Array]:
    xp, ignore, dtype = binding.xp, _policy(binding), binding.output_dtypes[0].np_dtype

    def pick(params: Array, indices: Array) -> Array:
        length = _leading(params.shape, indices)
        inner = params.shape[length:]
        shape = indices.shape[:-1] + inner
        rows, good = flat_rows(xp, indices, params.shape[:length], ignore)
        # NumPy cannot infer -1 for an array without elements.
        flat = (
            params.reshape((-1, *inner)) if params.size else params.reshape((math.prod(params.shape[:length]), *inner))
        )
        if good is None:
            return taken(flat, rows).reshape(shape)
        # Under the policy IGNORE the result of a bad index is zeros.
        result = xp.zeros((len(good), *inner), dtype)
        result[good] = flat[rows]
        return result.reshape(shape)

    return pick


def _scatter_into(xp: Namespace, mode: str, result: Array, indices: Array, updates: Array, ignore: bool) -> Array:
    """Apply `updates` at index vectors to `result`, a new contiguous array."""
    length = _leading(result.shape, indices)
    inner = result.shape[length:]
    if updates.shape != indices.shape[:-1] + inner:
        raise InvalidArgumentError(
            "the updates have the wrong shape", expected=list(indices.shape[:-1] + inner), actual=list(updates.shape)
        )
    rows, good = flat_rows(xp, indices, result.shape[:length], ignore)
    # Only after `flat_rows`, because a bad index is an error even if its rows have no elements.
    if not updates.size:
        return result
    values = updates.reshape((math.prod(indices.shape[:-1]), *inner))
    target = result.reshape((math.prod(result.shape[:length]), *inner))
    scatter_rows(xp, mode, target, rows, values if good is None else values[good])
    return result


@binder("ScatterNd", host={"shape": as_sizes}, fresh=True, elastic=True, synchronises=True)
def scatter_nd(binding: Binding) -> KernelBody:
    xp, dtype, ignore = binding.xp, binding.output_dtypes[0], _policy(binding)
    # Updates of one index add up. Where a dtype has no addition, the last one wins.
    mode = "add" if dtype.is_numeric else "update"

    def place(indices: Array, updates: Array, shape: tuple[int, ...]) -> Array:
        claim_array(shape, dtype.np_dtype)
        is_text = dtype is dtypes.string
        result = full(xp, shape, b"", dtype.np_dtype) if is_text else xp.zeros(shape, dtype.np_dtype)
        return _scatter_into(xp, mode, result, indices, updates, ignore)

    return place


def _tensor_scatter(mode: str) -> Callable[[Binding], KernelBody]:
    def bind(binding: Binding) -> KernelBody:
        xp, ignore = binding.xp, _policy(binding)

        def place(tensor: Array, indices: Array, updates: Array) -> Array:
            whole = copied(tensor) if is_large(tensor) else xp.array(tensor, order="C")
            return _scatter_into(xp, mode, whole, indices, updates, ignore)

        return place

    return bind


for _suffix, _kinds in {"Update": None, "Add": "numbers", "Sub": "numbers", "Min": "reals", "Max": "reals"}.items():
    _allowed = {} if _kinds is None else {"T": _kinds}
    binder(f"TensorScatter{_suffix}", dtypes=_allowed, fresh=True, synchronises=True)(_tensor_scatter(_suffix.lower()))


@kernel("Where", fresh=True, synchronises=True)
def where(xp: Namespace, condition: Array) -> Array:
    if not is_large(condition):
        return xp.argwhere(condition)
    found = []
    for part in row_blocks(condition):
        places = np.argwhere(condition[part])
        places[:, 0] += part.start
        found.append(places)
    return np.concatenate(found)


@kernel("SelectV2", fresh=True, exact_c="{0} ? {1} : {2}")
def select_v2(xp: Namespace, condition: Array, t: Array, e: Array) -> Array:
    return _chosen(xp, condition, t, e)


def _chosen(xp: Namespace, condition: Array, t: Array, e: Array) -> Array:
    if not (is_large(condition) or is_large(t) or is_large(e)):
        return xp.where(condition, t, e)
    # np.broadcast_arrays accepts at most 32 dimensions.
    shape = broadcast_shape(condition.shape, t.shape, e.shape)
    condition, t, e = (np.broadcast_to(each, shape) for each in (condition, t, e))
    return rows_written(condition.shape, t.dtype, lambda part: np.where(condition[part], t[part], e[part]))


@kernel("Select", fresh=True, exact_c="{0} ? {1} : {2}")
def select(xp: Namespace, condition: Array, t: Array, e: Array) -> Array:
    if t.shape != e.shape or (condition.shape not in ((), t.shape) and condition.shape != t.shape[:1]):
        raise InvalidArgumentError(
            "the arguments of where have different shapes",
            expected="x and y of one shape, and a condition of that shape, a scalar, or a vector of rows",
            actual=f"{list(condition.shape)}, {list(t.shape)} and {list(e.shape)}",
        )
    # A vector selects whole rows; broadcasting would align it with the last dimension instead.
    if condition.ndim == 1 and t.ndim > 1:
        condition = condition.reshape((-1,) + (1,) * (t.ndim - 1))
    return _chosen(xp, condition, t, e)
