"""Bitwise ops of integers. They have no gradients."""

from __future__ import annotations

from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import Laws, Neutral, elementwise
from aioflow.ops.apply import TensorLike, make
from aioflow.ops.core import unchanged
from aioflow.ops.math.broadcasting import broadcast

for _name, _laws in (
    ("BitwiseAnd", Laws(neutral=Neutral((0, 1), -1), of_equals=True)),
    ("BitwiseOr", Laws(neutral=Neutral((0, 1), 0), of_equals=True)),
    ("BitwiseXor", Laws(neutral=Neutral((0, 1), 0))),
):
    define_op(
        _name,
        "x: T, y: T",
        "z: T",
        ["T: {ints}"],
        shape=broadcast,
        commutative=True,
        traits=elementwise(laws=_laws),
    )
for _name in ("LeftShift", "RightShift"):
    define_op(
        _name,
        "x: T, y: T",
        "z: T",
        ["T: {ints}"],
        shape=broadcast,
        traits=elementwise(laws=Laws(neutral=Neutral((1,), 0))),
    )
define_op("Invert", "x: T", "y: T", ["T: {ints}"], shape=unchanged, traits=elementwise(laws=Laws(undoes_itself=True)))

not_differentiable("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift", "Invert")


def bitwise_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x & y of integers, elementwise with broadcasting."""
    return make("BitwiseAnd", x, y, name=name)


def bitwise_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x | y of integers, elementwise with broadcasting."""
    return make("BitwiseOr", x, y, name=name)


def bitwise_xor(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x ^ y of integers, elementwise with broadcasting."""
    return make("BitwiseXor", x, y, name=name)


def invert(x: TensorLike, name: str | None = None) -> Tensor:
    """Return ~x of integers: every bit flipped."""
    return make("Invert", x, name=name)


def left_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x << y of integers.

    y is limited to 0 … n - 1, where n is the number of bits of the dtype.
    """
    return make("LeftShift", x, y, name=name)


def right_shift(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Return x >> y of integers, keeping the sign. y is limited as in `left_shift`."""
    return make("RightShift", x, y, name=name)
