"""Kernels that make, slice, join and reshape sparse tensors. Indices are small, so NumPy handles them on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import check_axis
from aioflow.kernels.blockwise import BLOCK, claim_array, full, joined, put_rows, rows_chosen, taken, written
from aioflow.kernels.convert import as_int, as_sizes, check_rank
from aioflow.kernels.math.large_sorts import order_of
from aioflow.kernels.registry import kernel
from aioflow.kernels.sparse.entries import (
    as_vector,
    check_bounds,
    check_columns,
    check_entries,
    group,
    int64_array,
    overlapping,
    row_major,
)
from aioflow.memory.copying import row_blocks
from aioflow.memory.values import Array

# ── dense ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("SparseToDense", device="CPU", fresh=True, elastic=True)
def sparse_to_dense(indices: Array, shape: Array, values: Array, default: Array, *, validate_indices: bool) -> Array:
    check_rank("output_shape", shape, 1)
    sizes, values, default = int64_array(as_sizes(shape)), as_vector(values), as_vector(default)
    wanted = tuple(sizes.tolist())
    claim_array(wanted, values.dtype)
    places = int64_array(indices)
    places = places.reshape(-1, 1) if places.ndim < 2 else places
    if places.shape[1] != sizes.size:
        raise InvalidArgumentError(
            "the indices do not have the rank of the output", expected=f"[n, {sizes.size}]", actual=places.shape
        )
    if values.shape not in ((), (len(places),)):
        raise InvalidArgumentError("each index needs a value", expected=f"() or ({len(places)},)", actual=values.shape)
    if default.ndim:
        raise InvalidArgumentError("the default value must be a scalar", expected=(), actual=default.shape)
    check_bounds(places, sizes)
    if validate_indices:
        _check_order(places)
    made = full(np, wanted, default.item() if default.dtype == object else default, values.dtype)
    if sizes.size:
        for part in row_blocks(places):
            made[tuple(places[part].T)] = values[part] if values.ndim else values
    elif len(places):
        # A tensor of rank 0 has one place, where the last value wins.
        made[...] = values[-1] if values.ndim else values
    return made


def _check_order(indices: Array) -> None:
    """Raise InvalidArgumentError unless each row comes after the one before it in row-major order."""
    for part in overlapping(indices):
        _check_steps(indices, part)


def _check_steps(indices: Array, part: slice) -> None:
    steps = np.diff(indices[part], axis=0)
    if not len(steps):
        return
    # The first coordinate that differs decides the order.
    column = (steps != 0).argmax(axis=1) if steps.shape[1] else np.zeros(len(steps), dtype=np.int64)
    decisive = np.take_along_axis(steps, column[:, None], axis=1)[:, 0] if steps.shape[1] else np.zeros(len(steps))
    wrong = np.flatnonzero(decisive <= 0)
    if wrong.size:
        row = part.start + int(wrong[0]) + 1
        what = "is out of order" if decisive[wrong[0]] < 0 else "is repeated"
        raise InvalidArgumentError(
            f"index {row} of a sparse tensor {what}",
            expected=f"one after {indices[row - 1].tolist()}; sparse_reorder sorts them",
            actual=indices[row].tolist(),
        )


# ── order and shape ───────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("SparseReorder", device="CPU", fresh=True)
def sparse_reorder(indices: Array, values: Array, shape: Array) -> tuple[Array, Array]:
    check_entries(indices, values, shape)
    check_bounds(indices, shape)
    order = row_major(indices)
    return taken(indices, order), taken(values, order)


@kernel("SparseReshape", device="CPU", fresh=True)
def sparse_reshape(indices: Array, shape: Array, new_shape: Array) -> tuple[Array, Array]:
    check_rank("the shape", shape, 1)
    check_rank("the new shape", new_shape, 1)
    if indices.ndim != 2 or indices.shape[1] != len(shape):
        raise InvalidArgumentError(
            "the indices do not have the rank of the shape", expected=f"[n, {len(shape)}]", actual=indices.shape
        )
    old = shape.tolist()
    total = math.prod(old)
    if min(old, default=0) < 0 or total >= 2**63:
        raise InvalidArgumentError("the shape cannot be reshaped", expected="at most 2**63 - 1 elements", actual=old)
    new = _inferred(new_shape.tolist(), total)
    check_bounds(indices, shape)
    # Without entries the product of some sizes may exceed 64 bits.
    if not len(indices):
        return np.zeros((0, len(new)), dtype=np.int64), np.array(new, dtype=np.int64)
    old_strides, strides, most = _strides(old), np.maximum(_strides(new), 1), np.maximum(int64_array(new), 1)
    made = np.empty((len(indices), len(new)), np.int64)
    for part in row_blocks(indices):
        # The row-major position. It fits into int64, because the number of elements does.
        linear = np.add.reduce(indices[part] * old_strides, axis=1)
        made[part] = linear[:, None] // strides % most
    return made, np.array(new, dtype=np.int64)


def _inferred(sizes: list[int], total: int) -> list[int]:
    """Return the sizes with a -1 inferred."""
    if sizes.count(-1) > 1 or min(sizes, default=0) < -1:
        raise InvalidArgumentError("only one size can be inferred", expected="at most one -1", actual=sizes)
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if known == 0 or total % known:
            raise InvalidArgumentError("the size cannot be inferred", expected=f"{total} elements", actual=sizes)
        sizes = [total // known if size == -1 else size for size in sizes]
    if math.prod(sizes) != total:
        raise InvalidArgumentError("the new shape has a different number of elements", expected=total, actual=sizes)
    return sizes


def _strides(sizes: Sequence[int]) -> Array:
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return np.array(strides, dtype=np.int64)


# ── parts and wholes ──────────────────────────────────────────────────────────────────────────────────────────────────


@kernel("SparseConcat", device="CPU", fresh=True)
def sparse_concat(
    indices: tuple[Array, ...], values: tuple[Array, ...], shapes: tuple[Array, ...], *, concat_dim: int
) -> tuple[Array, Array, Array]:
    sizes = [int64_array(shape) for shape in shapes]
    for places, held, size in zip(indices, values, sizes, strict=True):
        check_entries(places, held, size)
        check_bounds(places, size)
    rank = len(sizes[0])
    axis = check_axis(concat_dim, rank)
    for size in sizes[1:]:
        if len(size) != rank or (np.delete(size, axis) != np.delete(sizes[0], axis)).any():
            raise InvalidArgumentError(
                f"the shapes must be equal except along dimension {axis}",
                expected=sizes[0].tolist(),
                actual=size.tolist(),
            )
    lengths = [int(size[axis]) for size in sizes]
    whole, rows = joined(indices), joined(values)
    begin = 0
    for number, part in enumerate(indices):
        # A view of the new array that `joined` has made.
        moved = whole[begin : begin + len(part), axis]
        for some in blocks(len(moved), BLOCK):
            moved[some] += sum(lengths[:number])
        begin += len(part)
    shape = sizes[0].copy()
    shape[axis] = sum(lengths)
    # Along an inner dimension the entries of the parts interleave.
    order = row_major(whole)
    return taken(whole, order), taken(rows, order), shape


@kernel("SparseSplit", device="CPU", fresh=True, host={"split_dim": as_int})
def sparse_split(axis: int, indices: Array, values: Array, shape: Array, *, num_split: int) -> tuple[Array, ...]:
    check_entries(indices, values, shape)
    check_bounds(indices, shape)
    axis = check_axis(axis, len(shape))
    length = int(shape[axis])
    if num_split > length:
        raise InvalidArgumentError("there are more parts than elements", expected=f"<= {length}", actual=num_split)
    # As in TensorFlow, the first `larger` parts are longer by one.
    small, larger = divmod(length, num_split)
    found: tuple[list[Array], list[Array], list[Array]] = ([], [], [])
    begin = 0
    for number in range(num_split):
        end = begin + small + (number < larger)
        inside = written((len(indices),), np.dtype(bool), partial(_within, indices[:, axis], begin, end))
        part, size = rows_chosen(indices, inside), shape.copy()
        part[:, axis] -= begin
        size[axis] = end - begin
        for parts, item in zip(found, (part, rows_chosen(values, inside), size), strict=True):
            parts.append(item)
        begin = end
    return (*found[0], *found[1], *found[2])


def _within(places: Array, begin: int, end: int, part: slice) -> Array:
    return (places[part] >= begin) & (places[part] < end)


@kernel("SparseSlice", device="CPU", fresh=True)
def sparse_slice(indices: Array, values: Array, shape: Array, start: Array, size: Array) -> tuple[Array, Array, Array]:
    check_entries(indices, values, shape)
    if start.shape != shape.shape or size.shape != shape.shape:
        raise InvalidArgumentError(
            "start and size need one number per dimension", expected=shape.shape, actual=(start.shape, size.shape)
        )
    if (start < 0).any() or (size < 0).any():
        raise InvalidArgumentError(
            "start and size must not be negative", expected=">= 0", actual=(start.tolist(), size.tolist())
        )
    room = np.maximum(shape - start, 0)
    made = np.minimum(size, room)
    found = []
    for part in row_blocks(indices):
        local = indices[part] - start
        inside = ((local >= 0) & (local < made)).all(axis=1)
        found.append((local[inside], values[part][inside]))
    # Without entries there are no blocks.
    if not found:
        return indices.copy(), values.copy(), made
    return joined([item[0] for item in found]), joined([item[1] for item in found]), made


@kernel("SparseSliceGrad", device="CPU", fresh=True)
def sparse_slice_grad(grad: Array, indices: Array, start: Array, output_indices: Array) -> Array:
    check_rank("the gradient", grad, 1)
    check_rank("start", start, 1)
    check_columns(indices, output_indices, start)
    if len(grad) != len(output_indices):
        raise InvalidArgumentError("each entry needs a gradient", expected=len(output_indices), actual=len(grad))
    count = len(output_indices)
    groups = group(joined([output_indices + start, indices]))
    table = np.zeros(groups.total, dtype=grad.dtype)
    put_rows(table, groups.number[:count], grad)
    return taken(table, groups.number[count:])


# ── rows without entries ──────────────────────────────────────────────────────────────────────────────────────────────


@kernel("SparseFillEmptyRows", device="CPU", fresh=True, elastic=True)
def sparse_fill_empty_rows(
    indices: Array, values: Array, shape: Array, default: Array
) -> tuple[Array, Array, Array, Array]:
    check_entries(indices, values, shape)
    if not len(shape):
        raise InvalidArgumentError("a scalar has no rows", expected="rank >= 1", actual="rank 0")
    rows, length = indices[:, 0], int(shape[0])
    check_bounds(indices[:, :1], shape[:1])
    order = order_of(rows)
    ordered = rows[order]
    # One entry for each row, and one more for each repetition of a row's number.
    total = length + int((ordered[1:] == ordered[:-1]).sum())
    claim_array((total, indices.shape[1]), indices.dtype)
    made, empty = np.zeros((total, indices.shape[1]), indices.dtype), np.empty(length, bool)
    held = full(np, (total,), as_vector(default).item() if values.dtype == object else default, values.dtype)
    places = np.empty(len(rows), np.int64)
    begin = entry = 0
    for part in blocks(length, BLOCK):
        inside = order[entry : np.searchsorted(ordered, part.stop)]
        own = rows[inside] - part.start
        counts = np.bincount(own, minlength=part.stop - part.start)
        empty[part] = counts == 0
        # An empty row gets one entry, with the default value.
        widths = np.maximum(counts, 1)
        begins = np.cumsum(widths) - widths + begin
        made[begins[empty[part]], 0] = np.flatnonzero(empty[part]) + part.start
        # The number of each entry inside its row.
        within = np.arange(len(own)) - (np.cumsum(counts) - counts)[own]
        places[inside] = begins[own] + within
        made[places[inside]] = indices[inside]
        held[places[inside]] = values[inside]
        begin += int(widths.sum())
        entry += len(inside)
    return made, held, empty, places


@kernel("SparseFillEmptyRowsGrad", device="CPU", dtypes={"T": "numbers"}, fresh=True)
def sparse_fill_empty_rows_grad(places: Array, grad: Array) -> tuple[Array, Array]:
    check_rank("the reverse index map", places, 1)
    check_rank("the gradient", grad, 1)
    if places.size and (places.min() < 0 or places.max() >= len(grad)):
        raise InvalidArgumentError(
            "the reverse index map is out of bounds",
            expected=f"0..{len(grad) - 1}",
            actual=f"{places.min()}..{places.max()}",
        )
    # The default value receives the gradients of the entries that were filled in.
    filled = np.ones(len(grad), dtype=bool)
    filled[places] = False
    return grad[places], np.asarray(grad[filled].sum(), dtype=grad.dtype)[()]
