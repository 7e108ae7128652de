"""All-reduce around a ring: every device or program gets the sum of all.

Each of the n devices or programs sends 2 (n - 1) / n of a tensor's bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

from aioflow.arguments import check_list, check_text, check_whole
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType, int64
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.shapes import Dims, merge_dims, num_elements
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.apply import convert_to_tensor
from aioflow.ops.array.joining import concat, split, stack
from aioflow.ops.array.making import range as numbers
from aioflow.ops.array.shape import reshape, shape, size
from aioflow.ops.core import identity
from aioflow.ops.math.arithmetic import add, maximum, minimum, multiply
from aioflow.ops.math.division import divide, floordiv
from aioflow.ops.nest import check_same_structure, flatten, pack
from aioflow.ops.queues.mailbox import mailbox_put, mailbox_take
from aioflow.ops.scoping import colocate_with, control_dependencies, device, name_scope

# ── packing: the tensors of a device become one by dtype, are split into chunks, and unpacked again ───────────────────


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


# ── devices of one graph ──────────────────────────────────────────────────────────────────────────────────────────────
#
# The ring algorithm (Patarasuk and Yuan, 2009) divides a tensor into as many chunks as there are devices. Each chunk
# travels the ring once to be summed, starting after the device that it ends on, and once more to be distributed. A
# device sends 2 (n - 1) / n of the tensor, however many devices there are; the price is 2 (n - 1) sequential hops. The
# graph consists of ordinary nodes on the tensors' devices: partitioning makes the transfers, and the gradient, which
# follows from the nodes, sends as much again.


def all_reduce(tensors: Sequence[Any], op: str = "sum", *, subchunks: int = 1, name: str | None = None) -> list[Any]:
    """Reduce one tensor per device around a ring of these devices: each gets the same result, bit for bit.

    One graph holds all devices, as in in-graph replication. The nodes are placed with the tensors, so make each tensor
    under a `device` of its own. The ring follows the order of the list. A device sends 2 (n - 1) / n of the tensor's
    bytes. Differentiable; the gradient of a sum is the `all_reduce` of the gradients.

    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

    Args:
        tensors: For each device a tensor, or a nested structure of tensors (such as all gradients of a replica), the
            same for all. The tensors of a structure with one dtype are packed into one. Shapes need not be known when
            the graph is built, but must be equal.
        op: "sum", "mean", "max", "min" or "prod", elementwise.
        subchunks: Number of parts of each device's chunk that travel separately. With more than one, some are added
            while others are being sent, which pays for tensors of megabytes.
        name: Name scope of the nodes.

    Returns:
        A list like `tensors`: the element of each device is on that device.

    Raises:
        InvalidArgumentError: there are no tensors, shapes differ, `op` is unknown or `subchunks` is not positive. In a
            run: the tensors have different numbers of elements.
        DTypeError: structures or dtypes differ, or the reduction does not support the dtype (a mean of integers).
    """
    check_list(tensors, "tensors")
    check_whole(subchunks, "subchunks", 1)
    check_op(op)
    if not tensors:
        raise InvalidArgumentError("there is nothing to reduce", expected="a tensor per device", actual=tensors)
    for other in tensors[1:]:
        check_same_structure(tensors[0], other, "the devices' tensors are not structured alike")
    with name_scope(name, "all_reduce"):
        # rows[device][position]; the results replace the tensors in place.
        rows = [[convert_to_tensor(leaf) for leaf in flatten(item)] for item in tensors]
        columns = [Column.of(column, op) for column in zip(*rows, strict=True)]
        for positions in by_dtype(columns):
            reduced = _reduce([columns[p] for p in positions], op, subchunks)
            for device, values in enumerate(reduced):
                for position, value in zip(positions, values, strict=True):
                    rows[device][position] = value
    return [pack(item, row) for item, row in zip(tensors, rows, strict=True)]


def _reduce(columns: Sequence[Column], op: str, subchunks: int) -> list[list[Tensor]]:
    """Return the results of each device, one per column. The columns have one dtype."""
    rows = list(zip(*(column.tensors for column in columns), strict=True))
    length = length_of(columns)
    # At most one chunk per element, so that no chunk is empty.
    parts = len(rows) * subchunks if length is None else max(1, min(len(rows) * subchunks, length))
    own = []
    for row in rows:
        with _on(row[0]):
            own.append(cut(row, length, parts))
    results = []
    for row, pieces in zip(rows, _ring(own, [row[0] for row in rows], op), strict=True):
        with _on(row[0]):
            results.append(unpack(pieces, row, columns))
    return results


def _ring(own: Sequence[Sequence[Tensor]], places: Sequence[Tensor], op: str) -> list[list[Tensor]]:
    """Return the reduced chunks of each device.

    Args:
        own: The chunks of each device.
        places: A tensor on each device, which determines the placement of the nodes.
        op: The reduction.
    """
    devices, parts = len(own), len(own[0])
    reduced = [list(chunks) for chunks in own]
    for part in range(parts):
        owner = part * devices // parts  # consecutive parts, evenly distributed over the devices
        # The sum starts at the device after the owner and ends, after all hops, at the owner.
        value = own[(owner + 1) % devices][part]
        for hop in range(2, devices + 1):
            device = (owner + hop) % devices
            # On the device that adds: partitioning then sends the sum from the device before.
            with _on(places[device]):
                value = COMBINE[op](value, own[device][part])
        # Once per chunk, by its owner.
        if op == "mean":
            with _on(places[owner]):
                value = divide(value, devices)
        reduced[owner][part] = value
        for hop in range(1, devices):
            device = (owner + hop) % devices
            with _on(places[device]):
                # A copy for the next device: without a node on this device, the value would be sent by the owner.
                value = reduced[device][part] = identity(value)
    return reduced


@contextmanager
def _on(tensor: Tensor) -> Iterator[None]:
    """Colocate new nodes with a tensor."""
    with colocate_with(tensor.op, ignore_existing=True):
        yield


# ── programs, each with its own graph, session and tensors ────────────────────────────────────────────────────────────
#
# The ring is that of `all_reduce` above, but each graph contains only its own share of it. A program passes chunks to
# the next one through mailboxes on the tasks (`ops/queues/mailbox.py`), keyed by the number of the step.


def all_reduce_across(
    tensors: Any,
    devices: Sequence[str],
    rank: int,
    step: TensorLike,
    op: str = "sum",
    shared_name: str = "all_reduce",
    name: str | None = None,
) -> Any:
    """Reduce tensors across several programs: each program gets the same result, bit for bit.

    For between-graph replication without a parameter server. Each of n programs calls this with its own tensors and
    rank, and otherwise equal arguments. Each runs the step of each number once, in order. A run ends when all programs
    have run the step, so use a time limit. A task sends 2 (n - 1) / n of the bytes, and keeps up to twice the bytes
    of the last step, for programs that repeat it.

    A failed step may be run again under its number, with the same tensors, whether or not the other programs have
    finished it. All programs may return to an earlier number together, as after a restored checkpoint.

    Args:
        tensors: A tensor, or a nested structure of tensors; those of one dtype are packed together. Shapes need not be
            known, but must be equal in all programs.
        devices: Device of each program, in the order of the ring, such as "/job:worker/task:0".
        rank: Index of this program's device; the result is there.
        step: Number of the step, an int64 scalar on this program's device; equal in all programs.
        op: "sum", "mean", "max", "min" or "prod", elementwise.
        shared_name: Name that distinguishes the all-reduces of one step; the same in all programs.
        name: Name scope of the nodes.

    Returns:
        The same structure. It has no gradient.

    Raises:
        InvalidArgumentError: there are no devices, `rank` is out of range, or `op` is unknown. In a run: the tensors
            have different numbers of elements.
        DTypeError: the reduction does not support the dtype (a mean of integers).
    """
    check_list(devices, "devices")
    check_whole(rank, "rank", 0)
    check_text(shared_name, "shared_name")
    check_op(op)
    if rank >= len(devices):
        raise InvalidArgumentError("rank is not that of a device", expected=f"less than {len(devices)}", actual=rank)
    # The ring decides the placement: clear the caller's colocation and device first.
    # A None in `colocate_with` and `device` clears the outer blocks; only then does the own device count.
    with name_scope(name, "all_reduce"), default_graph().colocate_with(None), device(None), device(devices[rank]):
        row = [convert_to_tensor(leaf) for leaf in flatten(tensors)]
        columns = [Column.of((tensor,), op) for tensor in row]
        # A copy on this device: each mailbox call reads the number.
        number = identity(convert_to_tensor(step, int64))
        # One ring per dtype: only tensors of one dtype can be packed.
        for group, positions in enumerate(by_dtype(columns)):
            ring = _Place(devices, rank, number, op, f"{shared_name}/{group}")
            reduced = ring.reduce([columns[position] for position in positions])
            for position, value in zip(positions, reduced, strict=True):
                row[position] = value
    return pack(tensors, row)


@dataclass(frozen=True, slots=True)
class _Place:
    """A program's place in the ring. Each hop has a mailbox, on the device that takes from it."""

    devices: Sequence[str]
    rank: int
    step: Tensor
    op: str
    shared_name: str
    puts: list[Operation] = field(default_factory=list)

    def reduce(self, columns: Sequence[Column]) -> list[Tensor]:
        """Return the results of tensors of one dtype."""
        count = len(self.devices)
        row = [column.tensors[0] for column in columns]
        chunks = cut(row, length_of(columns), count)
        # Chunk c starts at the device after its owner c, and arrives at this device after `hop` hops.
        value = chunks[self.rank - 1]
        for hop in range(1, count):
            # The chunk that arrives has passed `hop` devices; this one adds its own share.
            value = COMBINE[self.op](self._exchange(value, f"sum_{hop}"), chunks[(self.rank - 1 - hop) % count])
        chunks[self.rank] = value if self.op != "mean" else divide(value, count)
        for hop in range(1, count):
            # After the sum each device owns one complete chunk, and passes on those that it receives.
            here = (self.rank - hop) % count
            chunks[here] = self._exchange(chunks[(here + 1) % count], f"share_{hop}")
        # No node reads a put, so the results wait for the puts.
        with control_dependencies(self.puts):
            return [identity(result) for result in unpack(chunks, row, columns)]

    def _exchange(self, value: Tensor, hop: str) -> Tensor:
        """Send a chunk to the next program, and return the one from the program before."""
        following = (self.rank + 1) % len(self.devices)
        # The mailbox is on the device that takes from it, so only the put crosses the network.
        with device(None), device(self.devices[following]):
            self.puts.append(mailbox_put(f"{self.shared_name}/{following}/{hop}", self.step, value))
        return mailbox_take(f"{self.shared_name}/{self.rank}/{hop}", self.step, value.dtype)
