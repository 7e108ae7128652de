"""Base class and helpers of optimizers that wrap another one, which owns the slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aioflow.arguments import check_kind
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.control.branches_and_loops import cond
from aioflow.ops.core import group, no_op
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import GradientsAndVariables, Optimizer


class WrappingOptimizer(Optimizer):
    """Base class of optimizers that delegate to another one, `opt`, to compute and apply the gradients.

    Args:
        opt: The inner optimizer.
        use_locking: As in `Optimizer`.
        name: Name of the nodes; by default that of `opt`.

    Raises:
        DTypeError: `opt` is not an optimizer.
    """

    def __init__(self, opt: Optimizer, use_locking: bool = False, name: str | None = None) -> None:
        check_kind(opt, Optimizer, "the optimizer that applies the gradients", "an Optimizer")
        super().__init__(use_locking, opt.get_name() if name is None else name)
        self._opt = opt
        self.may_skip = opt.may_skip

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient | None, Variable]]:
        """Return the gradients that the inner optimizer computes."""
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """Return the variable that the inner optimizer keeps under `name` for `var`, or None."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Return the slot names of the inner optimizer."""
        return self._opt.get_slot_names()

    def variables(self) -> list[Variable]:
        """Return the inner optimizer's variables in the default graph, sorted by name."""
        return self._opt.variables()

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        self._opt._create_slots(var_list)

    def _own(self, name: str | None) -> str:
        """Return the name of the node that applies gradients."""
        return self.get_name() if name is None else name

    def _apply_inside(self, grads_and_vars: GradientsAndVariables, global_step: Variable | None, own: str) -> Operation:
        """Apply gradients with the inner optimizer, under a name derived from `own`."""
        return self._opt.apply_gradients(grads_and_vars, global_step, f"{own}-wrapped")

    def _prepare_branch(self, grads_and_vars: GradientsAndVariables) -> None:
        """Create the slots outside of the branch, so that they get the same names as without a branch."""
        updated = [v for gradient, v in grads_and_vars if gradient is not None and hasattr(v, "handle")]
        if updated:
            graph: Graph = updated[0].graph
            with graph.as_default(), graph.control_dependencies(None):
                self._create_slots(updated)


def with_values(gradient: Gradient, change: Callable[[Tensor], Tensor]) -> Gradient:
    """Return the gradient with changed values; a sparse gradient keeps its rows."""
    return gradient.with_values(change(gradient.values)) if isinstance(gradient, IndexedSlices) else change(gradient)


def only_if(condition: Tensor, apply: Callable[[], Operation]) -> Operation:
    """Return a node that runs the result of `apply` if `condition` holds.

    The node inside the branch cannot be run on its own, so it is removed from the collection of training steps.
    """
    collected = condition.graph.get_collection_ref(GraphKeys.TRAIN_OP)
    before = list(collected)
    applied: Tensor = cond(condition, apply, no_op)
    collected[:] = before
    return applied.op


def collect_step(*parts: Operation, own: str) -> Operation:
    """Group the nodes into one named `own`, and add it to the collection of training steps."""
    step = group(*parts, name=own)
    step.graph.add_to_collection(GraphKeys.TRAIN_OP, step)
    return step
