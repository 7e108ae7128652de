"""RMSProp, plain and centered."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import make_op
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, Setting, cast_to, setting


class RMSPropOptimizer(Optimizer):
    """RMSProp (Hinton's lecture 6e): divide the gradient by a running average of its size.

    mean_square += (1-decay)·(g² - mean_square); mom = momentum·mom + learning_rate·g/√(mean_square + epsilon);
    var -= mom. With `centered`, the square of the running mean of g is subtracted from mean_square (Graves 2013).

    Args:
        learning_rate, decay, momentum, epsilon: A number, a scalar tensor, or a callable that makes one.
    """

    def __init__(
        self,
        learning_rate: Setting,
        decay: Setting = 0.9,
        momentum: Setting = 0.0,
        epsilon: Setting = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate, self._decay, self._momentum, self._epsilon = learning_rate, decay, momentum, epsilon
        self._centered = centered

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for v in var_list:
            # The mean square starts at 1, as in TensorFlow: the first gradients are not divided by a tiny number.
            self._filled_slot(v, 1.0, "rms", self._name)
            if self._centered:
                self._zeros_slot(v, "mg", self._name)
            self._zeros_slot(v, "momentum", self._name)

    def _prepare(self) -> None:
        self._settings = [
            setting(self._learning_rate, "learning_rate"),
            setting(self._decay, "decay"),
            setting(self._momentum, "momentum"),
            setting(self._epsilon, "epsilon"),
        ]

    def _inputs(self, grad: Tensor, handle: Variable) -> list[Tensor]:
        names = ("mg", "rms", "momentum") if self._centered else ("rms", "momentum")
        slots = [self._slots[n][handle.handle].handle for n in names]
        return [handle.handle, *slots, *[cast_to(t, grad.dtype) for t in self._settings], grad]

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        op_type = "ResourceApplyCenteredRMSProp" if self._centered else "ResourceApplyRMSProp"
        return make_op(op_type, *self._inputs(grad, handle), use_locking=self._use_locking)

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        op_type = "ResourceSparseApplyCenteredRMSProp" if self._centered else "ResourceSparseApplyRMSProp"
        return make_op(op_type, *self._inputs(grad, handle), indices, use_locking=self._use_locking)
