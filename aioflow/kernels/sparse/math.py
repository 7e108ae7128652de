"""Kernels of sparse arithmetic. They group entries by index and reduce each group at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import check_axis
from aioflow.kernels.blockwise import (
    claim_array,
    counted,
    folded_in,
    joined,
    put_rows,
    rows_chosen,
    taken,
    written,
)
from aioflow.kernels.convert import as_ints, check_rank
from aioflow.kernels.math.large_sorts import order_of
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.kernels.sparse.entries import check_bounds, check_columns, check_entries, group, int64_array
from aioflow.memory.copying import copied
from aioflow.memory.values import Array, NpDType

_BLOCK: Final = 1 << 20  # elements of partial products that a matrix product holds at once


def _wide(dtype: NpDType) -> NpDType:
    """Return the dtype of sums: floats of two bytes are summed in float32."""
    # The kind of bfloat16 is "V".
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


# ── sums ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _two(a: tuple[Array, Array, Array], b: tuple[Array, Array, Array]) -> None:
    for part in (a, b):
        check_entries(*part)
        check_bounds(part[0], part[2])
    if a[2].tolist() != b[2].tolist():
        raise InvalidArgumentError("the shapes differ", expected=a[2].tolist(), actual=b[2].tolist())


@kernel("SparseAdd", device="CPU", fresh=True)
def sparse_add(
    a_indices: Array, a_values: Array, a_shape: Array, b_indices: Array, b_values: Array, b_shape: Array, thresh: Array
) -> tuple[Array, Array, Array]:
    _two((a_indices, a_values, a_shape), (b_indices, b_values, b_shape))
    indices, values = joined([a_indices, b_indices]), joined([a_values, b_values])
    groups = group(indices)
    sums = np.zeros(groups.total, dtype=values.dtype)
    folded_in(np.add, sums, groups.number, values)
    count = counted(groups.number, groups.total)
    kept = written(sums.shape, np.dtype(bool), lambda part: _stays(count[part], sums[part], thresh))
    return taken(indices, rows_chosen(groups.first, kept)), rows_chosen(sums, kept), a_shape.copy()


def _stays(count: Array, sums: Array, thresh: Array) -> Array:
    """Return which results to keep. As in TensorFlow, only sums of several entries are compared with `thresh`."""
    found: Array = (count == 1) | (np.abs(sums) >= thresh)
    return found


@kernel("SparseAddGrad", device="CPU", fresh=True)
def sparse_add_grad(grad: Array, a_indices: Array, b_indices: Array, sum_indices: Array) -> tuple[Array, Array]:
    check_rank("the gradient", grad, 1)
    for part in (a_indices, b_indices, sum_indices):
        check_rank("the indices", part, 2)
    check_columns(a_indices, b_indices, sum_indices)
    if len(grad) != len(sum_indices):
        raise InvalidArgumentError(
            "each entry of the sum needs a gradient", expected=len(sum_indices), actual=len(grad)
        )
    groups = group(joined([sum_indices, a_indices, b_indices]))
    table = np.zeros(groups.total, dtype=grad.dtype)
    of_sum, of_a, of_b = np.split(groups.number, [len(sum_indices), len(sum_indices) + len(a_indices)])
    put_rows(table, of_sum, grad)
    return taken(table, of_a), taken(table, of_b)


@kernel("SparseTensorDenseAdd", device="CPU", fresh=True)
def sparse_tensor_dense_add(indices: Array, values: Array, shape: Array, dense: Array) -> Array:
    check_entries(indices, values, shape)
    if tuple(shape.tolist()) != np.shape(dense):
        raise InvalidArgumentError("the shapes differ", expected=tuple(shape.tolist()), actual=np.shape(dense))
    check_bounds(indices, shape)
    made = copied(np.asarray(dense))
    folded_in(np.add, made, tuple(indices.T), values)
    found: Array = made[()] if made.ndim == 0 else made
    return found


def _combined(combine: Callable[[Array, Array], Array], *parts: Array) -> tuple[Array, Array]:
    """Return the union of two sets of entries; a missing entry counts as zero."""
    a_indices, a_values, a_shape, b_indices, b_values, b_shape = parts
    _two((a_indices, a_values, a_shape), (b_indices, b_values, b_shape))
    indices = joined([a_indices, b_indices])
    groups = group(indices)
    sides = []
    for values, numbers in ((a_values, groups.number[: len(a_values)]), (b_values, groups.number[len(a_values) :])):
        side = np.zeros(groups.total, dtype=values.dtype)
        put_rows(side, numbers, values)
        sides.append(side)
    return taken(indices, groups.first), combine(*sides)


@kernel("SparseSparseMaximum", device="CPU", fresh=True)
def sparse_sparse_maximum(
    a_indices: Array, a_values: Array, a_shape: Array, b_indices: Array, b_values: Array, b_shape: Array
) -> tuple[Array, Array]:
    return _combined(np.maximum, a_indices, a_values, a_shape, b_indices, b_values, b_shape)


@kernel("SparseSparseMinimum", device="CPU", fresh=True)
def sparse_sparse_minimum(
    a_indices: Array, a_values: Array, a_shape: Array, b_indices: Array, b_values: Array, b_shape: Array
) -> tuple[Array, Array]:
    return _combined(np.minimum, a_indices, a_values, a_shape, b_indices, b_values, b_shape)


# ── reductions ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Reduction:
    """Entries reduced along axes.

    Attributes:
        indices: The indices of the results: the kept dimensions, or all dimensions with 0 for the reduced ones.
        values: The values of the results.
        shape: The dense shape of the results.
    """

    def __init__(self, ufunc: np.ufunc, entries: tuple[Array, Array, Array], axes: tuple[int, ...], keep: bool) -> None:
        indices, values, shape = entries
        check_entries(indices, values, shape)
        check_bounds(indices, shape)
        rank = len(shape)
        reduced = {check_axis(axis, rank) for axis in axes}
        kept = [axis for axis in range(rank) if axis not in reduced]
        groups = group(indices[:, kept])
        made = np.zeros(groups.total, dtype=_wide(values.dtype))
        if groups.total:
            if ufunc is not np.add:
                # Start from an element of each group: zero is not neutral for a maximum.
                put_rows(made, groups.number, values)
            folded_in(ufunc, made, groups.number, values.astype(made.dtype, copy=False))
        self.values = made.astype(values.dtype, copy=False)
        own = taken(indices, groups.first)
        own[:, sorted(reduced)] = 0
        self.indices = own if keep else own[:, kept]
        sizes = [1 if axis in reduced else int(shape[axis]) for axis in range(rank)]
        self.shape = sizes if keep else [sizes[axis] for axis in kept]

    def dense(self) -> Array:
        """Return the results as an array with zeros where there is no entry."""
        claim_array(tuple(self.shape), self.values.dtype)
        made = np.zeros(self.shape, dtype=self.values.dtype)
        if len(self.values):
            if made.ndim:
                put_rows(made, tuple(self.indices.T), self.values)
            else:
                made[...] = self.values[0]
        return made[()] if made.ndim == 0 else made


def _reduce(
    ufunc: np.ufunc, sparse: bool, binding: Binding
) -> Callable[[Array, Array, Array, tuple[int, ...]], Array | tuple[Array, Array, Array]]:
    keep = binding.attrs["keep_dims"]

    def run(indices: Array, values: Array, shape: Array, axes: tuple[int, ...]) -> Array | tuple[Array, Array, Array]:
        made = _Reduction(ufunc, (indices, values, shape), axes, keep)
        if not sparse:
            return made.dense()
        return made.indices, made.values, np.array(made.shape, dtype=np.int64)

    return run


for _op, _ufunc in (("SparseReduceSum", np.add), ("SparseReduceMax", np.maximum)):
    _axes = {"reduction_axes": as_ints}
    binder(_op, device="CPU", fresh=True, host=_axes, elastic=True)(partial(_reduce, _ufunc, False))
    binder(f"{_op}Sparse", device="CPU", fresh=True, host=_axes)(partial(_reduce, _ufunc, True))


@kernel("SparseSoftmax", device="CPU", fresh=True)
def sparse_softmax(indices: Array, values: Array, shape: Array) -> Array:
    check_entries(indices, values, shape)
    check_bounds(indices, shape)
    if len(shape) < 2:
        raise InvalidArgumentError("a softmax needs rows", expected="rank >= 2", actual=f"rank {len(shape)}")
    if not len(values):
        return values.copy()
    groups = group(indices[:, :-1])
    wide = values.astype(_wide(values.dtype), copy=False)
    # With the largest number of each row subtracted, no exponential overflows.
    largest = np.full(groups.total, -np.inf, dtype=wide.dtype)
    folded_in(np.maximum, largest, groups.number, wide)
    powers = written(wide.shape, wide.dtype, lambda part: np.exp(wide[part] - largest[groups.number[part]]))
    sums = np.zeros(groups.total, dtype=wide.dtype)
    folded_in(np.add, sums, groups.number, powers)
    return written(wide.shape, values.dtype, lambda part: powers[part] / sums[groups.number[part]])


# ── with dense tensors ────────────────────────────────────────────────────────────────────────────────────────────────


def _met(indices: Array, values: Array, shape: Array, dense: Array) -> Array:
    """Return for each entry the element of a dense tensor that broadcasts to the sparse one."""
    check_entries(indices, values, shape)
    check_bounds(indices, shape)
    sizes = np.shape(dense)
    own = shape[len(shape) - len(sizes) :].tolist() if len(sizes) <= len(shape) else None
    if own is None or any(size not in (1, wanted) for size, wanted in zip(sizes, own, strict=True)):
        raise InvalidArgumentError(
            "the dense tensor does not broadcast to the sparse one", expected=shape.tolist(), actual=sizes
        )
    columns, last = indices[:, len(shape) - len(sizes) :], np.array(sizes, dtype=np.int64) - 1
    elements = np.asarray(dense)
    # A dimension of size 1 broadcasts: every index in it becomes 0.
    return written(values.shape, elements.dtype, lambda part: elements[tuple(np.minimum(columns[part], last).T)])


@kernel("SparseDenseCwiseAdd", device="CPU", fresh=True)
def sparse_dense_cwise_add(indices: Array, values: Array, shape: Array, dense: Array) -> Array:
    return values + _met(indices, values, shape, dense)


@kernel("SparseDenseCwiseMul", device="CPU", fresh=True)
def sparse_dense_cwise_mul(indices: Array, values: Array, shape: Array, dense: Array) -> Array:
    return values * _met(indices, values, shape, dense)


@kernel("SparseDenseCwiseDiv", device="CPU", fresh=True)
def sparse_dense_cwise_div(indices: Array, values: Array, shape: Array, dense: Array) -> Array:
    met = _met(indices, values, shape, dense)
    if values.dtype.kind not in "iu":
        return values / met
    if not np.all(met):
        raise InvalidArgumentError("integer division by zero", expected="no zero", actual="a zero")
    towards_zero = np.abs(values) // np.abs(met)
    found: Array = (np.sign(values) * np.sign(met) * towards_zero).astype(values.dtype)
    return found


@binder("SparseTensorDenseMatMul", device="CPU", dtypes={"T": "numbers"}, fresh=True, elastic=True)
def sparse_tensor_dense_matmul(binding: Binding) -> Callable[[Array, Array, Array, Array], Array]:
    adjoint_a, adjoint_b = binding.attrs["adjoint_a"], binding.attrs["adjoint_b"]

    def multiply(indices: Array, values: Array, shape: Array, b: Array) -> Array:
        places, sizes = int64_array(indices), int64_array(shape)
        check_entries(places, values, sizes)
        check_bounds(places, sizes)
        if len(sizes) != 2 or np.ndim(b) != 2:
            raise InvalidArgumentError(
                "a matrix product needs matrices", expected="rank 2", actual=(len(sizes), np.ndim(b))
            )
        rows, columns = places[:, 0], places[:, 1]
        height, depth = sizes.tolist()
        if adjoint_a:
            rows, columns, height, depth, values = columns, rows, depth, height, values.conj()
        dense = b.conj().T if adjoint_b else b
        if dense.shape[0] != depth:
            raise InvalidArgumentError("the inner sizes differ", expected=depth, actual=dense.shape[0])
        return _product(rows, columns, values, dense, height)

    return multiply


def _product(rows: Array, columns: Array, values: Array, dense: Array, height: int) -> Array:
    """Sum `value * dense[column]` into each row, one block of entries at a time."""
    dtype, wide = values.dtype, _wide(values.dtype)
    claim_array((height, dense.shape[1]), wide)
    made = np.zeros((height, dense.shape[1]), dtype=wide)
    order = order_of(rows)
    rows, columns, values = (taken(part, order) for part in (rows, columns, values.astype(wide, copy=False)))
    dense = dense.astype(wide, copy=False)
    block = max(1, _BLOCK // max(1, dense.shape[1]))
    for part in blocks(len(rows), block):
        own = rows[part]
        # In sorted order each row occurs once among the sums of a block, and `+=` continues it in the next one.
        begins = np.flatnonzero(np.concatenate([[True], own[1:] != own[:-1]]))
        products = values[part, None] * dense[columns[part]]
        made[own[begins]] += np.add.reduceat(products, begins, axis=0)
    return made.astype(dtype, copy=False)
