"""Collection of the gradients of several replicas: the first to arrive, or all in worker order.

A sum of floats depends on its order. If the first m of n gradients count, they are added in order of arrival. If every
worker counts in each step, each has an accumulator of its own, which takes one gradient per step. These are added in
worker order, so equal gradients give bit-identical results, whatever the order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aioflow.graph import dtypes
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.tensor_like import TensorLike
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.queues.accumulators import ConditionalAccumulator, GradientReduction, SparseConditionalAccumulator
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable

AnyAccumulator = ConditionalAccumulator | SparseConditionalAccumulator


@dataclass(frozen=True, slots=True)
class Gathered:
    """The nodes that collect the gradients of a variable.

    Attributes:
        given: Node that is done when this replica's gradient has been added.
        taken: Mean of the gradients.
        accumulators: Accumulators that hold the gradients until then.
    """

    given: Operation
    taken: Gradient
    accumulators: Sequence[AnyAccumulator]


def gather_the_first(gradient: Gradient, variable: Variable, local_step: Tensor, count: int) -> Gathered:
    """Collect the mean of the first `count` gradients of a step.

    The mean of a sparse row is over those gradients that contain the row.
    """
    accumulator = _accumulator(gradient, variable, "", "MEAN")
    return Gathered(_give(accumulator, gradient, local_step), _take(accumulator, variable, count), [accumulator])


class RollCall:
    """A check that all indexed workers have added their gradients before the chief takes any.

    A chief that dies while it waits for the slowest worker has then taken nothing from the others.

    Args:
        worker: Index of this worker.
        workers: Number of workers.
    """

    def __init__(self, worker: int, workers: int) -> None:
        # A fixed name: all replicas must share one accumulator.
        name = "sync_rep_roll_call"
        self.worker = worker
        self.workers = workers
        self.accumulator = ConditionalAccumulator(dtypes.int32, (), name, name, "SUM")
        self._all_in = self.accumulator.take_grad(workers)

    def answer(self, given: Sequence[Operation], local_step: Tensor) -> Operation:
        """Report, after the nodes `given`, that this worker's gradients have been added."""
        # The report follows the gradients, so that a complete roll call means that all of them have arrived.
        with self._all_in.graph.control_dependencies(given):
            return self.accumulator.apply_grad(1, local_step)

    def gather(self, gradient: Gradient, variable: Variable, local_step: Tensor) -> Gathered:
        """Collect the mean over all workers, added up in worker order."""
        # "FIRST" keeps one gradient per step: a worker that computes its gradient again must not count twice.
        accumulators = [_accumulator(gradient, variable, f"_{index}", "FIRST") for index in range(self.workers)]
        given = _give(accumulators[self.worker], gradient, local_step)
        # No gradient is taken before the roll call is complete.
        with variable.graph.control_dependencies([self._all_in]):
            parts = [_take(accumulator, variable, 1) for accumulator in accumulators]
        mean = _mean_of_rows(parts) if isinstance(gradient, IndexedSlices) else _mean(parts)
        return Gathered(given, mean, accumulators)


def _accumulator(gradient: Gradient, variable: Variable, ending: str, reduction: GradientReduction) -> AnyAccumulator:
    name = f"{variable.name}/grad_accum{ending}"
    kind = SparseConditionalAccumulator if isinstance(gradient, IndexedSlices) else ConditionalAccumulator
    # The name of the variable, so that the graphs of all replicas refer to one accumulator.
    return kind(gradient.dtype, variable.dims, shared_name=name, reduction_type=reduction)


def _give(accumulator: Any, gradient: Gradient, local_step: Tensor) -> Operation:
    add = accumulator.apply_indexed_slices_grad if isinstance(gradient, IndexedSlices) else accumulator.apply_grad
    given: Operation = add(gradient, local_step=local_step)
    return given


def _take(accumulator: AnyAccumulator, variable: Variable, count: int) -> Gradient:
    if isinstance(accumulator, ConditionalAccumulator):
        return accumulator.take_grad(count)
    taken = accumulator.take_indexed_slices_grad(count)
    dims = variable.dims
    # The op states no shapes; a row of the variable has its trailing dimensions.
    taken.indices.set_shape((None,))
    taken.values.set_shape(None if dims is None else (None, *dims[1:]))
    return taken


def _mean(parts: Sequence[TensorLike]) -> Tensor:
    total = make("AddN", list(parts))
    return make("RealDiv", total, constant(len(parts), total.dtype))


def _mean_of_rows(parts: Sequence[Any]) -> IndexedSlices:
    values = make("ConcatV2", [part.values for part in parts], 0)
    # The rows of all workers: equal indices get one place, where their values are added up.
    indices, place = make_list("Unique", make("ConcatV2", [part.indices for part in parts], 0), out_idx=dtypes.int64)
    size = make("Shape", indices)[0]
    total = make("UnsortedSegmentSum", values, place, size)
    # Each row is divided by the number of gradients that contain it, not by the number of workers.
    counts = make("UnsortedSegmentSum", make("OnesLike", place), place, size)
    # The rank of the values may be unknown now, so the shape [rows, 1, …], which broadcasts, is computed in the graph.
    by_row = make("ConcatV2", [make("Shape", counts), make("OnesLike", make("Shape", values)[1:])], 0)
    divisor = make("Reshape", make("Cast", counts, DstT=values.dtype), by_row)
    return IndexedSlices(make("RealDiv", total, divisor), indices, parts[0].dense_shape)
