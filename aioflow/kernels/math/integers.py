"""Kernels of integer division, remainders and shifts, with checks where the hardware leaves the result undefined."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.registry import Binding, KernelBody, binder
from aioflow.memory.values import Array, Namespace


def _truncated(xp: Namespace, x: Array, y: Array) -> Array:
    """Return x / y rounded towards zero."""
    # fmod has the sign of x, and x minus it divides evenly.
    return xp.floor_divide(xp.subtract(x, xp.fmod(x, y)), y)


def _division(binding: Binding, divide: Callable[..., Array]) -> KernelBody:
    divisor = binding.constants[1]
    if divisor is not None and divisor.all():
        return divide

    def checked(x: Array, y: Array) -> Array:
        result = divide(x, y)
        if result.size and not y.all():
            raise InvalidArgumentError("integer division by zero", expected="a divisor other than 0", actual=0)
        return result

    return checked


@binder("FloorDiv", dtypes={"T": "ints"}, fresh=True, synchronises=True)
def floor_div(binding: Binding) -> KernelBody:
    return _division(binding, binding.xp.floor_divide)


@binder("FloorMod", dtypes={"T": "ints"}, fresh=True, synchronises=True)
def floor_mod(binding: Binding) -> KernelBody:
    return _division(binding, binding.xp.remainder)


@binder("Div", dtypes={"T": "ints"}, fresh=True, synchronises=True)
@binder("TruncateDiv", dtypes={"T": "ints"}, fresh=True, synchronises=True)
def truncate_div(binding: Binding) -> KernelBody:
    if binding.output_dtypes[0].is_unsigned:
        return _division(binding, binding.xp.floor_divide)
    return _division(binding, partial(_truncated, binding.xp))


@binder("Mod", dtypes={"T": "int32 int64"}, fresh=True, synchronises=True)
@binder("TruncateMod", dtypes={"T": "int32 int64"}, fresh=True, synchronises=True)
def truncate_mod(binding: Binding) -> KernelBody:
    return _division(binding, binding.xp.fmod)


def _shift(binding: Binding, shift: Callable[..., Array]) -> KernelBody:
    xp, last = binding.xp, 8 * binding.output_dtypes[0].size - 1
    amount = binding.constants[1]
    if amount is not None and ((amount >= 0) & (amount <= last)).all():
        return shift

    def limited(x: Array, y: Array) -> Array:
        # In C a shift by a negative amount, or by the width of the number or more, is undefined.
        return shift(x, xp.minimum(xp.maximum(y, 0), last))

    return limited


@binder("LeftShift", fresh=True)
def left_shift(binding: Binding) -> KernelBody:
    return _shift(binding, binding.xp.left_shift)


@binder("RightShift", fresh=True)
def right_shift(binding: Binding) -> KernelBody:
    return _shift(binding, binding.xp.right_shift)
