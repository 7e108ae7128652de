"""By how much a loss is multiplied, so that small gradients are not lost in 16 bits (Micikevicius et al., "Mixed
Precision Training", ICLR 2018, section 3.2).

TensorFlow 1's names. A dynamic scale is two variables, which are saved like any others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

from aioflow.checks.numbers import check_number, check_whole, wrong_kind
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

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale", "LossScaleLike", "as_loss_scale"]


class LossScale(ABC):
    """By how much a loss is multiplied. Called, it gives the present scale as a float32 scalar."""

    @abstractmethod
    def __call__(self) -> Tensor:
        """The scale that holds now."""

    may_skip = True  # whether `update` may find gradients that are not to be applied

    @abstractmethod
    def update(self, grads: Any) -> tuple[Operation, Tensor | bool]:
        """What is to happen after a step.

        Args:
            grads: The gradients, divided by the scale; a list, or any nested structure, whose Nones do not count.

        Returns:
            A node that changes the scale; and whether the gradients are good, which are not to be applied otherwise.
        """

    def variables(self) -> list[Variable]:
        """What is saved of the scale."""
        return []

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments to make another one like it."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make one of the arguments that `get_config` gave."""
        return cls(**config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in self.get_config().items())})"


LossScaleLike: TypeAlias = LossScale | float | str


class FixedLossScale(LossScale):
    """A scale that stays as it is, whatever becomes of the gradients.

    Raises:
        DTypeError: it is not a number.
        InvalidArgumentError: it is less than 1.
    """

    may_skip = False

    def __init__(self, loss_scale_value: float) -> None:
        self._value = _at_least_one(loss_scale_value, "loss_scale_value")

    def __call__(self) -> Tensor:
        """The scale, a constant."""
        return constant(self._value, dtypes.float32, name="loss_scale")

    def update(self, grads: Any) -> tuple[Operation, Tensor | bool]:
        """Nothing, and True."""
        return no_op(), True

    def get_config(self) -> dict[str, Any]:
        """The scale."""
        return {"loss_scale_value": self._value}


class DynamicLossScale(LossScale):
    """A scale as large as the gradients bear: it is raised after so many good steps in a row, and lowered after each
    step in which a gradient is infinite or NaN.

    It makes the variables `current_loss_scale` and `good_steps` in the default graph.

    Args:
        initial_loss_scale: It is better too high than too low, since it is lowered faster than raised.
        increment_period: How many good steps in a row raise it.
        multiplier: What it is multiplied or divided by. A power of 2 leaves the gradients as they are to the last bit.

    Raises:
        DTypeError: something is not a number.
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
        self._scale = Variable(self._initial, trainable=False, name="current_loss_scale", dtype=dtypes.float32)
        self._good_steps = Variable(0, trainable=False, name="good_steps", dtype=dtypes.int64)

    @property
    def initial_loss_scale(self) -> float:
        """The scale at the beginning."""
        return self._initial

    @property
    def increment_period(self) -> int:
        """How many good steps in a row raise it."""
        return self._period

    @property
    def multiplier(self) -> float:
        """What it is multiplied or divided by."""
        return self._multiplier

    def __call__(self) -> Tensor:
        """The scale as it is now."""
        return self._scale.value()

    def update(self, grads: Any) -> tuple[Operation, Tensor | bool]:
        """A node that raises or lowers the scale, and whether all gradients are finite."""
        good = _all_finite(grads)
        graph = self._scale.graph
        with graph.as_default(), graph.control_dependencies([good]):  # until then the scale is in use
            scale, steps = self._scale.read_value(), self._good_steps.read_value() + 1
            enough = make("GreaterEqual", steps, constant(self._period, dtypes.int64))
            raised = scale * self._multiplier
            raised = where(logical_and(enough, is_finite(raised)), raised, scale)
            lowered = make("Maximum", scale / self._multiplier, constant(1.0, dtypes.float32))
            zero = constant(0, dtypes.int64)
            changes = [
                self._scale.assign(where(good, raised, lowered), read_value=False),
                self._good_steps.assign(where(logical_and(good, steps < self._period), steps, zero), read_value=False),
            ]
        return group(*changes, name="update_loss_scale"), good

    def variables(self) -> list[Variable]:
        """The scale, and the number of good steps since it has changed."""
        return [self._scale, self._good_steps]

    def get_config(self) -> dict[str, Any]:
        """The three numbers."""
        return {
            "initial_loss_scale": self._initial,
            "increment_period": self._period,
            "multiplier": self._multiplier,
        }


def as_loss_scale(value: Any) -> LossScale:
    """The scale that a user means: one, a number for a fixed one, or "dynamic".

    Raises:
        DTypeError: it is nothing of the kind.
        InvalidArgumentError: it is another word, or a number less than 1.
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


def _at_least_one(value: Any, what: str) -> float:
    check_number(value, what)
    if not 1 <= value < float("inf"):
        raise InvalidArgumentError(f"{what} is out of range", expected="at least 1", actual=value)
    return float(value)


def _all_finite(grads: Any) -> Tensor:
    parts = [convert_to_tensor(part, name="gradient") for part in nest.flatten(grads) if part is not None]
    each = [reduce_all(is_finite(part)) for part in parts if part.dtype.is_floating]  # not the indices of slices
    return reduce_all(make("Pack", each), name="all_finite") if each else constant(True)
