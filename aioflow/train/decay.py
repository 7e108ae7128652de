"""Learning-rate schedules over the global step. Each returns a scalar tensor of the dtype of `learning_rate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aioflow.arguments import check_list
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.scoping import name_scope
from aioflow.train.optimizer import cast_to


@contextmanager
def _scope(
    name: str | None, default: str, learning_rate: TensorLike, step: TensorLike, *others: TensorLike
) -> Iterator[list[Tensor]]:
    """Open a name scope; yield the learning rate, then the step and other settings cast to its dtype."""
    if step is None:
        raise InvalidArgumentError(f"global_step is required for {default}", expected="a tensor", actual=None)
    with name_scope(name, default, [learning_rate, step, *others]):
        rate = convert_to_tensor(learning_rate, name="learning_rate")
        yield [rate, *(_as(value, rate) for value in (step, *others))]


def _as(value: TensorLike, like: Tensor) -> Tensor:
    if _is_number(value):
        return constant(value, like.dtype)
    return cast_to(convert_to_tensor(value), like.dtype)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _call(op_type: str, *inputs: TensorLike) -> Tensor:
    return make(op_type, *inputs)


def exponential_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return learning_rate · decay_rate ^ (step / decay_steps); `staircase` rounds the exponent down.

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    with _scope(name, "ExponentialDecay", learning_rate, global_step, decay_steps, decay_rate) as (
        rate,
        step,
        steps,
        base,
    ):
        progress = step / steps
        return rate * _call("Pow", base, _call("Floor", progress) if staircase else progress)


def natural_exp_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return learning_rate · exp(-decay_rate · step / decay_steps); `staircase` rounds the quotient down.

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    with _scope(name, "NaturalExpDecay", learning_rate, global_step, decay_steps, decay_rate) as (
        rate,
        step,
        steps,
        base,
    ):
        progress = step / steps
        return rate * _call("Exp", -base * (_call("Floor", progress) if staircase else progress))


def inverse_time_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return learning_rate / (1 + decay_rate · step / decay_steps); `staircase` rounds the quotient down.

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    with _scope(name, "InverseTimeDecay", learning_rate, global_step, decay_steps, decay_rate) as (
        rate,
        step,
        steps,
        base,
    ):
        progress = step / steps
        return rate / (1 + base * (_call("Floor", progress) if staircase else progress))


def piecewise_constant(
    x: TensorLike, boundaries: Sequence[TensorLike], values: Sequence[TensorLike], name: str | None = None
) -> Tensor:
    """Return values[0] up to boundaries[0], values[1] up to boundaries[1], …, and the last value beyond them.

    Args:
        x: Scalar position, such as the global step.
        boundaries: Increasing numbers of the dtype of `x`.
        values: One more value than there are boundaries, all of one dtype.
        name: Name of the scope of the nodes.

    Raises:
        InvalidArgumentError: the counts or the dtypes do not match.
    """
    for given in (boundaries, values):
        check_list(given, "the boundaries and values of a piecewise constant")
    if len(boundaries) != len(values) - 1:
        raise InvalidArgumentError(
            "the number of values does not fit the boundaries", expected=len(boundaries) + 1, actual=len(values)
        )
    with name_scope(name, "PiecewiseConstant", [x, *boundaries, *values]):
        position = convert_to_tensor(x)
        levels = [convert_to_tensor(v) for v in values]
        # From the lowest boundary up: the last one exceeded wins.
        result = levels[0]
        for boundary, level in zip(boundaries, levels[1:], strict=True):
            edge = convert_to_tensor(boundary, dtype_hint=position.dtype)
            # int32 converts to int64 without loss, and the global step is int64.
            if edge.dtype is dtypes.int32 and position.dtype is dtypes.int64:
                edge = cast_to(edge, position.dtype)
            result = _call("SelectV2", position > edge, level, result)
        result.set_shape(levels[0].dims if all(v.dims == levels[0].dims for v in levels) else None)
        return result


piecewise_constant_decay = piecewise_constant


def polynomial_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    end_learning_rate: TensorLike = 0.0001,
    power: TensorLike = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return (learning_rate - end) · (1 - step / decay_steps) ^ power + end, a decay from learning_rate to end.

    After `decay_steps` the rate stays at end. With `cycle`, `decay_steps` instead grows to the next multiple that
    covers the step, so that the rate decays again.

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    others = (decay_steps, end_learning_rate, power)
    with _scope(name, "PolynomialDecay", learning_rate, global_step, *others) as (rate, step, steps, end, exponent):
        if cycle:
            # At step 0 the quotient is 0, and a multiple of 0 would divide by zero.
            turns = _call("Ceil", step / steps)
            steps = steps * _call("Maximum", turns, _as(1, rate))
        else:
            step = _call("Minimum", step, steps)
        return (rate - end) * _call("Pow", 1 - step / steps, exponent) + end


def cosine_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    alpha: TensorLike = 0.0,
    name: str | None = None,
) -> Tensor:
    """Return a decay from learning_rate to alpha · learning_rate along half a cosine (Loshchilov and Hutter 2017).

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    with _scope(name, "CosineDecay", learning_rate, global_step, decay_steps, alpha) as (rate, step, steps, floor):
        # After the decay the rate stays at its end.
        progress = _call("Minimum", step, steps) / steps
        return rate * ((1 - floor) * _half_cosine(progress) + floor)


