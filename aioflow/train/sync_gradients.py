"""How the gradients of several replicas come together at a variable: the first that come, or in the order of workers.

A sum of floats depends on its order. Where the first m of n count, the order is that in which they come. Where every
worker counts each step, each has an accumulator of its own, which takes one gradient a step, and these are added up in
the order of workers: the same gradients then give the same bits, whoever was first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aioflow.graph import dtypes
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.queues.accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable

__all__ = ["Accumulator", "Gathered", "RollCall", "gather_the_first"]

Accumulator = ConditionalAccumulator | SparseConditionalAccumulator


@dataclass(frozen=True, slots=True)
class Gathered:
    """The nodes that bring the gradients of a variable together.

    Attributes:
        given: This replica's gradient is in.
        taken: The mean of all.
        accumulators: Where they are until then.
    """

    given: Operation
    taken: Gradient
    accumulators: Sequence[Accumulator]


def gather_the_first(gradient: Gradient, variable: Variable, local_step: Tensor, count: int) -> Gathered:
    """The mean of the first `count` gradients of a step; of a row, that of those among them which have it."""
    accumulator = _accumulator(gradient, variable, "", "MEAN")
    return Gathered(_give(accumulator, gradient, local_step), _take(accumulator, variable, count), [accumulator])


class RollCall:
    """Numbered workers say that their gradients are in, and the chief takes none before all have said so.

    A chief that dies while it waits for the slowest has then taken nothing from the others.

    Args:
        worker, workers: The number of this one, and how many there are.
    """

    def __init__(self, worker: int, workers: int) -> None:
        name = "sync_rep_roll_call"
        self.worker = worker
        self.workers = workers
        self.accumulator = ConditionalAccumulator(dtypes.int32, (), name, name, "SUM")
        self._all_in = self.accumulator.take_grad(workers)

    def answer(self, given: Sequence[Operation], local_step: Tensor) -> Operation:
        """Say so, after these nodes."""
        with self._all_in.graph.control_dependencies(given):
            return self.accumulator.apply_grad(1, local_step)

    def gather(self, gradient: Gradient, variable: Variable, local_step: Tensor) -> Gathered:
        """The mean over all workers, added up from worker 0 on."""
        accumulators = [_accumulator(gradient, variable, f"_{index}", "FIRST") for index in range(self.workers)]
        given = _give(accumulators[self.worker], gradient, local_step)
        with variable.graph.control_dependencies([self._all_in]):
            parts = [_take(accumulator, variable, 1) for accumulator in accumulators]
        mean = _mean_of_rows(parts) if isinstance(gradient, IndexedSlices) else _mean(parts)
        return Gathered(given, mean, accumulators)


def _accumulator(gradient: Gradient, variable: Variable, ending: str, reduction: str) -> Accumulator:
    name = f"{variable.name}/grad_accum{ending}"
    kind = SparseConditionalAccumulator if isinstance(gradient, IndexedSlices) else ConditionalAccumulator
    return kind(gradient.dtype, variable.dims, shared_name=name, reduction_type=reduction)


def _give(accumulator: Any, gradient: Gradient, local_step: Tensor) -> Operation:
    add = accumulator.apply_indexed_slices_grad if isinstance(gradient, IndexedSlices) else accumulator.apply_grad
    given: Operation = add(gradient, local_step=local_step)
    return given


def _take(accumulator: Accumulator, variable: Variable, count: int) -> Gradient:
    if isinstance(accumulator, ConditionalAccumulator):
        return accumulator.take_grad(count)
    taken = accumulator.take_indexed_slices_grad(count)
    dims = variable.dims
    taken.indices.set_shape((None,))
    taken.values.set_shape(None if dims is None else (None, *dims[1:]))
    return taken


def _mean(parts: Sequence[Any]) -> Tensor:
    total = make("AddN", list(parts))
    return make("RealDiv", total, constant(len(parts), total.dtype))


def _mean_of_rows(parts: Sequence[Any]) -> IndexedSlices:
    values = make("ConcatV2", [part.values for part in parts], 0)
    indices, place = make_list("Unique", make("ConcatV2", [part.indices for part in parts], 0), out_idx=dtypes.int64)
    size = make("Shape", indices)[0]
    total = make("UnsortedSegmentSum", values, place, size)
    counts = make("UnsortedSegmentSum", make("OnesLike", place), place, size)
    by_row = make("ConcatV2", [make("Shape", counts), make("OnesLike", make("Shape", values)[1:])], 0)
    divisor = make("Reshape", make("Cast", counts, DstT=values.dtype), by_row)
    return IndexedSlices(make("RealDiv", total, divisor), indices, parts[0].dense_shape)
