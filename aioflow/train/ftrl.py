"""FTRL-proximal, for sparse linear models."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import make_op
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, Setting, cast_to, require, setting


class FtrlOptimizer(Optimizer):
    """FTRL-proximal (McMahan et al. 2013), with an optional shrinkage term that acts on the gradient alone.

    Args:
        learning_rate: A number, a scalar tensor, or a callable that makes one; above 0.
        learning_rate_power: At most 0.
        initial_accumulator_value: At least 0.
        l1_regularization_strength, l2_regularization_strength: At least 0.
        l2_shrinkage_regularization_strength: At least 0.
        accum_name, linear_name: Names of the slots; by default the optimizer's name.
        beta: The paper's β, which adds beta / (2 · learning_rate) to the L2 strength.
    """

    def __init__(
        self,
        learning_rate: Setting,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float | None = None,
    ) -> None:
        super().__init__(use_locking, name)
        for what, value in (
            ("initial_accumulator_value", initial_accumulator_value),
            ("l1_regularization_strength", l1_regularization_strength),
            ("l2_regularization_strength", l2_regularization_strength),
            ("l2_shrinkage_regularization_strength", l2_shrinkage_regularization_strength),
        ):
            require(value >= 0, what, ">= 0", value)
        require(learning_rate_power <= 0, "learning_rate_power", "<= 0", learning_rate_power)
        self._learning_rate, self._power = learning_rate, learning_rate_power
        self._initial_accumulator_value = initial_accumulator_value
        self._l1, self._l2, self._beta = l1_regularization_strength, l2_regularization_strength, beta or 0.0
        self._shrinkage = l2_shrinkage_regularization_strength
        self._accum_name, self._linear_name = accum_name or name, linear_name or name

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for v in var_list:
            self._filled_slot(v, self._initial_accumulator_value, "accum", self._accum_name)
            self._zeros_slot(v, "linear", self._linear_name)

    def _prepare(self) -> None:
        rate = setting(self._learning_rate, "learning_rate")
        l2 = setting(self._l2, "l2_regularization_strength")
        if self._beta:
            l2 = l2 + cast_to(self._beta / (2.0 * rate), l2.dtype)
        self._settings = [rate, setting(self._l1, "l1_regularization_strength"), l2]
        if self._shrinkage > 0:
            self._settings.append(setting(self._shrinkage, "l2_shrinkage_regularization_strength"))
        self._settings.append(setting(self._power, "learning_rate_power"))

    def _apply(self, kind: str, grad: Tensor, handle: Variable, *indices: Tensor) -> Operation:
        version = "V2" if self._shrinkage > 0 else ""
        return make_op(
            f"Resource{kind}Ftrl{version}",
            handle.handle,
            self._slots["accum"][handle.handle].handle,
            self._slots["linear"][handle.handle].handle,
            grad,
            *indices,
            *[cast_to(t, grad.dtype) for t in self._settings],
            use_locking=self._use_locking,
        )

    def _resource_apply_dense(self, grad: Tensor, handle: Variable) -> Operation:
        return self._apply("Apply", grad, handle)

    def _resource_apply_sparse(self, grad: Tensor, handle: Variable, indices: Tensor) -> Operation:
        return self._apply("SparseApply", grad, handle, indices)
