"""All-reduce across programs: each has a graph, a session and a tensor of its own, and meets the others in the step.

The ring is that of `ring.py`, but nobody sees the whole of it: a program makes its own share, and hands chunks on to
the next by mailboxes that are kept on the tasks (`ops/queues/mailbox.py`), under the number of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aioflow.checks.numbers import check_whole
from aioflow.distributed.packing import COMBINE, Column, by_dtype, check_op, cut, length_of, unpack
from aioflow.errors import InvalidArgumentError
from aioflow.graph.argument_kinds import check_list, check_text
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import int64
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import TensorLike, convert_to_tensor
from aioflow.ops.core import identity
from aioflow.ops.math.division import divide
from aioflow.ops.nest import flatten, pack
from aioflow.ops.queues.mailbox import mailbox_put, mailbox_take
from aioflow.ops.scoping import control_dependencies, device, name_scope

__all__ = ["all_reduce_across"]


def all_reduce_across(
    tensors: Any,
    devices: Sequence[str],
    rank: int,
    step: TensorLike,
    op: str = "sum",
    shared_name: str = "all_reduce",
    name: str | None = None,
) -> Any:
    """Reduce the tensors of several programs: every program that runs this in its step gets the result, the same bits.

    For between-graph replication without a parameter server. Each of n programs calls it with its own tensors and rank
    and else alike, and runs the step of each number once, one after the other; a run ends when all have run it, so give
    it a time limit. A task sends 2 (n - 1) / n of the bytes, and keeps up to 2 of the last step for who repeats it.

    A step that failed may be run again under its number, with the same tensors as before, whether the others have
    finished it or not. All may go back to an earlier number together, as after a restored checkpoint.

    Args:
        tensors: A tensor, or a nested structure of tensors; those of one dtype go around together. Shapes need not be
            known, but must be equal.
        devices: The device of each program, in the order of the ring, such as "/job:worker/task:0".
        rank: Which of them is this program's; the result is there.
        step: The number of the step, an int64 scalar on this program's device that all programs count alike.
        op: "sum", "mean", "max", "min" or "prod", elementwise.
        shared_name: Tells one all-reduce of a step from another; the same in all programs.

    Returns:
        The same structure. It has no gradient.

    Raises:
        InvalidArgumentError: there are no devices, `rank` is none of them, `op` is unknown. In a run: the tensors have
            different numbers of elements.
        DTypeError: values that cannot be reduced so (a mean of integers).
    """
    check_list(devices, "devices")
    check_whole(rank, "rank", 0)
    check_text(shared_name, "shared_name")
    check_op(op)
    if rank >= len(devices):
        raise InvalidArgumentError("rank is not that of a device", expected=f"less than {len(devices)}", actual=rank)
    with name_scope(name, "all_reduce"), default_graph().colocate_with(None), device(None), device(devices[rank]):
        row = [convert_to_tensor(leaf) for leaf in flatten(tensors)]
        columns = [Column.of((tensor,), op) for tensor in row]
        number = identity(convert_to_tensor(step, int64))
        for group, positions in enumerate(by_dtype(columns)):
            ring = _Place(devices, rank, number, op, f"{shared_name}/{group}")
            reduced = ring.reduce([columns[position] for position in positions])
            for position, value in zip(positions, reduced, strict=True):
                row[position] = value
    return pack(tensors, row)


@dataclass(frozen=True, slots=True)
class _Place:
    """A program's place in the ring. Mailboxes are on the device of who takes from them, one for each hop."""

    devices: Sequence[str]
    rank: int
    step: Tensor
    op: str
    shared_name: str
    puts: list[Operation] = field(default_factory=list)

    def reduce(self, columns: Sequence[Column]) -> list[Tensor]:
        """The results of tensors of one dtype."""
        count = len(self.devices)
        row = [column.tensors[0] for column in columns]
        chunks = cut(row, length_of(columns), count)
        # Chunk c begins behind its owner c, and comes to this device after `hop` more.
        value = chunks[self.rank - 1]
        for hop in range(1, count):
            value = COMBINE[self.op](self._exchange(value, f"sum_{hop}"), chunks[(self.rank - 1 - hop) % count])
        chunks[self.rank] = value if self.op != "mean" else divide(value, count)
        for hop in range(1, count):
            here = (self.rank - hop) % count
            chunks[here] = self._exchange(chunks[(here + 1) % count], f"share_{hop}")
        with control_dependencies(self.puts):
            return [identity(result) for result in unpack(chunks, row, columns)]

    def _exchange(self, value: Tensor, hop: str) -> Tensor:
        """Hand a chunk on to the next program, and take that of the one before."""
        following = (self.rank + 1) % len(self.devices)
        with device(None), device(self.devices[following]):
            self.puts.append(mailbox_put(f"{self.shared_name}/{following}/{hop}", self.step, value))
        return mailbox_take(f"{self.shared_name}/{self.rank}/{hop}", self.step, value.dtype)
