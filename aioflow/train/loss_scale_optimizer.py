"""An optimizer that scales the loss, and skips the steps in which the scale was too large."""

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


class MixedPrecisionLossScaleOptimizer(WrappingOptimizer):
    """An optimizer that multiplies the loss by a scale before differentiation and divides the gradients by it.

    The gradients are those of the loss, but the values that flow backwards stay within the range of 16 bits. With a
    dynamic scale, a step whose gradients are not finite changes only the scale: no variable, no slot, no global step.
    Code between `compute_gradients` and `apply_gradients`, such as clipping, sees unscaled gradients.

    Args:
        opt: Optimizer that computes and applies the gradients. It may accumulate gradients. A `SyncReplicasOptimizer`
            must wrap this one, not the other way round.
        loss_scale: A `LossScale`, a number for a fixed scale, or "dynamic".

    Raises:
        DTypeError, InvalidArgumentError: an argument is invalid.
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
        """Return the gradients of the loss, computed from the scaled loss. See `Optimizer.compute_gradients`."""
        given = loss() if callable(loss) else loss
        # Read the scale once: a concurrent step may change it between scaling and unscaling.
        scale = self._loss_scale()
        scaled = [_times(part, scale) for part in given] if isinstance(given, list | tuple) else _times(given, scale)
        pairs = self._opt.compute_gradients(
            scaled, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        with name_scope(None, "unscaled"):
            # One division; the gradients are multiplied.
            reciprocal = 1.0 / scale
            return [(None if gradient is None else _unscaled(gradient, reciprocal), v) for gradient, v in pairs]

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[TensorLike | None, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Operation:
        """Return a node that updates the scale, and the variables if all gradients are finite.

        See `Optimizer.apply_gradients`.
        """
        pairs = list(grads_and_vars)
        change, good = self._loss_scale.update([gradient for gradient, _ in pairs])
        # A fixed scale skips no step, so it needs no branch.
        if isinstance(good, bool):
            return self._opt.apply_gradients(pairs, global_step, name)
        own = self._own(name)
        # Slots are variables and cannot be created inside a branch.
        self._prepare_branch(pairs)
        applied = only_if(good, lambda: self._apply_inside(pairs, global_step, own))
        return collect_step(applied, change, own=own)

    def variables(self) -> list[Variable]:
        """Return the variables of the inner optimizer and of the scale."""
        return [*super().variables(), *self._loss_scale.variables()]


def _times(loss: TensorLike, scale: Tensor) -> Tensor:
    tensor = convert_to_tensor(loss, name="loss")
    return make("Mul", tensor, cast_to(scale, tensor.dtype), name="scaled_loss") if tensor.dtype.is_floating else tensor


def _unscaled(gradient: Gradient, reciprocal: Tensor) -> Gradient:
    return with_values(gradient, lambda part: make("Mul", part, cast_to(reciprocal, part.dtype)))
