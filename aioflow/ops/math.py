"""Arithmetic of two tensors: the ops, their gradients, and the builders with TensorFlow 1's names.

Operands are broadcast as in NumPy and must have one dtype; Python values take the dtype of the other operand.
Gradients are `_…_grad` functions that end in `unbroadcast`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import define_op, gradient
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import TensorLike, apply_op, convert_to_tensor
from aioflow.ops.broadcasting import Pair, broadcast, conjugate, negated, same_dtype, unbroadcast
from aioflow.ops.indexed import Gradient

__all__ = [
    "add",
    "atan2",
    "maximum",
    "minimum",
    "multiply",
    "pow",
    "squared_difference",
    "subtract",
]

_DEFINITIONS: Final = {
    "Add": "{floats, complexes, uint8, int8, int16, int32, int64, string}",
    "Sub": "{numbers}",
    "MulNoNan": "{floats, complexes}",
    "Pow": "{floats, int8, int16, int32, int64, complexes}",
    "Maximum": "{reals}",
    "Minimum": "{reals}",
    "Xdivy": "{floats, complexes}",
    "Xlogy": "{floats, complexes}",
    "Xlog1py": "{floats, complexes}",
}
for _name, _allowed in _DEFINITIONS.items():
    define_op(_name, "x: T, y: T", "z: T", [f"T: {_allowed}"], shape=broadcast)
define_op("AddV2", "x: T, y: T", "z: T", ["T: {numbers}"], shape=broadcast, commutative=True)
define_op("Mul", "x: T, y: T", "z: T", ["T: {numbers}"], shape=broadcast, commutative=True)
define_op(
    "SquaredDifference",
    "x: T, y: T",
    "z: T",
    ["T: {floats, int32, int64, complexes}"],
    shape=broadcast,
    commutative=True,
)
define_op("Atan2", "y: T, x: T", "z: T", ["T: {floats}"], shape=broadcast)
define_op("NextAfter", "x1: T, x2: T", "output: T", ["T: {float32, float64} = float32"], shape=broadcast)


def _mul(x: TensorLike, y: TensorLike) -> Tensor:
    result: Tensor = apply_op("Mul", x, y)
    return result


def _neg(x: Tensor) -> Tensor:
    result: Tensor = apply_op("Neg", x)
    return result


@gradient("Add", "AddV2", takes_slices=True)
def _add_grad(op: Operation, grad: Gradient) -> Pair:
    return unbroadcast(op.inputs[0], op.inputs[1], grad, grad)


@gradient("Sub", takes_slices=True)
def _sub_grad(op: Operation, grad: Gradient) -> Pair:
    grad_x, grad_y = unbroadcast(op.inputs[0], op.inputs[1], grad, grad)
    return grad_x, None if grad_y is None else negated(grad_y)  # after the sum there is less to negate


@gradient("Mul")
def _mul_grad(op: Operation, grad: Tensor) -> Pair:
    x, y = op.inputs
    return unbroadcast(x, y, _mul(grad, conjugate(y)), _mul(grad, conjugate(x)))


@gradient("MulNoNan")
def _mul_no_nan_grad(op: Operation, grad: Tensor) -> Pair:
    x, y = op.inputs
    return unbroadcast(x, y, apply_op("MulNoNan", grad, conjugate(y)), apply_op("MulNoNan", conjugate(x), grad))


@gradient("Pow")
def _pow_grad(op: Operation, grad: Tensor) -> Pair:
    """The gradient comes first in each product: a slope may overflow where it does not flow."""
    x, y, z = *op.inputs, op.outputs[0]
    grad_x = _mul(_mul(grad, conjugate(y)), conjugate(_power_below(x, y)))
    grad_y = _mul(_mul(grad, conjugate(z)), conjugate(_safe_log(x)))
    return unbroadcast(x, y, grad_x, grad_y)


def _power_below(x: Tensor, y: Tensor) -> Tensor:
    """x^(y-1), with the exponent as a constant where it is one: its kernel then multiplies instead of raising."""
    exponent = constant_value(y)
    if exponent is None:
        below: Tensor = apply_op("Pow", x, apply_op("Sub", y, 1))
    elif exponent.ndim == 0 and exponent == 2:
        return x
    else:
        below = apply_op("Pow", x, convert_to_tensor((exponent - 1).astype(exponent.dtype)))
    return below


def _safe_log(x: Tensor) -> Tensor:
    """log x, and 0 where the power is not differentiable by its exponent: x <= 0 (complex: x = 0)."""
    zero = convert_to_tensor(0, x.dtype)
    usable = apply_op("NotEqual" if x.dtype.is_complex else "Greater", x, zero)
    result: Tensor = apply_op("SelectV2", usable, apply_op("Log", x), zero)
    return result


@gradient("Maximum")
def _maximum_grad(op: Operation, grad: Tensor) -> Pair:
    return _selected(op, grad, "GreaterEqual")


@gradient("Minimum")
def _minimum_grad(op: Operation, grad: Tensor) -> Pair:
    return _selected(op, grad, "LessEqual")


def _selected(op: Operation, grad: Tensor, takes_x: str) -> Pair:
    """The gradient goes to the operand that was taken; to x where both are equal."""
    x, y = op.inputs
    mask, zero = apply_op(takes_x, x, y), convert_to_tensor(0, grad.dtype)
    return unbroadcast(x, y, apply_op("SelectV2", mask, grad, zero), apply_op("SelectV2", mask, zero, grad))


@gradient("SquaredDifference")
def _squared_difference_grad(op: Operation, grad: Tensor) -> Pair:
    x, y = op.inputs
    slope = _mul(_mul(grad, 2), apply_op("Sub", x, y))
    grad_x, grad_y = unbroadcast(x, y, slope, slope)
    return grad_x, None if grad_y is None else negated(grad_y)


@gradient("Atan2")
def _atan2_grad(op: Operation, grad: Tensor) -> Pair:
    y, x = op.inputs
    slope = apply_op("RealDiv", grad, apply_op("AddV2", apply_op("Square", x), apply_op("Square", y)))
    return unbroadcast(y, x, _mul(x, slope), _neg(_mul(y, slope)))


def _nonzero(x: Tensor) -> Tensor:
    """1 where x is not 0, otherwise 0."""
    result: Tensor = apply_op("Cast", apply_op("NotEqual", x, 0), DstT=x.dtype)
    return result


@gradient("Xdivy")
def _xdivy_grad(op: Operation, grad: Tensor) -> Pair:
    x, y = op.inputs
    by_x = apply_op("Xdivy", _nonzero(x), y)
    by_y = apply_op("Xdivy", _neg(x), apply_op("Square", y))
    return unbroadcast(x, y, _mul(grad, conjugate(by_x)), _mul(grad, conjugate(by_y)))


@gradient("Xlogy")
def _xlogy_grad(op: Operation, grad: Tensor) -> Pair:
    x, y = op.inputs
    by_x, by_y = apply_op("Xlogy", _nonzero(x), y), apply_op("Xdivy", x, y)
    return unbroadcast(x, y, _mul(grad, conjugate(by_x)), _mul(grad, conjugate(by_y)))


@gradient("Xlog1py")
def _xlog1py_grad(op: Operation, grad: Tensor) -> Pair:
    x, y = op.inputs
    by_x, by_y = apply_op("Xlog1py", _nonzero(x), y), apply_op("Xdivy", x, apply_op("AddV2", y, 1))
    return unbroadcast(x, y, _mul(grad, conjugate(by_x)), _mul(grad, conjugate(by_y)))


@gradient("NextAfter", takes_slices=True)
def _nextafter_grad(op: Operation, grad: Gradient) -> Pair:
    grad_x, _ = unbroadcast(op.inputs[0], op.inputs[1], grad, None)
    return grad_x, apply_op("ZerosLike", op.inputs[1])


# ── builders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def add(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x + y, elementwise with broadcasting. Byte strings are concatenated."""
    first, second = same_dtype(x, y)
    result: Tensor = apply_op("Add" if first.dtype is dtypes.string else "AddV2", first, second, name=name or "Add")
    return result


