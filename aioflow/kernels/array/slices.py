"""Kernels of Slice and StridedSlice, which return views of the input."""

from __future__ import annotations

from types import EllipsisType
from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.blockwise import claim_array
from aioflow.kernels.convert import as_ints, as_sizes
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.copying import put
from aioflow.memory.values import Array
from aioflow.ops.array.strided import IndexItem, strided_index

ArrayIndex = tuple[IndexItem, ...]


@binder("Slice", host={"begin": as_ints, "size": as_ints})
def slice_(binding: Binding) -> KernelBody:
    _, begin, size = binding.constants
    dims = binding.input_dims[0]
    if begin is None or size is None or dims is None or None in dims:
        return lambda value, begin, size: value[_block(value.shape, begin, size)]
    # Known shapes and constant bounds are checked here once, and not in each step.
    fixed = _block(tuple(d for d in dims if d is not None), as_ints(begin), as_ints(size))
    return lambda value, begin, size: value[fixed]


def _block(shape: tuple[int, ...], begin: tuple[int, ...], size: tuple[int, ...]) -> tuple[slice | EllipsisType, ...]:
    if not len(shape) == len(begin) == len(size):
        raise InvalidArgumentError(
            "slice needs one begin and one size per dimension",
            expected=f"{len(shape)} elements",
            actual=f"{len(begin)} and {len(size)}",
        )
    index: list[slice] = []
    for axis, (whole, first, count) in enumerate(zip(shape, begin, size, strict=True)):
        last = whole if count == -1 else first + count
        if not 0 <= first <= last <= whole:
            raise InvalidArgumentError(
                f"a slice is out of bounds in dimension {axis}",
                expected=f"0 <= begin <= begin + size <= {whole}",
                actual=f"begin {first}, size {count}",
            )
        index.append(slice(first, last))
    # The ellipsis keeps a slice of rank 0 an array.
    return (*index, ...)


def _bind_index(binding: Binding) -> ArrayIndex | None:
    """Return the index tuple if the three inputs after the first are constants, otherwise None."""
    bounds = binding.constants[1:4]
    if any(b is None for b in bounds):
        return None
    begin, end, strides = (as_ints(b) for b in bounds)
    return strided_index(begin, end, strides, binding.attrs)


BOUNDS: Final = {"begin": as_ints, "end": as_ints, "strides": as_ints}


@binder("StridedSlice", host=BOUNDS)
def strided_slice(binding: Binding) -> KernelBody:
    # Indexing an object array by integers alone returns plain bytes; an ellipsis keeps the result an array.
    keep_array = binding.input_dtypes[0] is dtypes.string
    fixed = _bind_index(binding)
    attrs = binding.attrs

    def take(value: Array, index: ArrayIndex) -> Array:
        if keep_array and ... not in index:
            index = (*index, ...)
        try:
            return value[index]
        except IndexError as error:
            raise _out_of_bounds(value.shape, index) from error

    if fixed is None:
        return lambda value, begin, end, strides: take(value, strided_index(begin, end, strides, attrs))
    if keep_array or any(isinstance(item, int) for item in fixed):
        return lambda value, begin, end, strides: take(value, fixed)

    def take_fixed(value: Array, begin: tuple[int, ...], end: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        try:
            return value[fixed]
        except IndexError as error:
            raise _out_of_bounds(value.shape, fixed) from error

    return take_fixed


def slice_of(value: Array, index: ArrayIndex) -> Array:
    """Return the slice as a view to write into.

    Raises:
        InvalidArgumentError: the index is out of bounds.
    """
    try:
        # Integers alone would select a copy of one element; the ellipsis makes it a view.
        return value[(*index, ...)] if ... not in index else value[index]
    except IndexError as error:
        raise _out_of_bounds(value.shape, index) from error


def _out_of_bounds(shape: tuple[int, ...], index: ArrayIndex) -> InvalidArgumentError:
    consumed = sum(item is not None and item is not ... for item in index)
    if consumed > len(shape):
        return InvalidArgumentError(
            "a strided slice has more items than its input has dimensions",
            expected=f"at most {len(shape)} items",
            actual=consumed,
        )
    axis = 0
    for item in index:
        if item is ...:
            axis += len(shape) - consumed
            continue
        if isinstance(item, int) and not -shape[axis] <= item < shape[axis]:
            return InvalidArgumentError(
                f"slice index {item} of dimension {axis} is out of bounds",
                expected=f"an index in [{-shape[axis]}, {shape[axis]})",
                actual=item,
            )
        axis += item is not None
    return InvalidArgumentError(
        "a strided slice is out of bounds", expected=f"an index of shape {list(shape)}", actual=repr(index)
    )


@binder("StridedSliceGrad", host={"shape": as_sizes, **BOUNDS}, fresh=True, elastic=True)
def strided_slice_grad(binding: Binding) -> KernelBody:
    xp, dtype, attrs = binding.xp, binding.output_dtypes[0].np_dtype, binding.attrs
    fixed = _bind_index(binding)

    def place(
        shape: tuple[int, ...], begin: tuple[int, ...], end: tuple[int, ...], strides: tuple[int, ...], dy: Array
    ) -> Array:
        index = strided_index(begin, end, strides, attrs) if fixed is None else fixed
        claim_array(shape, dtype)
        result = xp.zeros(shape, dtype)
        target = slice_of(result, index)
        if target.shape != dy.shape:
            raise InvalidArgumentError(
                "the gradient does not have the shape of the slice", expected=list(target.shape), actual=list(dy.shape)
            )
        put(target, dy)
        return result

    return place
