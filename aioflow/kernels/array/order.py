"""Kernels that reorder, deduplicate, partition and search elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import batches, blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import check_axes, check_axis
from aioflow.kernels.array.scatter import scatter_rows
from aioflow.kernels.blockwise import BLOCK, claim_array, full, is_large, rows_written, taken, written
from aioflow.kernels.convert import as_array, as_ints, as_sizes
from aioflow.kernels.math.large_sorts import order_of
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.kernels.text import as_strings, each
from aioflow.memory.copying import copied, put, row_blocks
from aioflow.memory.values import Array, Namespace, NpDType

_SEARCHED: Final = BLOCK >> 4  # numbers searched at once; a search takes 1 µs where most of the data is not cached


def _flipped(value: Array, axes: set[int]) -> Array:
    # The ellipsis keeps a value of rank 0 an array.
    return value[(*(slice(None, None, -1) if i in axes else slice(None) for i in range(value.ndim)), ...)]


@kernel("Reverse", host={"dims": as_array})
def reverse(value: Array, dims: Array) -> Array:
    if dims.shape != (value.ndim,):
        raise InvalidArgumentError(
            "reverse needs one flag per dimension", expected=f"{value.ndim} flags", actual=dims.tolist()
        )
    return _flipped(value, set(np.flatnonzero(dims).tolist()))


@kernel("ReverseV2", host={"axis": as_ints})
def reverse_v2(value: Array, axis: tuple[int, ...]) -> Array:
    return _flipped(value, set(check_axes(axis, value.ndim)))


@kernel("ReverseSequence", fresh=True, synchronises=True)
def reverse_sequence(xp: Namespace, value: Array, seq_lengths: Array, *, seq_dim: int, batch_dim: int) -> Array:
    batch, along = check_axis(batch_dim, value.ndim, "batch_dim"), check_axis(seq_dim, value.ndim, "seq_dim")
    size = value.shape[along]
    if seq_lengths.shape != (value.shape[batch],):
        raise InvalidArgumentError(
            "one length per batch entry is needed", expected=[value.shape[batch]], actual=list(seq_lengths.shape)
        )
    if seq_lengths.size and (int(seq_lengths.min()) < 0 or int(seq_lengths.max()) > size):
        raise InvalidArgumentError(
            "a sequence is longer than its dimension",
            expected=f"lengths in 0..{size}",
            actual=_first_outside(seq_lengths, size + 1),
        )
    rest = [i for i in range(value.ndim) if i not in (batch, along)]
    order = [batch, along, *rest]
    lengths = seq_lengths.astype(np.int64)[:, None]
    steps = xp.arange(size)[None, :]
    # With batch and sequence in front, one pair of index arrays addresses both.
    ordered = value.transpose(order)

    def turned(part: slice) -> Array:
        # Position p of a sequence of length n is read from n - 1 - p. Positions after its end stay.
        places = xp.where(steps < lengths[part], lengths[part] - 1 - steps, steps)
        return ordered[xp.arange(part.start, part.stop)[:, None], places]

    if is_large(value):
        reversed_ = rows_written(ordered.shape, value.dtype, turned)
    else:
        reversed_ = turned(slice(0, len(ordered)))
    return reversed_.transpose(np.argsort(order).tolist())


def _first_outside(values: Array, high: int) -> int:
    """Return the first value outside [0, high); an error message with all of them could list millions."""
    flat = values.reshape(-1)
    return int(flat[int(((flat < 0) | (flat >= high)).argmax())])


@kernel("Roll", host={"shift": as_ints, "axis": as_ints}, fresh=True)
def roll(xp: Namespace, value: Array, shift: tuple[int, ...], axis: tuple[int, ...]) -> Array:
    if value.ndim < 1 or len(shift) != len(axis):
        raise InvalidArgumentError(
            "roll needs one shift per axis of a tensor",
            expected=f"rank >= 1 and {len(axis)} shifts",
            actual=f"{len(shift)}",
        )
    axes = [check_axis(a, value.ndim) for a in axis]
    if not is_large(value):
        return xp.roll(value, shift, tuple(axes)) if axes else copied(value)
    # One axis after the other, so that shifts of an axis that is named twice add up, as with `np.roll`.
    for place, by in zip(axes, shift, strict=True):
        value = _rolled(value, by % max(1, value.shape[place]), place)
    # Without axes nothing was copied, and the result must not share memory with the input.
    return value if axes else copied(value)


def _rolled(value: Array, shift: int, axis: int) -> Array:
    result, lead = np.empty(value.shape, value.dtype), (slice(None),) * axis
    size = value.shape[axis]
    put(result[(*lead, slice(shift, None))], value[(*lead, slice(0, size - shift))])
    put(result[(*lead, slice(0, shift))], value[(*lead, slice(size - shift, None))])
    return result


@kernel("InvertPermutation", fresh=True, synchronises=True)
def invert_permutation(xp: Namespace, x: Array) -> Array:
    if x.ndim != 1:
        raise InvalidArgumentError("a permutation must be a vector", expected="rank 1", actual=list(x.shape))
    count = x.size
    if count and (int(x.min()) < 0 or int(x.max()) >= count):
        raise InvalidArgumentError(
            "not a permutation", expected=f"each of 0..{count - 1} once", actual=_first_outside(x, count)
        )
    # A position that is still -1 afterwards was never assigned, so another one occurred twice.
    result = full(xp, x.shape, -1, x.dtype)
    for part in blocks(count, BLOCK if is_large(x) else max(1, count)):
        result[x[part]] = xp.arange(part.start, part.stop, dtype=x.dtype)
    if count and int(result.min()) < 0:
        raise InvalidArgumentError(
            "not a permutation", expected=f"each of 0..{count - 1} once", actual=f"no {int(result.argmin())}"
        )
    return result


# ── Unique ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _distinct(xp: Namespace, value: Array, dtype: NpDType, axis: int | None = None) -> tuple[Array, Array, Array]:
    """Return (distinct, idx, count) in the order of first appearance. NaN equals nothing, not even itself."""
    if axis is not None and (is_large(value) or value.dtype.kind == "O"):
        return _distinct_slices(value, dtype, axis)
    if axis is None and is_large(value):
        return (_distinct_objects if value.dtype.kind == "O" else _distinct_numbers)(value, dtype)
    _, first, inverse, counts = xp.unique(
        value, return_index=True, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    # `unique` sorts by value; this brings its results into the order of first appearance.
    order = xp.argsort(first)
    places = xp.empty(order.shape, np.int64)
    places[order] = xp.arange(order.size)
    distinct = xp.take(value, first[order], 0 if axis is None else axis)
    return distinct, places[inverse.reshape(-1)].astype(dtype), counts[order].astype(dtype)


def _distinct_objects(value: Array, dtype: NpDType) -> tuple[Array, Array, Array]:
    # A dict keeps the order of insertion, which is that of first appearance.
    numbers: dict[Any, int] = {}
    places = each(lambda item: numbers.setdefault(item, len(numbers)), value, dtype)
    return as_strings(list(numbers)), places, _counted(places, len(numbers), dtype)


def _distinct_slices(value: Array, dtype: NpDType, axis: int) -> tuple[Array, Array, Array]:
    """Like `_distinct`, for slices along `axis`, compared by their bytes."""
    # np.unique would sort large slices in one call that other work cannot interrupt, and it cannot sort strings.
    slices = np.moveaxis(value, axis, 0)
    rows = slices.reshape(len(slices), math.prod(slices.shape[1:]))
    numbers: dict[Any, int] = {}
    first: list[int] = []
    places = np.empty(len(rows), dtype)
    for part in row_blocks(rows):
        for place, key in enumerate(batches(_keys(rows[part], part.start)), part.start):
            number = places[place] = numbers.setdefault(key, len(first))
            if number == len(first):
                first.append(place)
    distinct = np.moveaxis(taken(slices, np.array(first, np.int64)), 0, axis)
    return distinct, places, _counted(places, len(first), dtype)


def _keys(rows: Array, start: int) -> list[Any]:
    """Return a key for each row; keys are equal if the rows are. NaN equals nothing."""
    if rows.dtype.kind == "O":
        return [tuple(row) for row in rows.tolist()]
    plain = np.ascontiguousarray(rows) + rows.dtype.type(0)  # turns -0.0 into 0.0, so that equal rows have equal bytes
    keys: list[Any] = plain.view(f"V{rows.shape[1] * rows.itemsize}").reshape(-1).tolist()
    # A row with NaN gets a unique key: its number, which equals no bytes.
    for place in np.flatnonzero((plain != plain).any(axis=1)).tolist():
        keys[place] = start + place
    return keys


def _distinct_numbers(value: Array, dtype: NpDType) -> tuple[Array, Array, Array]:
    order = order_of(value)
    ordered = taken(value, order)
    # A run of equal numbers begins where one differs from its predecessor. NaN differs from NaN, so each is a run.
    begins = np.concatenate(
        [part.start + np.flatnonzero(_differs(ordered, part)) for part in blocks(len(order), BLOCK)]
    )
    first = order[begins]  # the sort is stable, so this is the first appearance of each number
    rank = np.empty(len(first), np.int64)
    rank[order_of(first)] = np.arange(len(first))
    places = np.empty(len(order), dtype)
    for part in blocks(len(order), BLOCK):
        # `begins` ascends, so a binary search finds the run of each sorted position.
        places[order[part]] = rank[np.searchsorted(begins, np.arange(part.start, part.stop), "right") - 1]
    return taken(value, np.sort(first)), places, _counted(places, len(first), dtype)


def _differs(ordered: Array, part: slice) -> Array:
    """Return for each number whether it differs from the one before it."""
    if part.start:
        found: Array = ordered[part] != ordered[part.start - 1 : part.stop - 1]
        return found
    return np.append(True, ordered[1 : part.stop] != ordered[: part.stop - 1])


def _counted(places: Array, count: int, dtype: NpDType) -> Array:
    counts = np.zeros(count, dtype)
    for part in blocks(len(places), BLOCK):
        np.add.at(counts, places[part], 1)
    return counts


def _check_vector(value: Array) -> None:
    if value.ndim != 1:
        raise InvalidArgumentError("unique needs a vector", expected="rank 1", actual=list(value.shape))


@binder("Unique", fresh=True, synchronises=True)
def unique(binding: Binding) -> Callable[[Array], tuple[Array, Array]]:
    xp, dtype = binding.xp, binding.output_dtypes[1].np_dtype

    def distinct(value: Array) -> tuple[Array, Array]:
        _check_vector(value)
        return _distinct(xp, value, dtype)[:2]

    return distinct


@binder("UniqueV2", host={"axis": as_ints}, fresh=True, synchronises=True)
def unique_v2(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[1].np_dtype

    def distinct(value: Array, axis: tuple[int, ...]) -> tuple[Array, Array]:
        if len(axis) > 1:
            raise InvalidArgumentError("unique has one axis", expected="at most 1", actual=list(axis))
        if not axis:
            _check_vector(value)
        position = check_axis(axis[0], value.ndim) if axis else 0
        # The slices of a vector are its elements.
        return _distinct(xp, value, dtype, None if value.ndim == 1 else position)[:2]

    return distinct


@binder("UniqueWithCounts", fresh=True, synchronises=True)
def unique_with_counts(binding: Binding) -> Callable[[Array], tuple[Array, Array, Array]]:
    xp, dtype = binding.xp, binding.output_dtypes[1].np_dtype

    def distinct(value: Array) -> tuple[Array, Array, Array]:
        _check_vector(value)
        return _distinct(xp, value, dtype)

    return distinct


@binder("ListDiff", fresh=True, synchronises=True)
def list_diff(binding: Binding) -> Callable[[Array, Array], tuple[Array, Array]]:
    xp, dtype = binding.xp, binding.output_dtypes[1].np_dtype

    def difference(x: Array, y: Array) -> tuple[Array, Array]:
        kept = ~_is_in(xp, x, y)
        return x[kept], xp.flatnonzero(kept).astype(dtype)

    return difference


def _is_in(xp: Namespace, x: Array, y: Array) -> Array:
    """Return the same as `xp.isin`, in blocks if an array is large."""
    if not is_large(x) and not is_large(y):
        return xp.isin(x, y)
    if x.dtype.kind == "O":
        known = set(batches(y.reshape(-1).tolist()))
        return each(known.__contains__, x, bool)
    ordered = y[order_of(y)]
    if not len(ordered):
        return np.zeros(x.shape, bool)

    def found(part: slice) -> Array:
        # A number greater than all others is found past the end. Compared with the last one, it differs.
        same: Array = ordered[np.minimum(np.searchsorted(ordered, x[part]), len(ordered) - 1)] == x[part]
        return same

    return written(x.shape, np.dtype(bool), found)


# ── DynamicPartition and DynamicStitch ────────────────────────────────────────────────────────────────────────────────


@binder("DynamicPartition", fresh=True, synchronises=True)
def dynamic_partition(binding: Binding) -> Callable[[Array, Array], tuple[Array, ...]]:
    count = binding.attrs["num_partitions"]

    def sort_out(data: Array, partitions: Array) -> tuple[Array, ...]:
        if data.shape[: partitions.ndim] != partitions.shape:
            raise InvalidArgumentError(
                "the partitions do not fit the data",
                expected=f"a prefix of {list(data.shape)}",
                actual=list(partitions.shape),
            )
        if partitions.size and not 0 <= int(partitions.min()) <= int(partitions.max()) < count:
            raise InvalidArgumentError(
                "a partition is out of range",
                expected=f"0 <= partition < {count}",
                actual=_first_outside(partitions, count),
            )
        flat = partitions.reshape(-1)
        rows = data.reshape((flat.size, *data.shape[partitions.ndim :]))
        if not is_large(flat):
            return tuple(rows[flat == i] for i in batches(range(count)))
        # A stable sort, so that each partition keeps the order of its rows.
        order = order_of(flat)
        ends = np.searchsorted(flat[order], np.arange(count), "right").tolist()
        return tuple(taken(rows, order[a:b]) for a, b in batches(zip([0, *ends], ends, strict=False), 1))

    return sort_out


def _stitch(binding: Binding) -> KernelBody:
    xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype

    def merge(indices: Sequence[Array], data: Sequence[Array]) -> Array:
        inner = data[0].shape[indices[0].ndim :]
        greatest = -1
        for places, values in zip(indices, data, strict=True):
            if values.shape != places.shape + inner:
                raise InvalidArgumentError(
                    "the data do not fit their indices", expected=list(places.shape + inner), actual=list(values.shape)
                )
            if places.size:
                if int(places.min()) < 0:
                    raise InvalidArgumentError(
                        "an index is negative", expected="indices >= 0", actual=int(places.min())
                    )
                greatest = max(greatest, int(places.max()))
        shape = (greatest + 1, *inner)
        claim_array(shape, dtype)
        result = full(xp, shape, b"", dtype) if dtype.kind == "O" else xp.zeros(shape, dtype)
        for places, values in zip(indices, data, strict=True):
            # In the order of the inputs, so that of a repeated index the last row wins.
            scatter_rows(xp, "update", result, places.reshape(-1), values.reshape((places.size, *inner)))
        return result

    return merge


for _name in ("DynamicStitch", "ParallelDynamicStitch"):
    binder(_name, fresh=True, elastic=True, synchronises=True)(_stitch)


# ── sorted sequences ──────────────────────────────────────────────────────────────────────────────────────────────────


def _bound(side: str) -> Callable[[Binding], Callable[[Array, Array], Array]]:
    def bind(binding: Binding) -> Callable[[Array, Array], Array]:
        xp, dtype = binding.xp, binding.output_dtypes[0].np_dtype

        def search(sorted_inputs: Array, values: Array) -> Array:
            if sorted_inputs.ndim != 2 or values.ndim != 2 or len(sorted_inputs) != len(values):
                raise InvalidArgumentError(
                    "the sequences and the values do not have the same rows",
                    expected=f"({len(sorted_inputs) if sorted_inputs.ndim else '?'}, m)",
                    actual=list(values.shape),
                )
            result = xp.empty(values.shape, dtype)
            for i in batches(range(len(values)), 64):
                for part in blocks(values.shape[1], _SEARCHED):
                    result[i, part] = xp.searchsorted(sorted_inputs[i], values[i, part], side)
            return result

        return search

    return bind


binder("LowerBound", fresh=True)(_bound("left"))
binder("UpperBound", fresh=True)(_bound("right"))


@kernel("UnravelIndex", host={"dims": as_sizes}, fresh=True, synchronises=True)
def unravel_index(xp: Namespace, indices: Array, dims: tuple[int, ...]) -> Array:
    total = math.prod(dims)
    flat = indices.reshape(-1)
    if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < total:
        raise InvalidArgumentError(
            "a position is outside the tensor",
            expected=f"0 <= position < {total}",
            actual=_first_outside(flat, total),
        )
    result = xp.empty((len(dims), flat.size), indices.dtype)
    for part in blocks(flat.size, BLOCK if is_large(flat) else max(1, flat.size)):
        rest = flat[part]
        for axis in reversed(range(len(dims))):
            # The last dimension varies fastest. With a dimension of size 0 there are no positions, but also no divisor.
            result[axis, part] = rest % dims[axis] if dims[axis] else 0
            rest = rest // dims[axis] if dims[axis] else rest
    return result if indices.ndim else result.reshape(len(dims))
