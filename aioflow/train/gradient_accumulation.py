"""Gradient accumulation: batches larger than memory, whose update sums the gradients of several small batches.

The sums are variables, so a checkpoint between two updates includes them. Changes to the sums run in a critical section
unless locking is turned off, so that concurrent steps, of one client or of several, are each added once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aioflow.arguments import check_whole
from aioflow.graph import dtypes
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import TensorLike, constant, make
from aioflow.ops.control.critical_section import CriticalSection
from aioflow.ops.core import group
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import (
    GradientsAndVariables,
    Optimizer,
    WrappingOptimizer,
    as_gradient,
    collect_step,
    only_if,
    sum_equal_rows,
    with_values,
)
from aioflow.train.slots import create_slot

_SUM = "GradientSum"
_ROWS = "GradientRows"
_COUNT = "gradients_added"


class GradientAccumulationOptimizer(WrappingOptimizer):
    """An optimizer that sums the gradients of several steps and has another optimizer apply them in one update.

    The update equals that of one step with all the examples, if each step has the same number of examples and the loss
    is a mean over them. Only every `steps`-th step changes variables and increments the global step. Sparse gradients
    (`IndexedSlices`) stay sparse: their sum has a row for each index that occurred.

    With several replicas that share their variables, the gradients of all replicas count together. Each call of
    `minimize` or `apply_gradients` sums and counts its own gradients.

    Args:
        opt: Optimizer that computes and applies the gradients.
        steps: Number of steps per update.
        average: Whether to apply the mean of the gradients; otherwise their sum, for losses that are sums.
        use_locking: Whether steps may run concurrently. Without locking, each step is half a millisecond faster.
        name: Name prefix of the nodes; that of `opt` by default.
        change: Function from (gradient, variable) pairs to such pairs, applied to the mean before the update, for
            example to clip it.

    Raises:
        DTypeError: `opt` is not an optimizer, or `steps` is not an int.
        InvalidArgumentError: `steps` is less than 1.
    """

    def __init__(
        self,
        opt: Optimizer,
        steps: int,
        average: bool = True,
        use_locking: bool = True,
        name: str | None = None,
        *,
        change: Callable[[GradientsAndVariables], GradientsAndVariables] | None = None,
    ) -> None:
        super().__init__(opt, use_locking, name)
        check_whole(steps, "steps", 1)
        self._steps = int(steps)
        self._average = average
        self._change = change
        self._sections: dict[Graph, CriticalSection] = {}
        self.may_skip = self.may_skip or self._steps > 1

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[TensorLike | None, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """Return a node that adds these gradients, and applies their sum at every `steps`-th run.

        Raises as `Optimizer.apply_gradients` does.
        """
        pairs = [(as_gradient(g, v), v) for g, v in grads_and_vars]
        given = [(g, v) for g, v in pairs if g is not None]
        # Without accumulation the wrapped optimizer does all of it, without further nodes.
        if self._steps == 1 or not given:
            return self._opt.apply_gradients(self._changed(given) if given else pairs, global_step, name)
        own = self._own(name)
        # By name, so that the place of the counter and the lock does not depend on the order of the list.
        first = min((v for _, v in given), key=lambda v: v.name)
        graph = first.graph
        with graph.as_default():
            self._prepare_branch(given)
            earlier = sum(known is graph for _, known in self._non_slots)
            suffix = f"_{earlier}" if earlier else ""
            # The counter and the lock are made once and must not depend on the surrounding step.
            with graph.control_dependencies(None), _beside(first):
                count = self._create_non_slot_variable(constant(0, dtypes.int64), _COUNT + suffix, first)
                # One lock for all calls: their updates share variables of the optimizer, such as powers of Adam.
                if self._use_locking and graph not in self._sections:
                    self._sections[graph] = CriticalSection(f"{own}_section")
            section = self._sections.get(graph)
            # Before the lock is taken, as everything that is read inside.
            given = [(sum_equal_rows(g) if isinstance(g, IndexedSlices) else g, v) for g, v in given]
            sums = [self._sum_of(g, v, suffix) for g, v in given]
            waiting = [part for g, _ in given for part in _parts(g)]

            def add() -> Operation:
                return self._add(sums, given, count, global_step, own)

            # Gradients are computed before the lock is taken, so that concurrent steps compute in parallel.
            with graph.control_dependencies(waiting), _beside(first):
                done = add() if section is None else section.execute(add)
        return collect_step(done, own=own)

    def variables(self) -> list[Variable]:
        """Return the variables of the inner optimizer, the sums, and the number of gradients added."""
        return [*super().variables(), *Optimizer.variables(self)]

    def _sum_of(self, gradient: Gradient, variable: Any, suffix: str) -> _Sum:
        if isinstance(gradient, IndexedSlices):
            # The number of accumulated rows varies, so the slot starts with none and its shape is open.
            rest = variable.dims[1:]
            values = self._get_or_make_open_slot(variable, _SUM + suffix, gradient.values.dtype, (0, *rest))
            indices = self._get_or_make_open_slot(variable, _ROWS + suffix, gradient.indices.dtype, (0,))
            return _SumOfRows(values, indices, (None, *rest))
        return _Sum(self._zeros_slot(variable, _SUM + suffix, _SUM + suffix))

    def _get_or_make_open_slot(self, variable: Variable, name: str, dtype: DType, dims: tuple[int, ...]) -> Variable:
        """Return a slot with a variable number of rows."""
        held = self._slots.setdefault(name, {})
        if variable.handle not in held:
            held[variable.handle] = create_slot(variable, lambda: make("Fill", dims, constant(0, dtype)), name, dtype)
        return held[variable.handle]

    def _add(
        self,
        sums: Sequence[_Sum],
        pairs: Sequence[tuple[Gradient, Variable]],
        count: Variable,
        step: Variable | None,
        own: str,
    ) -> Operation:
        graph = count.graph
        added = [total.add(gradient) for total, (gradient, _) in zip(sums, pairs, strict=True)]
        # The count is read after it was advanced, and after the gradient was added.
        with graph.control_dependencies([*added, count.assign_add(constant(1, dtypes.int64), read_value=False)]):
            full = make("GreaterEqual", count.read_value(), constant(self._steps, dtypes.int64))

        def apply() -> Operation:
            means = [(self._mean(total), v) for total, (_, v) in zip(sums, pairs, strict=True)]
            applied = self._apply_inside(self._changed(means), step, own)
            # Cleared only after the update has read the sums.
            with graph.control_dependencies([applied]):
                return group(*(total.clear() for total in sums), count.assign(0, read_value=False))

        return only_if(full, apply)

    def _changed(self, pairs: GradientsAndVariables) -> GradientsAndVariables:
        return pairs if self._change is None else self._change(pairs)

    def _mean(self, total: _Sum) -> Gradient:
        return with_values(total.read(), self._divided) if self._average else total.read()

    def _divided(self, part: Tensor) -> Tensor:
        return make("RealDiv", part, constant(self._steps, part.dtype))


class _Sum:
    """The accumulated gradient of one variable."""

    def __init__(self, values: Variable) -> None:
        self._values = values

    def add(self, gradient: Any) -> Operation:
        """Return a node that adds a gradient."""
        added: Operation = self._values.assign_add(gradient, read_value=False)
        return added

    def read(self) -> Gradient:
        """Return the sum."""
        return self._values.read_value()

    def clear(self) -> Operation:
        """Return a node that resets the sum to zero."""
        cleared: Operation = self._values.assign(make("ZerosLike", self._values.read_value()), read_value=False)
        return cleared


class _SumOfRows(_Sum):
    """The accumulated sparse gradient of one variable: a row for each index that occurred."""

    def __init__(self, values: Variable, indices: Variable, dims: tuple[int | None, ...]) -> None:
        super().__init__(values)
        self._indices = indices
        self._dims = dims

    def add(self, gradient: IndexedSlices) -> Operation:
        parts = [self.read(), gradient]
        # Both are read before either is assigned: rows and indices must stay in step.
        values, indices = (make("ConcatV2", [*each], 0) for each in zip(*map(_parts, parts), strict=True))
        total = sum_equal_rows(IndexedSlices(values, indices))
        return group(
            self._values.assign(total.values, read_value=False), self._indices.assign(total.indices, read_value=False)
        )

    def read(self) -> IndexedSlices:
        values, indices = self._values.read_value(), self._indices.read_value()
        values.set_shape(self._dims)
        indices.set_shape((None,))
        return IndexedSlices(values, indices)

    def clear(self) -> Operation:
        kept = self.read()
        return group(
            *(
                # `[:0]` keeps the trailing dimensions.
                held.assign(old[:0], read_value=False)
                for held, old in ((self._values, kept.values), (self._indices, kept.indices))
            )
        )


def _parts(gradient: Gradient) -> list[Tensor]:
    return [gradient.values, gradient.indices] if isinstance(gradient, IndexedSlices) else [gradient]


@contextmanager
def _beside(variable: Variable) -> Iterator[None]:
    """Place nodes on the variable's task, without its device: a lock is on the CPU even if the variable is not."""
    spec = DeviceSpec.from_string(variable.device).replace(device_type=None, device_index=None)
    with variable.graph.device(spec):
        yield
