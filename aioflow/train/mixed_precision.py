"""Training in 16 bits: loss scales, which keep small gradients from underflowing, their optimizer, and graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeAlias

from aioflow.arguments import check_kind, check_number, check_whole, wrong_kind
from aioflow.compiler.optimize.passes import MIXED_PRECISION
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops import nest
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.array.selection import where
from aioflow.ops.core import group, no_op
from aioflow.ops.math.comparison import is_finite, logical_and
from aioflow.ops.math.reduction import reduce_all
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.variable import Variable
from aioflow.train.optimizer import Optimizer, WrappingOptimizer, cast_to, collect_step, only_if, with_values

# ── loss scales ───────────────────────────────────────────────────────────────────────────────────────────────────────
#
# After Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2. The names are TensorFlow 1's. A dynamic
# scale consists of two variables, which are saved like any others.


class LossScale(ABC):
    """The factor by which a loss is multiplied. Calling it returns the current scale as a float32 scalar."""

    @abstractmethod
    def __call__(self) -> Tensor:
        """Return the current scale."""

    may_skip = True  # whether `update` may find gradients that must not be applied

    @abstractmethod
    def update(self, grads: object) -> tuple[Operation, Tensor | bool]:
        """Make the nodes that check the gradients and adapt the scale after a step.

        Args:
            grads: The gradients, divided by the scale: a list or any nested structure; Nones are ignored.

        Returns:
            A node that changes the scale, and a flag that is true if the gradients may be applied.
        """

    def variables(self) -> list[Variable]:
        """Return the variables of the scale, which checkpoints save."""
        return []

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments of an equal scale."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make a scale from the arguments that `get_config` returned."""
        return cls(**config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in self.get_config().items())})"


LossScaleLike: TypeAlias = LossScale | float | str


class FixedLossScale(LossScale):
    """A constant scale, whatever the gradients.

    Raises:
        DTypeError: the scale is not a number.
        InvalidArgumentError: the scale is less than 1.
    """

    may_skip = False

    def __init__(self, loss_scale_value: float) -> None:
        self._value = _at_least_one(loss_scale_value, "loss_scale_value")

    def __call__(self) -> Tensor:
        """Return the scale, a constant."""
        return constant(self._value, dtypes.float32, name="loss_scale")

    def update(self, grads: object) -> tuple[Operation, Tensor | bool]:
        """Return a no-op and True."""
        return no_op(), True

    def get_config(self) -> dict[str, Any]:
        """Return the scale as a constructor argument."""
        return {"loss_scale_value": self._value}


class DynamicLossScale(LossScale):
    """The largest scale that the gradients allow.

    The scale is raised after `increment_period` good steps in a row, and lowered after each step with an infinite or
    NaN gradient. The constructor creates the variables `current_loss_scale` and `good_steps` in the default graph.

    Args:
        initial_loss_scale: Initial scale. Rather too high than too low: lowering takes fewer steps than raising.
        increment_period: Number of good steps in a row after which the scale is raised.
        multiplier: Factor by which the scale is multiplied or divided. With a power of 2, scaling is exact to the last
            bit.

    Raises:
        DTypeError: an argument is not a number.
        InvalidArgumentError: a number is out of range.
    """

    def __init__(
        self, initial_loss_scale: float = 2**15, increment_period: int = 2000, multiplier: float = 2.0
    ) -> None:
        self._initial = _at_least_one(initial_loss_scale, "initial_loss_scale")
        check_whole(increment_period, "increment_period", 1)
        self._period = int(increment_period)
        check_number(multiplier, "multiplier", above=1.0)
        self._multiplier = float(multiplier)
        # float32, whatever the model's type: float16 ends at 65504.
        self._scale = Variable(self._initial, trainable=False, name="current_loss_scale", dtype=dtypes.float32)
        self._good_steps = Variable(0, trainable=False, name="good_steps", dtype=dtypes.int64)

    @property
    def initial_loss_scale(self) -> float:
        """The initial scale."""
        return self._initial

    @property
    def increment_period(self) -> int:
        """Number of good steps in a row after which the scale is raised."""
        return self._period

    @property
    def multiplier(self) -> float:
        """Factor by which the scale is multiplied or divided."""
        return self._multiplier

    def __call__(self) -> Tensor:
        """Return the current scale."""
        return self._scale.value()

    def update(self, grads: object) -> tuple[Operation, Tensor | bool]:
        """Return a node that raises or lowers the scale, and a flag that is true if all gradients are finite."""
        good = _all_finite(grads)
        graph = self._scale.graph
        # The check depends on the gradients, which used the old scale, so the scale changes only after it.
        with graph.as_default(), graph.control_dependencies([good]):
            scale, steps = self._scale.read_value(), self._good_steps.read_value() + 1
            enough = make("GreaterEqual", steps, constant(self._period, dtypes.int64))
            raised = scale * self._multiplier
            # A scale of infinity would never recover: dividing it leaves it infinite.
            raised = where(logical_and(enough, is_finite(raised)), raised, scale)
            # Below 1 the scale would make small gradients smaller.
            lowered = make("Maximum", scale / self._multiplier, constant(1.0, dtypes.float32))
            zero = constant(0, dtypes.int64)
            changes = [
                self._scale.assign(where(good, raised, lowered), read_value=False),
                # Counts from zero again after a change of the scale in either direction.
                self._good_steps.assign(where(logical_and(good, steps < self._period), steps, zero), read_value=False),
            ]
        return group(*changes, name="update_loss_scale"), good

    def variables(self) -> list[Variable]:
        """Return the scale and the number of good steps since its last change."""
        return [self._scale, self._good_steps]

    def get_config(self) -> dict[str, Any]:
        """Return the three constructor arguments."""
        return {
            "initial_loss_scale": self._initial,
            "increment_period": self._period,
            "multiplier": self._multiplier,
        }


