"""Gradient descent with momentum, plain or Nesterov's."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import make_op
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, Setting, cast_to, setting


class MomentumOptimizer(Optimizer):
    """Momentum: accumulation = momentum · accumulation + gradient; var -= learning_rate · accumulation.

    Args:
        learning_rate, momentum: A number, a scalar tensor, or a callable that makes one.
        use_nesterov: Step by gradient + momentum · accumulation instead (Sutskever et al. 2013).
    """

    def __init__(
        self,
        learning_rate: Setting,
        momentum: Setting,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._use_nesterov = use_nesterov

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for v in var_list:
            self._zeros_slot(v, "momentum", self._name)

    def _prepare(self) -> None:
        self._rate = setting(self._learning_rate, "learning_rate")
        self._factor = setting(self._momentum, "momentum")

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return make_op(
            "ResourceApplyMomentum",
            handle.handle,
            self._slots["momentum"][handle.handle].handle,
            cast_to(self._rate, grad.dtype),
            grad,
            cast_to(self._factor, grad.dtype),
            use_locking=self._use_locking,
            use_nesterov=self._use_nesterov,
        )

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        return make_op(
            "ResourceSparseApplyMomentum",
            handle.handle,
            self._slots["momentum"][handle.handle].handle,
            cast_to(self._rate, grad.dtype),
            grad,
            indices,
            cast_to(self._factor, grad.dtype),
            use_locking=self._use_locking,
            use_nesterov=self._use_nesterov,
        )
