"""Comparisons, tests for NaN and infinity, and logic: ops whose result is bool, through which no gradient flows."""

from __future__ import annotations

from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op, not_differentiable
from aioflow.graph.shapes import Dims, merge_dims
from aioflow.ops.apply import TensorLike, apply_op
from aioflow.ops.broadcasting import broadcast
from aioflow.ops.core import unchanged

__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "is_finite",
    "is_inf",
    "is_nan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]


def _lenient_broadcast(ctx: ShapeContext) -> Dims:
    """With incompatible_shape_error=False shapes that do not fit give a scalar: a size left open leaves all open."""
    if ctx.attrs["incompatible_shape_error"]:
        return broadcast(ctx)
    x, y = (t.dims for t in ctx.tensors)
    if x is None or y is None:
        return None
    try:
        dims = broadcast(ctx)
    except InvalidArgumentError:
        return ()
    open_sizes = any((a is None) != (b is None) and 1 not in (a, b) for a, b in zip(x[::-1], y[::-1], strict=False))
    return None if open_sizes else dims


def _one_shape(ctx: ShapeContext) -> Dims:
    return merge_dims(*(t.dims for t in ctx.tensors))


_ORDERED: Final = ("Less", "LessEqual", "Greater", "GreaterEqual")
_CLASSES: Final = ("IsNan", "IsInf", "IsFinite")
_LOGIC: Final = ("LogicalAnd", "LogicalOr")

for _name in ("Equal", "NotEqual"):
    define_op(
        _name,
        "x: T, y: T",
        "z: bool",
        ["T: type", "incompatible_shape_error: bool = True"],
        shape=_lenient_broadcast,
        commutative=True,
    )
for _name in _ORDERED:
    define_op(_name, "x: T, y: T", "z: bool", ["T: {reals}"], shape=broadcast)
define_op(
    "ApproximateEqual",
    "x: T, y: T",
    "z: bool",
    ["T: {numbertype}", "tolerance: float = 9.999999747378752e-06"],
    shape=_one_shape,
    commutative=True,
)
for _name in _CLASSES:
    define_op(_name, "x: T", "y: bool", ["T: {floats}"], shape=unchanged)
for _name in _LOGIC:
    define_op(_name, "x: bool, y: bool", "z: bool", shape=broadcast, commutative=True)
define_op("LogicalNot", "x: bool", "y: bool", shape=unchanged)

not_differentiable("Equal", "NotEqual", "ApproximateEqual", "LogicalNot", *_ORDERED, *_CLASSES, *_LOGIC)


def equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether x equals y, elementwise with broadcasting; any dtype, strings included."""
    result: Tensor = apply_op("Equal", x, y, name=name)
    return result


def not_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether x differs from y, elementwise with broadcasting; any dtype, strings included."""
    result: Tensor = apply_op("NotEqual", x, y, name=name)
    return result


def less(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether x < y, elementwise with broadcasting."""
    result: Tensor = apply_op("Less", x, y, name=name)
    return result


def less_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether x <= y, elementwise with broadcasting."""
    result: Tensor = apply_op("LessEqual", x, y, name=name)
    return result


def greater(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether x > y, elementwise with broadcasting."""
    result: Tensor = apply_op("Greater", x, y, name=name)
    return result


def greater_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Whether x >= y, elementwise with broadcasting."""
    result: Tensor = apply_op("GreaterEqual", x, y, name=name)
    return result


def approximate_equal(
    x: TensorLike, y: TensorLike, tolerance: float = 9.999999747378752e-06, name: str | None = None
) -> Tensor:
    """Whether |x - y| < tolerance, for tensors of one shape (there is no broadcasting)."""
    result: Tensor = apply_op("ApproximateEqual", x, y, tolerance=tolerance, name=name)
    return result


def is_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether each element is not a number."""
    result: Tensor = apply_op("IsNan", x, name=name)
    return result


def is_inf(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether each element is infinite."""
    result: Tensor = apply_op("IsInf", x, name=name)
    return result


def is_finite(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether each element is neither infinite nor NaN."""
    result: Tensor = apply_op("IsFinite", x, name=name)
    return result


def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x and y, both bool, elementwise with broadcasting."""
    result: Tensor = apply_op("LogicalAnd", x, y, name=name)
    return result


def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x or y, both bool, elementwise with broadcasting."""
    result: Tensor = apply_op("LogicalOr", x, y, name=name)
    return result


def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """not x, for bool."""
    result: Tensor = apply_op("LogicalNot", x, name=name)
    return result


def logical_xor(x: TensorLike, y: TensorLike, name: str = "LogicalXor") -> Tensor:
    """Exactly one of x and y, both bool, elementwise with broadcasting. (For bools `NotEqual` is the same.)"""
    result: Tensor = apply_op("NotEqual", x, y, T="bool", name=name)
    return result
