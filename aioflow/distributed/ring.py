"""All-reduce as a graph: every device ends up with the sum of all, and no device sends more than the others.

The ring algorithm (Patarasuk and Yuan, 2009): a tensor is cut into as many chunks as there are devices. Each chunk goes
around once to be summed, starting behind the device that it ends on, and once more to be handed out. A device sends
2 (n - 1) / n of the tensor, however many there are; the price is 2 (n - 1) hops one after the other. It is made of
ordinary nodes on the tensors' devices: partition makes the transfers, and the gradient, which is that of the nodes,
sends as much again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

from aioflow.checks.numbers import check_whole
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.argument_kinds import check_list
from aioflow.graph.dtypes import DType, int64
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims, merge_dims, num_elements
from aioflow.ops.apply import convert_to_tensor
from aioflow.ops.array.joining import concat, split, stack
from aioflow.ops.array.making import range as numbers
from aioflow.ops.array.shape import reshape, shape, size
from aioflow.ops.core import identity
from aioflow.ops.math.arithmetic import add, maximum, minimum, multiply
from aioflow.ops.math.division import divide, floordiv
from aioflow.ops.nest import check_same_structure, flatten, pack
from aioflow.ops.scoping import colocate_with, name_scope

__all__ = ["all_reduce"]

Combine: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_COMBINE: Final[Mapping[str, Combine]] = {
    "sum": add,
    "mean": add,  # and divided once, by whom a chunk ends on
    "max": maximum,
    "min": minimum,
    "prod": multiply,
}


def all_reduce(tensors: Sequence[Any], op: str = "sum", *, subchunks: int = 1, name: str | None = None) -> list[Any]:
    """Reduce one tensor per device, around a ring of these devices: each gets the result, with the same bits.

    One graph holds all devices, as in in-graph replication. The nodes are put where the tensors are, so each tensor
    should have been made under a `device` of its own; the ring goes in the order of the list. A device sends
    2 (n - 1) / n of the tensor's bytes. Differentiable; the gradient of a sum is the `all_reduce` of the gradients.

    Args:
        tensors: For each device a tensor, or a nested structure of tensors (such as all gradients of a replica), the
            same for all. The tensors of a structure with one dtype go around packed into one. Shapes need not be known
            when the graph is built, but must be equal.
        op: "sum", "mean", "max", "min" or "prod", elementwise.
        subchunks: Into how many parts that go around by themselves each device's chunk is cut. With more than one, some
            are added while others are on their way; worth it for tensors of megabytes.

    Returns:
        A list like `tensors`: the element of each device is on that device.

    Raises:
        InvalidArgumentError: there are no tensors, shapes differ, `op` is unknown or `subchunks` is not positive. In a
            run: the tensors have different numbers of elements.
        DTypeError: structures or dtypes differ, or values that cannot be reduced so (a mean of integers).

    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    check_list(tensors, "tensors")
    check_whole(subchunks, "subchunks", 1)
    if op not in _COMBINE:
        raise InvalidArgumentError("unknown reduction", expected=f"one of {sorted(_COMBINE)}", actual=op)
    if not tensors:
        raise InvalidArgumentError("there is nothing to reduce", expected="a tensor per device", actual=tensors)
    for other in tensors[1:]:
        check_same_structure(tensors[0], other, "the devices' tensors are not structured alike")
    with name_scope(name, "all_reduce"):
        rows = [[convert_to_tensor(leaf) for leaf in flatten(item)] for item in tensors]
        columns = [_Column.of(column, op) for column in zip(*rows, strict=True)]
        packs: dict[DType, list[int]] = defaultdict(list)
        for position, column in enumerate(columns):
            packs[column.tensors[0].dtype].append(position)
        for positions in packs.values():
            reduced = _reduce([columns[p] for p in positions], op, subchunks)
            for device, values in enumerate(reduced):
                for position, value in zip(positions, values, strict=True):
                    rows[device][position] = value
    return [pack(item, row) for item, row in zip(tensors, rows, strict=True)]


@dataclass(frozen=True, slots=True)
class _Column:
    """The same tensor of all devices, and what is known of its shape."""

    tensors: tuple[Tensor, ...]
    dims: Dims

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...], op: str) -> _Column:
        """Check that the tensors can be reduced together."""
        dtype, dims = tensors[0].dtype, tensors[0].dims
        fractions = dtype.is_floating or dtype.is_complex
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


def _reduce(columns: Sequence[_Column], op: str, subchunks: int) -> list[list[Tensor]]:
    """For each device its results, one per column; the columns have one dtype."""
    rows = list(zip(*(column.tensors for column in columns), strict=True))
    lengths = [num_elements(column.dims) for column in columns]
    length = sum(n for n in lengths if n is not None) if None not in lengths else None
    parts = len(rows) * subchunks if length is None else max(1, min(len(rows) * subchunks, length))
    cut = []
    for row in rows:
        with _on(row[0]):
            flat = concat([reshape(tensor, [-1]) for tensor in row], 0)
            cut.append(split(flat, _bounds_to_sizes(length, flat, parts), num=parts) if parts > 1 else [flat])
    gathered = _ring(cut, [row[0] for row in rows], op)
    results = []
    for row, pieces in zip(rows, gathered, strict=True):
        with _on(row[0]):
            results.append(_unpack(concat(pieces, 0), row, columns))
    return results


def _bounds_to_sizes(length: int | None, flat: Tensor, parts: int) -> Any:
    """The sizes of so many parts, which differ by at most one."""
    if length is not None:
        return [end - start for start, end in pairwise(length * part // parts for part in range(parts + 1))]
    bounds = floordiv(multiply(size(flat, out_type=int64), numbers(parts + 1, dtype=int64)), parts)
    return bounds[1:] - bounds[:-1]


def _ring(cut: Sequence[Sequence[Tensor]], places: Sequence[Tensor], op: str) -> list[list[Tensor]]:
    """For each device the reduced chunks. `cut` has each device's own; `places` says where the devices are."""
    devices, parts = len(cut), len(cut[0])
    reduced = [list(chunks) for chunks in cut]
    for part in range(parts):
        owner = part * devices // parts
        value = cut[(owner + 1) % devices][part]
        for hop in range(2, devices + 1):
            device = (owner + hop) % devices
            with _on(places[device]):
                value = _COMBINE[op](value, cut[device][part])
        if op == "mean":
            with _on(places[owner]):
                value = divide(value, devices)
        reduced[owner][part] = value
        for hop in range(1, devices):
            device = (owner + hop) % devices
            with _on(places[device]):
                # The copy that the next one gets: without a node of its own here, it would come from the owner.
                value = reduced[device][part] = identity(value)
    return reduced


def _unpack(flat: Tensor, row: Sequence[Tensor], columns: Sequence[_Column]) -> list[Tensor]:
    """The tensors of a device, cut from one that has all their elements."""
    pieces = [flat]
    if len(row) > 1:
        known = [num_elements(column.dims) for column in columns]
        counts = [size(tensor, out_type=int64) if n is None else n for tensor, n in zip(row, known, strict=True)]
        pieces = split(flat, counts if None not in known else stack(counts), num=len(row))
    results = []
    for piece, tensor, column in zip(pieces, row, columns, strict=True):
        target: Any = shape(tensor) if num_elements(column.dims) is None else column.dims
        result = reshape(piece, target)
        result.set_shape(column.dims)
        results.append(result)
    return results


@contextmanager
def _on(tensor: Tensor) -> Iterator[None]:
    """Put new nodes where a tensor is."""
    with colocate_with(tensor.op, ignore_existing=True):
        yield
