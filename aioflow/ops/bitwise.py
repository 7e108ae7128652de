"""Bits of integers. No gradient flows through any of it."""

from __future__ import annotations

from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import define_op, not_differentiable
from aioflow.ops.apply import TensorLike, apply_op
from aioflow.ops.broadcasting import broadcast
from aioflow.ops.core import unchanged

__all__ = ["bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]

for _name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    define_op(_name, "x: T, y: T", "z: T", ["T: {ints}"], shape=broadcast, commutative=True)
for _name in ("LeftShift", "RightShift"):
    define_op(_name, "x: T, y: T", "z: T", ["T: {ints}"], shape=broadcast)
define_op("Invert", "x: T", "y: T", ["T: {ints}"], shape=unchanged)

not_differentiable("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift", "Invert")


def bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x & y of integers, elementwise with broadcasting."""
    result: Tensor = apply_op("BitwiseAnd", x, y, name=name)
    return result


def bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x | y of integers, elementwise with broadcasting."""
    result: Tensor = apply_op("BitwiseOr", x, y, name=name)
    return result


def bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x ^ y of integers, elementwise with broadcasting."""
    result: Tensor = apply_op("BitwiseXor", x, y, name=name)
    return result


def invert(x: TensorLike, name: str | None = None) -> Tensor:
    """~x of integers: every bit flipped."""
    result: Tensor = apply_op("Invert", x, name=name)
    return result


def left_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x << y of integers. A y below 0 counts as 0, and one of the dtype's bits or more as one less than them."""
    result: Tensor = apply_op("LeftShift", x, y, name=name)
    return result


def right_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x >> y of integers, keeping the sign. y is limited as in `left_shift`."""
    result: Tensor = apply_op("RightShift", x, y, name=name)
    return result