def _half_cosine(progress: Tensor) -> Tensor:
    return 0.5 * (1 + _call("Cos", math.pi * progress))


def cosine_decay_restarts(
    learning_rate: TensorLike,
    global_step: TensorLike,
    first_decay_steps: TensorLike,
    t_mul: TensorLike = 2.0,
    m_mul: TensorLike = 1.0,
    alpha: TensorLike = 0.0,
    name: str | None = None,
) -> Tensor:
    """Return a cosine decay with warm restarts (Loshchilov and Hutter 2017).

    Each period is `t_mul` times as long and `m_mul` times as high as the one before.

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    others = (first_decay_steps, t_mul, m_mul, alpha)
    with _scope(name, "SGDRDecay", learning_rate, global_step, *others) as (rate, step, steps, longer, lower, floor):
        progress = step / steps
        turn = _call("Floor", progress)
        turns, fraction = turn, progress - turn
        # Periods grow geometrically, so the index of the current one is a logarithm; with t_mul = 1 it would be 0/0.
        if not (_is_number(t_mul) and t_mul == 1):
            # turns = floor(log(1 − progress · (1 − t_mul)) / log(t_mul)), by the sum of a geometric series.
            grown = _call("Floor", _call("Log", 1 - progress * (1 - longer)) / _call("Log", longer))
            length = _call("Pow", longer, grown)
            fraction_grown = (progress - (1 - length) / (1 - longer)) / length
            # A tensor's value is known only in the step, so both branches are computed and one is selected.
            equal = _call("Equal", longer, _as(1, rate))
            turns = _call("SelectV2", equal, turns, grown)
            fraction = _call("SelectV2", equal, fraction, fraction_grown)
        decayed = _call("Pow", lower, turns) * _half_cosine(fraction)
        return rate * ((1 - floor) * decayed + floor)


def linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    num_periods: TensorLike = 0.5,
    alpha: TensorLike = 0.0,
    beta: TensorLike = 0.001,
    name: str | None = None,
) -> Tensor:
    """Return learning_rate · ((alpha + linear) · cosine + beta), with `num_periods` cosine periods (Bello et al.).

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    others = (decay_steps, num_periods, alpha, beta)
    with _scope(name, "LinearCosineDecay", learning_rate, global_step, *others) as (
        rate,
        step,
        steps,
        periods,
        low,
        bottom,
    ):
        step = _call("Minimum", step, steps)
        linear = (steps - step) / steps
        return rate * ((low + linear) * _half_cosine(2 * periods * step / steps) + bottom)


def noisy_linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    initial_variance: TensorLike = 1.0,
    variance_decay: TensorLike = 0.55,
    num_periods: TensorLike = 0.5,
    alpha: TensorLike = 0.0,
    beta: TensorLike = 0.001,
    name: str | None = None,
) -> Tensor:
    """Return `linear_cosine_decay` with noise of variance initial_variance / (1 + step) ^ variance_decay.

    Raises:
        InvalidArgumentError: `global_step` is None.
    """
    others = (decay_steps, initial_variance, variance_decay, num_periods, alpha, beta)
    with _scope(name, "NoisyLinearCosineDecay", learning_rate, global_step, *others) as settings:
        rate, step, steps, start, decay, periods, low, bottom = settings
        step = _call("Minimum", step, steps)
        spread = _call("Sqrt", start / _call("Pow", 1 + step, decay))
        # A scalar: one draw per step.
        shape = constant([], "int32", shape=[0])
        noise = make("RandomStandardNormal", shape, dtype=rate.dtype) * spread
        linear = (steps - step) / steps + noise
        result: Tensor = rate * ((low + linear) * _half_cosine(2 * periods * step / steps) + bottom)
        return result