def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x - y, elementwise with broadcasting."""
    result: Tensor = apply_op("Sub", x, y, name=name)
    return result


def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y, elementwise with broadcasting."""
    result: Tensor = apply_op("Mul", x, y, name=name)
    return result


def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y, and 0 where y is 0 even if x is infinite or not a number."""
    result: Tensor = apply_op("MulNoNan", x, y, name=name)
    return result


def pow(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x to the power of y. A constant exponent such as 2, 3 or 0.5 costs multiplications or a square root.

    Raises:
        InvalidArgumentError: (at run time) an integer to a negative integer power.
    """
    result: Tensor = apply_op("Pow", x, y, name=name)
    return result


def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The greater of x and y, elementwise with broadcasting; NaN where one is. Where equal, the gradient goes to x."""
    result: Tensor = apply_op("Maximum", x, y, name=name)
    return result


def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The lesser of x and y, elementwise with broadcasting; NaN where one is. Where equal, the gradient goes to x."""
    result: Tensor = apply_op("Minimum", x, y, name=name)
    return result


def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """(x - y)², for complex dtypes |x - y|²."""
    result: Tensor = apply_op("SquaredDifference", x, y, name=name)
    return result


def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The angle of the point (x, y), in [-π, π]."""
    result: Tensor = apply_op("Atan2", y, x, name=name)
    return result


def nextafter(x1: TensorLike, x2: TensorLike, name: str | None = None) -> Tensor:
    """The next representable value from x1 in the direction of x2; float32 or float64."""
    result: Tensor = apply_op("NextAfter", x1, x2, name=name)
    return result


def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, and 0 where x is 0."""
    result: Tensor = apply_op("Xdivy", x, y, name=name)
    return result


def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x log y, and 0 where x is 0."""
    result: Tensor = apply_op("Xlogy", x, y, name=name)
    return result


def xlog1py(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x log(1 + y), and 0 where x is 0."""
    result: Tensor = apply_op("Xlog1py", x, y, name=name)
    return result


def polyval(coeffs: Sequence[TensorLike], x: TensorLike, name: str | None = None) -> Tensor:
    """The polynomial with these coefficients, that of the highest power first, at x, by Horner's rule."""
    if not isinstance(coeffs, list | tuple):
        raise InvalidArgumentError("polyval needs a list of coefficients", expected="a list", actual=repr(coeffs))
    tensor = convert_to_tensor(x)
    with tensor.graph.as_default(), tensor.graph.name_scope(name or "polyval"):
        if not coeffs:
            zeros: Tensor = apply_op("ZerosLike", tensor)
            return zeros
        result = convert_to_tensor(coeffs[0], tensor.dtype)
        for coefficient in coeffs[1:]:
            result = add(convert_to_tensor(coefficient, tensor.dtype), multiply(result, tensor))
    return result
