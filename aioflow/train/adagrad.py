"""Adagrad and Adadelta: a learning rate for each element, from the squares of its gradients so far."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import TensorLike, make, make_op
from aioflow.ops.sparse.tensor import int64_tensor
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, Setting, cast_to, require, setting


class AdagradOptimizer(Optimizer):
    """Adagrad: accumulator += gradient²; var -= learning_rate · gradient / √accumulator (Duchi et al. 2011).

    Args:
        learning_rate: A number, a scalar tensor, or a callable that makes one.
        initial_accumulator_value: Above 0.
    """

    def __init__(
        self,
        learning_rate: Setting,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        require(initial_accumulator_value > 0, "initial_accumulator_value", "> 0", initial_accumulator_value)
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._initial_accumulator_value = initial_accumulator_value

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for v in var_list:
            self._filled_slot(v, self._initial_accumulator_value, "accumulator", self._name)

    def _prepare(self) -> None:
        self._rate = setting(self._learning_rate, "learning_rate")

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return make_op(
            "ResourceApplyAdagrad",
            handle.handle,
            self._slots["accumulator"][handle.handle].handle,
            cast_to(self._rate, grad.dtype),
            grad,
            use_locking=self._use_locking,
        )

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        return make_op(
            "ResourceSparseApplyAdagrad",
            handle.handle,
            self._slots["accumulator"][handle.handle].handle,
            cast_to(self._rate, grad.dtype),
            grad,
            indices,
            use_locking=self._use_locking,
        )


class AdagradDAOptimizer(Optimizer):
    """Adagrad with dual averaging, for sparse linear models (Duchi et al. 2011, section 5).

    From the sums G of the gradients and Q of their squares, after `step` steps:
    var = -learning_rate · sign(G) · max(|G| - l1 · step, 0) / (l2 · step · learning_rate + √Q).

    Args:
        learning_rate: A number, a scalar tensor, or a callable that makes one.
        global_step: The variable, or int64 tensor, that counts the steps.
        initial_gradient_squared_accumulator_value: Initial value of Q, above 0.
        l1_regularization_strength, l2_regularization_strength: Numbers or scalar tensors.
    """

    def __init__(
        self,
        learning_rate: Setting,
        global_step: TensorLike,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: Setting = 0.0,
        l2_regularization_strength: Setting = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        start = initial_gradient_squared_accumulator_value
        require(start > 0, "initial_gradient_squared_accumulator_value", "> 0", start)
        super().__init__(use_locking, name)
        self._learning_rate, self._global_step, self._start = learning_rate, global_step, start
        self._l1, self._l2 = l1_regularization_strength, l2_regularization_strength

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for v in var_list:
            self._zeros_slot(v, "gradient_accumulator", self._name)
            self._filled_slot(v, self._start, "gradient_squared_accumulator", self._name)

    def _prepare(self) -> None:
        self._settings = [
            setting(self._learning_rate, "learning_rate"),
            setting(self._l1, "l1_regularization_strength"),
            setting(self._l2, "l2_regularization_strength"),
        ]
        self._step = make("AddV2", int64_tensor(self._global_step), 1)

    def _inputs(self, handle: Variable, grad: Tensor, *indices: Tensor) -> list[Tensor]:
        slots = [self._slots[n][handle.handle].handle for n in ("gradient_accumulator", "gradient_squared_accumulator")]
        settings = [cast_to(t, grad.dtype) for t in self._settings]
        return [handle.handle, *slots, grad, *indices, *settings, self._step]

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return make_op("ResourceApplyAdagradDA", *self._inputs(handle, grad), use_locking=self._use_locking)

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        inputs = self._inputs(handle, grad, indices)
        return make_op("ResourceSparseApplyAdagradDA", *inputs, use_locking=self._use_locking)


class ProximalAdagradOptimizer(Optimizer):
    """Adagrad with L1 and L2 terms applied after each step (Duchi and Singer 2009, FOBOS).

    Args:
        learning_rate: A number, a scalar tensor, or a callable that makes one.
        initial_accumulator_value: Above 0.
        l1_regularization_strength, l2_regularization_strength: At least 0.
    """

    def __init__(
        self,
        learning_rate: Setting,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        require(initial_accumulator_value > 0, "initial_accumulator_value", "> 0", initial_accumulator_value)
        require(l1_regularization_strength >= 0, "l1_regularization_strength", ">= 0", l1_regularization_strength)
        require(l2_regularization_strength >= 0, "l2_regularization_strength", ">= 0", l2_regularization_strength)
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._initial_accumulator_value = initial_accumulator_value
        self._l1, self._l2 = l1_regularization_strength, l2_regularization_strength

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for v in var_list:
            self._filled_slot(v, self._initial_accumulator_value, "accumulator", self._name)

    def _prepare(self) -> None:
        self._settings = [
            setting(self._learning_rate, "learning_rate"),
            setting(self._l1, "l1_regularization_strength"),
            setting(self._l2, "l2_regularization_strength"),
        ]

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return make_op(
            "ResourceApplyProximalAdagrad",
            handle.handle,
            self._slots["accumulator"][handle.handle].handle,
            *[cast_to(t, grad.dtype) for t in self._settings],
            grad,
            use_locking=self._use_locking,
        )

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        return make_op(
            "ResourceSparseApplyProximalAdagrad",
            handle.handle,
            self._slots["accumulator"][handle.handle].handle,
            *[cast_to(t, grad.dtype) for t in self._settings],
            grad,
            indices,
            use_locking=self._use_locking,
        )


class AdadeltaOptimizer(Optimizer):
    """Adadelta (Zeiler 2012): step by the gradient times the ratio of the running sizes of updates and gradients.

    Args:
        learning_rate, rho, epsilon: A number, a scalar tensor, or a callable that makes one.
    """

    def __init__(
        self,
        learning_rate: Setting = 0.001,
        rho: Setting = 0.95,
        epsilon: Setting = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate, self._rho, self._epsilon = learning_rate, rho, epsilon

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for v in var_list:
            self._zeros_slot(v, "accum", self._name)
            self._zeros_slot(v, "accum_update", self._name)

    def _prepare(self) -> None:
        self._settings = [
            setting(self._learning_rate, "lr"),
            setting(self._rho, "rho"),
            setting(self._epsilon, "epsilon"),
        ]

    def _inputs(self, grad: Tensor, handle: Variable) -> list[Tensor]:
        slots = [self._slots[n][handle.handle].handle for n in ("accum", "accum_update")]
        return [handle.handle, *slots, *[cast_to(t, grad.dtype) for t in self._settings], grad]

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        inputs = self._inputs(grad, handle)
        return make_op("ResourceApplyAdadelta", *inputs, use_locking=self._use_locking)

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        inputs = self._inputs(grad, handle)
        return make_op("ResourceSparseApplyAdadelta", *inputs, indices, use_locking=self._use_locking)
