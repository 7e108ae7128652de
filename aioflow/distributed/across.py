"""All-reduce across programs, each with its own graph, session and tensors; they exchange values during the step.

The ring is that of `ring.py`, but each graph contains only its own share of it. A program passes chunks to the next one
through mailboxes on the tasks (`ops/queues/mailbox.py`), keyed by the number of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aioflow.arguments import check_list, check_text, check_whole
from aioflow.distributed.packing import COMBINE, Column, by_dtype, check_op, cut, length_of, unpack
from aioflow.errors import InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import int64
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import TensorLike, convert_to_tensor
from aioflow.ops.core import identity
from aioflow.ops.math.division import divide
from aioflow.ops.nest import flatten, pack
from aioflow.ops.queues.mailbox import mailbox_put, mailbox_take
from aioflow.ops.scoping import control_dependencies, device, name_scope


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