def as_loss_scale(value: object) -> LossScale:
    """Convert an argument to a scale: a `LossScale`, a number for a fixed scale, or "dynamic".

    Raises:
        DTypeError: `value` is of another type.
        InvalidArgumentError: `value` is another string, or a number less than 1.
    """
    if isinstance(value, LossScale):
        return value
    if isinstance(value, str):
        if value != "dynamic":
            raise InvalidArgumentError("unknown loss scale", expected="'dynamic'", actual=repr(value))
        return DynamicLossScale()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_kind(value, "loss_scale", "a LossScale, a number, or 'dynamic'")
    return FixedLossScale(value)


def _at_least_one(value: float, what: str) -> float:
    check_number(value, what)
    if not 1 <= value < float("inf"):
        raise InvalidArgumentError(f"{what} is out of range", expected="at least 1", actual=value)
    return float(value)


def _all_finite(grads: object) -> Tensor:
    parts = [convert_to_tensor(part, name="gradient") for part in nest.flatten(grads) if part is not None]
    # The indices of slices are integers and need no check.
    each = [reduce_all(is_finite(part)) for part in parts if part.dtype.is_floating]
    # Without floating gradients there is nothing to overflow.
    return reduce_all(make("Pack", each), name="all_finite") if each else constant(True)


# ── an optimizer that scales the loss, and skips the steps in which the scaled gradients overflow ─────────────────────


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


# ── graphs: products in 16 bits, variables in 32 bits ─────────────────────────────────────────────────────────────────
#
# A pass of the compiler (`compiler/optimize/mixed_precision.py`) does the rewrite; this module enables it for all
# sessions of a graph.


def enable_mixed_precision_graph_rewrite(
    opt: Optimizer, loss_scale: LossScaleLike = "dynamic", dtype: DTypeLike = dtypes.float16
) -> MixedPrecisionLossScaleOptimizer:
    """Make sessions compute the products of the default graph in 16 bits, and return an optimizer with a loss scale.

    The setting applies to every plan made from now on; a session's `SessionConfig.optimizations` takes precedence. If
    the processor has no instructions for the dtype, nothing is faster: products are computed in float32 and rounded.

    Args:
        opt: The optimizer to wrap.
        loss_scale: As in `MixedPrecisionLossScaleOptimizer`. For bfloat16, which has the range of float32, 1 suffices.
        dtype: float16 or bfloat16.

    Returns:
        The optimizer to use instead of `opt`.

    Raises:
        DTypeError: `opt` is not an optimizer, or `dtype` is not a dtype.
        InvalidArgumentError: `opt` already scales its loss, or the dtype is neither float16 nor bfloat16.
        FailedPreconditionError: the graph is finalized.
    """
    check_kind(opt, Optimizer, "opt", "an Optimizer")
    if isinstance(opt, MixedPrecisionLossScaleOptimizer):
        raise InvalidArgumentError(
            "the optimizer scales its loss already", expected="an optimizer without a loss scale", actual=repr(opt)
        )
    name = as_dtype(dtype).name
    if name not in MIXED_PRECISION:
        raise InvalidArgumentError(
            "not a type for mixed precision", expected=f"one of {[*MIXED_PRECISION]}", actual=name
        )
    made = MixedPrecisionLossScaleOptimizer(opt, loss_scale)
    # A graph uses one 16-bit dtype: an earlier call with the other dtype is undone.
    _switch({each: known == name for known, each in MIXED_PRECISION.items()})
    return made


def disable_mixed_precision_graph_rewrite() -> None:
    """Make sessions compute the default graph's products in float32 again. Optimizers keep scaling their losses.

    Raises:
        FailedPreconditionError: the graph is finalized.
    """
    _switch({})


def _switch(switches: dict[str, bool]) -> None:
    graph = default_graph()
    graph.note_mutation()  # invalidates the plans of existing steps
    others = {name: on for name, on in graph.optimizations.items() if name not in MIXED_PRECISION.values()}
    graph.optimizations = {**others, **switches}
