"""Packing for a ring: the tensors of a device are packed into one by dtype, split into chunks, and unpacked again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.dtypes import DType, int64
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, merge_dims, num_elements
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.array.joining import concat, split, stack
from aioflow.ops.array.making import range as numbers
from aioflow.ops.array.shape import reshape, shape, size
from aioflow.ops.math.arithmetic import add, maximum, minimum, multiply
from aioflow.ops.math.division import floordiv

Combine: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# Combination of two chunks. A mean is a sum, which the chunk's last device divides once.
COMBINE: Final[Mapping[str, Combine]] = {
    "sum": add,
    "mean": add,
    "max": maximum,
    "min": minimum,
    "prod": multiply,
}


def check_op(op: str) -> None:
    """Raise InvalidArgumentError unless `op` is a reduction."""
    if op not in COMBINE:
        raise InvalidArgumentError("unknown reduction", expected=f"one of {sorted(COMBINE)}", actual=op)


@dataclass(frozen=True, slots=True)
class Column:
    """The same tensor of all devices, with the known dimensions of its shape."""

    tensors: tuple[Tensor, ...]
    dims: Dims

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...], op: str) -> Column:
        """Check that these tensors can be reduced together, and return their column.

        Raises:
            DTypeError: the reduction does not support the dtype, or the dtypes differ.
            InvalidArgumentError: the shapes differ.
        """
        dtype, dims = tensors[0].dtype, tensors[0].dims
        fractions = dtype.is_floating or dtype.is_complex
        # The mean of integers would have to be rounded, in a way that the caller did not choose.
        if not (fractions or (dtype.is_integer and op != "mean")):
            wanted = "floating or complex numbers" if op == "mean" else "numbers"
            raise DTypeError(f"all_reduce: no {op} of {tensors[0].name}", expected=wanted, actual=dtype.name)
        for tensor in tensors[1:]:
            if tensor.dtype is not dtype:
                raise DTypeError(
                    f"all_reduce: {tensors[0].name} and {tensor.name} have different dtypes",
                    expected=dtype.name,
                    actual=tensor.dtype.name,
                )
            try:
                dims = merge_dims(dims, tensor.dims)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(
                    f"all_reduce: {tensors[0].name} and {tensor.name} have different shapes",
                    expected=error.expected,
                    actual=error.actual,
                ) from error
        return cls(tensors, dims)


def by_dtype(columns: Sequence[Column]) -> list[list[int]]:
    """Return the positions of the tensors that are packed together."""
    packs: dict[DType, list[int]] = defaultdict(list)
    for position, column in enumerate(columns):
        packs[column.tensors[0].dtype].append(position)
    return list(packs.values())


def length_of(columns: Sequence[Column]) -> int | None:
    """Return the number of elements of a device's tensors together; None if unknown."""
    lengths = [num_elements(column.dims) for column in columns]
    return sum(n for n in lengths if n is not None) if None not in lengths else None


def cut(row: Sequence[Tensor], length: int | None, parts: int) -> list[Tensor]:
    """Return all elements of a device's tensors in `parts` vectors, whose lengths differ by at most one."""
    # One vector per device: few large transfers instead of many small ones.
    flat = concat([reshape(tensor, [-1]) for tensor in row], 0)
    return split(flat, _sizes(length, flat, parts), num=parts) if parts > 1 else [flat]


def _sizes(length: int | None, flat: Tensor, parts: int) -> TensorLike:
    if length is not None:
        # Bound i is ⌊i · length / parts⌋, so the lengths differ by at most one and add up to the length.
        return [end - start for start, end in pairwise(length * part // parts for part in range(parts + 1))]
    # The same bounds, computed in the step; int64, because the product may exceed 32 bits.
    bounds = floordiv(multiply(size(flat, out_type=int64), numbers(parts + 1, dtype=int64)), parts)
    return bounds[1:] - bounds[:-1]


def unpack(pieces: Sequence[Tensor], row: Sequence[Tensor], columns: Sequence[Column]) -> list[Tensor]:
    """Return the tensors of a device from the vectors of all their elements."""
    flat = concat(list(pieces), 0)
    found = [flat]
    if len(row) > 1:
        known = [num_elements(column.dims) for column in columns]
        counts = [size(tensor, out_type=int64) if n is None else n for tensor, n in zip(row, known, strict=True)]
        found = split(flat, counts if None not in known else stack(counts), num=len(row))
    results = []
    for piece, tensor, column in zip(found, row, columns, strict=True):
        # A static shape needs no node; an unknown one is read from the tensor itself.
        target: Any = shape(tensor) if num_elements(column.dims) is None else column.dims
        result = reshape(piece, target)
        # The reshape by a computed shape leaves the static one unknown.
        result.set_shape(column.dims)
        results.append(result)
    return results
