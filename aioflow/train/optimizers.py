"""The optimizers: gradient descent, proximal gradient descent, momentum, RMSProp, Adam and FTRL.

See `adagrad` for Adagrad and Adadelta.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.ops.apply import convert_to_tensor, make, make_op
from aioflow.ops.core import group
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, Setting, cast_to, require, setting

# ── gradient descent ──────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── momentum ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── RMSProp ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── Adam ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── FTRL ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
