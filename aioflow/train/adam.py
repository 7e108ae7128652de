"""Adam: momentum and a learning rate for each element, both corrected for their start at zero."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import convert_to_tensor, make, make_op
from aioflow.ops.core import group
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, Setting, cast_to, setting


class AdamOptimizer(Optimizer):
    """Adam (Kingma and Ba 2015, in the form given before section 2.1: epsilon is "epsilon hat").

    m += (1-β1)·(g-m); v += (1-β2)·(g²-v); var -= learning_rate · √(1-β2ᵗ)/(1-β1ᵗ) · m / (√v + epsilon). A sparse
    gradient counts as a dense one with zeros: the moments decay in every row, as in the published implementation.

    Args:
        learning_rate, beta1, beta2, epsilon: A number, a scalar tensor, or a callable that makes one.
        use_own_namescope_for_non_slot_vars: Put the powers of the betas in a name scope named after the optimizer.
    """

    def __init__(
        self,
        learning_rate: Setting = 0.001,
        beta1: Setting = 0.9,
        beta2: Setting = 0.999,
        epsilon: Setting = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
        use_own_namescope_for_non_slot_vars: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate, self._beta1, self._beta2, self._epsilon = learning_rate, beta1, beta2, epsilon
        self._own_scope = use_own_namescope_for_non_slot_vars

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        # All variables share one pair of powers. Choosing by name makes the location independent of the list's order.
        first = min(var_list, key=lambda v: v.name)
        with ExitStack() as scope:
            if self._own_scope:
                scope.enter_context(first.graph.name_scope(self._name))
            self._create_non_slot_variable(self._call_if_callable(self._beta1), "beta1_power", first)
            self._create_non_slot_variable(self._call_if_callable(self._beta2), "beta2_power", first)
        for v in var_list:
            self._zeros_slot(v, "m", self._name)
            self._zeros_slot(v, "v", self._name)
        self._graph = first.graph

    def _powers(self) -> tuple[Variable, Variable]:
        return self._non_slots["beta1_power", self._graph], self._non_slots["beta2_power", self._graph]

    def _prepare(self) -> None:
        self._settings = [
            setting(self._learning_rate, "learning_rate"),
            setting(self._beta1, "beta1"),
            setting(self._beta2, "beta2"),
            setting(self._epsilon, "epsilon"),
        ]

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        powers = [cast_to(p.value(), grad.dtype) for p in self._powers()]
        return make_op(
            "ResourceApplyAdam",
            handle.handle,
            self._slots["m"][handle.handle].handle,
            self._slots["v"][handle.handle].handle,
            *powers,
            *[cast_to(t, grad.dtype) for t in self._settings],
            grad,
            use_locking=self._use_locking,
        )

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        shape = make("VariableShape", handle.handle)
        dense = convert_to_tensor(IndexedSlices(grad, indices, shape))
        return self._resource_apply_dense(dense, handle)

    def _finish(self, update_ops: Sequence[Operation], name_scope: str) -> Operation:
        graph = self._graph
        power1, power2 = self._powers()
        # Every update reads the powers, so they advance only after all updates of the step.
        with graph.control_dependencies(update_ops), graph.colocate_with(power1.handle.op):
            updates = [
                power.assign(power * cast_to(beta, power.dtype), read_value=False)
                for power, beta in ((power1, self._settings[1]), (power2, self._settings[2]))
            ]
        return group(*update_ops, *updates, name=name_scope)
