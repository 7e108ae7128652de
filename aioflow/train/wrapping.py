"""Optimizers around another one: what they have in common is that the one inside has the slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.graph import Graph, GraphKeys, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.control.branches_and_loops import cond
from aioflow.ops.core import group, no_op
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import GradientsAndVariables, Optimizer

__all__ = ["WrappingOptimizer", "collect_step", "only_if", "with_values"]


class WrappingOptimizer(Optimizer):
    """Base class of optimizers that have another one, `opt`, compute and apply the gradients.

    Args:
        name: What its nodes are called; as those of `opt` by default.

    Raises:
        DTypeError: `opt` is not an optimizer.
    """

    def __init__(self, opt: Optimizer, use_locking: bool = False, name: str | None = None) -> None:
        check_kind(opt, Optimizer, "the optimizer that applies the gradients", "an Optimizer")
        super().__init__(use_locking, opt.get_name() if name is None else name)
        self._opt = opt
        self.may_skip = opt.may_skip

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient | None, Variable]]:
        """What the optimizer inside computes."""
        return self._opt.compute_gradients(*args, **kwargs)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The variable that the optimizer inside keeps under `name` for `var`, or None."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Names of its slots."""
        return self._opt.get_slot_names()

    def variables(self) -> list[Variable]:
        """Its variables in the default graph, by name."""
        return self._opt.variables()

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        self._opt._create_slots(var_list)

    def _own(self, name: str | None) -> str:
        """What the node is called that applies gradients."""
        return self.get_name() if name is None else name

    def _apply_inside(self, grads_and_vars: GradientsAndVariables, global_step: Any, own: str) -> Operation:
        """What the optimizer inside makes of gradients, beside the node of that name."""
        return self._opt.apply_gradients(grads_and_vars, global_step, f"{own}-wrapped")

    def _prepare_branch(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        """Make the slots here, where they get the names that they have without a branch."""
        updated = [v for gradient, v in grads_and_vars if gradient is not None and hasattr(v, "handle")]
        if updated:
            graph: Graph = updated[0].graph
            with graph.as_default(), graph.control_dependencies(None):
                self._create_slots(updated)


def with_values(gradient: Gradient, change: Callable[[Tensor], Tensor]) -> Gradient:
    """The gradient with other values, of the same rows if it has only some."""
    return gradient.with_values(change(gradient.values)) if isinstance(gradient, IndexedSlices) else change(gradient)


def only_if(condition: Tensor, apply: Callable[[], Operation]) -> Operation:
    """What `apply` makes, in a branch. It cannot be run by itself, so the collection of training steps has nothing of
    it.
    """
    collected = condition.graph.get_collection_ref(GraphKeys.TRAIN_OP)
    before = list(collected)
    applied: Tensor = cond(condition, apply, no_op)
    collected[:] = before
    return applied.op


def collect_step(*parts: Operation, own: str) -> Operation:
    """All of these as one node of that name, in the collection of training steps."""
    step = group(*parts, name=own)
    step.graph.add_to_collection(GraphKeys.TRAIN_OP, step)
    return step
