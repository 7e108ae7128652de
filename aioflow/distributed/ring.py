"""All-reduce as a graph: every device gets the sum of all, and no device sends more than the others.

The ring algorithm (Patarasuk and Yuan, 2009) divides a tensor into as many chunks as there are devices. Each chunk
travels the ring once to be summed, starting after the device that it ends on, and once more to be distributed. A device
sends 2 (n - 1) / n of the tensor, however many devices there are; the price is 2 (n - 1) sequential hops. The graph
consists of ordinary nodes on the tensors' devices: partitioning makes the transfers, and the gradient, which follows
from the nodes, sends as much again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aioflow.arguments import check_list, check_whole
from aioflow.distributed.packing import COMBINE, Column, by_dtype, check_op, cut, length_of, unpack
from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.ops.apply import convert_to_tensor
from aioflow.ops.core import identity
from aioflow.ops.math.division import divide
from aioflow.ops.nest import check_same_structure, flatten, pack
from aioflow.ops.scoping import colocate_with, name_scope


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
