"""Loss scales, which keep small gradients from underflowing in 16 bits.

After Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2. The names are TensorFlow 1's. A dynamic
scale consists of two variables, which are saved like any others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

from aioflow.arguments import check_number, check_whole, wrong_kind
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Operation, Tensor
from aioflow.ops import nest
from aioflow.ops.apply import constant, convert_to_tensor, make
from aioflow.ops.array.selection import where
from aioflow.ops.core import group, no_op
from aioflow.ops.math.comparison import is_finite, logical_and
from aioflow.ops.math.reduction import reduce_all
from aioflow.ops.variables.variable import Variable


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
