"""An optimizer that scales the loss, and leaves out the steps in which the scale was too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aioflow.graph.graph import Operation, Tensor
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable
from aioflow.train.loss_scale import LossScaleLike, as_loss_scale
from aioflow.train.optimizer import Optimizer, cast_to
from aioflow.train.wrapping import WrappingOptimizer, collect_step, only_if, with_values

__all__ = ["MixedPrecisionLossScaleOptimizer"]


class MixedPrecisionLossScaleOptimizer(WrappingOptimizer):
    """Multiplies the loss by a scale before it is differentiated, and divides the gradients by it.

    So the gradients are those of the loss, but what flows backwards in 16 bits stays within their range. With a dynamic
    scale a step whose gradients are not finite changes nothing but the scale: no variable, no slot, no global step.
    What is done to the gradients between `compute_gradients` and `apply_gradients`, such as clipping, sees them as
    they are without a scale.

    Args:
        opt: What computes and applies gradients. It may be one that accumulates; a `SyncReplicasOptimizer` goes around
            this one, and not inside.
        loss_scale: A `LossScale`, a number for a fixed one, or "dynamic".

    Raises:
        DTypeError, InvalidArgumentError: one of them is something else.
    """

    def __init__(self, opt: Optimizer, loss_scale: LossScaleLike) -> None:
        super().__init__(opt)
        self._loss_scale = as_loss_scale(loss_scale)
        self.may_skip = self.may_skip or self._loss_scale.may_skip

    def compute_gradients(
        self,
        loss: TensorLike | Callable[[], TensorLike],
        var_list: Iterable[Any] | None = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: TensorLike | None = None,
    ) -> list[tuple[Gradient | None, Variable]]:
        """The gradients of the loss, computed from the scaled one: as `Optimizer.compute_gradients`."""
        given = loss() if callable(loss) else loss
        scale = self._loss_scale()  # read once: others may change it meanwhile
        scaled = [_times(part, scale) for part in given] if isinstance(given, list | tuple) else _times(given, scale)
        pairs = self._opt.compute_gradients(
            scaled, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        with name_scope(None, "unscaled"):
            reciprocal = 1.0 / scale
            return [(None if gradient is None else _unscaled(gradient, reciprocal), v) for gradient, v in pairs]

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[TensorLike | None, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """A node that updates the variables, if all gradients are finite, and the scale: as
        `Optimizer.apply_gradients`.
        """
        pairs = list(grads_and_vars)
        change, good = self._loss_scale.update([gradient for gradient, _ in pairs])
        if isinstance(good, bool):
            return self._opt.apply_gradients(pairs, global_step, name)
        own = self._own(name)
        self._prepare_branch(pairs)
        applied = only_if(good, lambda: self._apply_inside(pairs, global_step, own))
        return collect_step(applied, change, own=own)

    def variables(self) -> list[Variable]:
        """Those of the optimizer inside, and of the scale."""
        return [*super().variables(), *self._loss_scale.variables()]


def _times(loss: TensorLike, scale: Tensor) -> Tensor:
    tensor = convert_to_tensor(loss, name="loss")
    return make("Mul", tensor, cast_to(scale, tensor.dtype), name="scaled_loss") if tensor.dtype.is_floating else tensor


def _unscaled(gradient: Gradient, reciprocal: Tensor) -> Gradient:
    return with_values(gradient, lambda part: make("Mul", part, cast_to(reciprocal, part.dtype)))
