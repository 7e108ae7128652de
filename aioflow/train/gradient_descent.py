"""Plain gradient descent, and its proximal form."""

from __future__ import annotations

from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import make_op
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, Setting, cast_to, require, setting


class GradientDescentOptimizer(Optimizer):
    """Plain gradient descent: var -= learning_rate · gradient.

    Args:
        learning_rate: A number, a scalar tensor, or a callable that makes one.
        use_locking: Accepted for compatibility: updates are always atomic.
    """

    def __init__(self, learning_rate: Setting, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate

    def _prepare(self) -> None:
        self._rate = setting(self._learning_rate, "learning_rate")

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return make_op(
            "ResourceApplyGradientDescent",
            handle.handle,
            cast_to(self._rate, grad.dtype),
            grad,
            use_locking=self._use_locking,
        )

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        # Scale where the gradient is computed, so that the variable's device only has to subtract.
        with grad.graph.colocate_with(grad.op, ignore_existing=True):
            step = grad * cast_to(self._rate, grad.dtype)
        return make_op("ResourceScatterSub", handle.handle, indices, step)


class ProximalGradientDescentOptimizer(Optimizer):
    """Gradient descent with L1 and L2 terms applied after each step (Duchi and Singer 2009, FOBOS).

    Args:
        learning_rate: A number, a scalar tensor, or a callable that makes one.
        l1_regularization_strength, l2_regularization_strength: At least 0.
    """

    def __init__(
        self,
        learning_rate: Setting,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(use_locking, name)
        require(l1_regularization_strength >= 0, "l1_regularization_strength", ">= 0", l1_regularization_strength)
        require(l2_regularization_strength >= 0, "l2_regularization_strength", ">= 0", l2_regularization_strength)
        self._learning_rate = learning_rate
        self._l1, self._l2 = l1_regularization_strength, l2_regularization_strength

    def _prepare(self) -> None:
        self._settings = [
            setting(self._learning_rate, "learning_rate"),
            setting(self._l1, "l1_regularization_strength"),
            setting(self._l2, "l2_regularization_strength"),
        ]

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        settings = [cast_to(t, grad.dtype) for t in self._settings]
        return make_op(
            "ResourceApplyProximalGradientDescent", handle.handle, *settings, grad, use_locking=self._use_locking
        )

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        settings = [cast_to(t, grad.dtype) for t in self._settings]
        return make_op(
            "ResourceSparseApplyProximalGradientDescent",
            handle.handle,
            *settings,
            grad,
            indices,
            use_locking=self._use_locking,
        )
